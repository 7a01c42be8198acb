"""Whatever a picture says lies within it, and says it as it is written."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from matplotlib.text import Text

from memplan.backends.devices import Gpu, Rig
from memplan.output.chart import LINES, Chart, make_chart
from memplan.output.figures import LIGHT, new_figure, write_figure
from memplan.output.lettering import Ruler, plain_text
from memplan.output.plot import chart_figure
from memplan.output.timeline import Timeline, TimelineChart, timeline_figure
from tests.output.pictures import FREE, GIB, in_proportion, swept

pytestmark = pytest.mark.slow

TEX = r"a^$=CPU,\w_exps$=CPU"


def written(figure: Any) -> list[Text]:
    """Every text that is drawn."""
    with plain_text():
        figure.draw_without_rendering()
    return [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]


def assert_within(figure: Any) -> None:
    """No text passes the edge of the picture, no panel another, and headings and keys do not overlap titles."""
    renderer = figure.canvas.get_renderer()
    width, height = figure.bbox.width, figure.bbox.height
    assert width == 1600 and height >= 900
    for text in written(figure):
        box = text.get_window_extent(renderer)
        assert box.x0 >= 2 and box.x1 <= width - 2 and box.y0 >= 2 and box.y1 <= height - 2, text.get_text()
    titles = [axes.title for axes in figure.axes] + [axes._left_title for axes in figure.axes]
    top = max(title.get_window_extent(renderer).y1 for title in titles if title.get_text())
    for legend in figure.legends:
        box = legend.get_window_extent(renderer)
        assert box.x0 >= 0 and box.x1 <= width and box.y0 >= top - 1
    panels = [axes.get_tightbbox(renderer) for axes in figure.axes]
    for i, panel in enumerate(panels):
        assert not any(panel.overlaps(other) for other in panels[:i])
    least = 0.55 if len(panels) == 1 else 0.2
    assert all(axes.bbox.width >= least * width for axes in figure.axes)
    lines = sorted((text.get_window_extent(renderer) for text in figure.texts), key=lambda box: box.y0)
    for low, high in pairwise(lines):
        assert low.y1 <= high.y0 + 3 or low.x1 <= high.x0 or high.x1 <= low.x0


def renamed(chart: Chart, rng: random.Random, longest: int) -> Chart:
    """The chart with labels of any length, some of them one long word."""

    def label(i: int) -> str:
        words = [rng.choice(["-ub 2048", "-ctk -ctv q8_0", "no fused indexer", TEX, "x" * rng.randint(1, longest)])]
        while sum(map(len, words)) < rng.randint(1, longest):
            words.append(rng.choice(["-ub 512", "b10068", "W" * rng.randint(1, longest), r"blk\.[0-9]+\.ffn$=CPU"]))
        return f"{i} {', '.join(words)}"

    labels = [label(i) for i in range(len(chart.panels[0].series))]
    panels = tuple(
        replace(
            panel,
            # a stack's bands have names of their own
            series=tuple(replace(s, label=labels[i]) if panel.kind == LINES else s for i, s in enumerate(panel.series)),
            title=panel.title + " " + "M" * rng.randint(0, 30),
        )
        for panel in chart.panels
    )
    return replace(
        chart,
        panels=panels,
        title=chart.title + " + " + " + ".join("RTX " + "9" * rng.randint(1, longest // 3) for _ in range(3)),
        subtitle=chart.subtitle + " ".join(f" -ot {label(i)}" for i in range(rng.randint(0, 3))),
        notes=(*chart.notes, f"one line for all of these: {'; '.join(labels)}"),
    )


@pytest.mark.parametrize(("gpus", "lines"), [(1, 3), pytest.param(2, 16, marks=pytest.mark.thorough), (6, 1)])
def test_nothing_passes_the_edge(gpus: int, lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tuple(Gpu("NVIDIA GeForce RTX 3090", 24 * GIB, FREE - 2 * i * GIB, (8, 6)) for i in range(gpus)))
    over = ["ctx=4096:1048576", *([f"np=1:{lines}:1"] if lines > 1 else [])]
    sweeper, sweep = swept(monkeypatch, over, lambda d, n_ctx, np: 20 * in_proportion(d, n_ctx, np), rig)
    chart = make_chart(sweeper, sweep, "ctx", ["-cmoe"])
    rng = random.Random(gpus * 100 + lines)
    for longest in (15, 60, 300):
        strange = renamed(chart, rng, longest)
        figure = chart_figure(strange, log_x=longest != 60, log_y=lines > 1 and longest == 60)
        assert_within(figure)
        if lines > 1:
            shown = "".join(text.get_text() for text in written(figure)).replace("\n", "").replace(" ", "")
            for series, verdict in zip(strange.panels[0].series, strange.verdicts, strict=True):
                assert series.label.replace(" ", "") in shown and verdict.replace(" ", "") in shown


@pytest.mark.parametrize("over", ["ub=1,16384", "ub=512:16384", "ub=1000000000,2000000000"])
def test_ticks_of_large_numbers_stay_within(over: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chart = make_chart(*swept(monkeypatch, [over], flags="-c 4096"), over.partition("=")[0])
    assert_within(chart_figure(chart))


def test_marks_find_room_wherever_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for last in (5120, 65536, 1_048_320):
        step = 17 * GIB // last
        chart = make_chart(*swept(monkeypatch, ["ctx=4096:1048576"], lambda d, n, _, s=step: (s - d) * n), "ctx")  # type: ignore[misc]
        figure: Any = chart_figure(chart)
        assert_within(figure)
        renderer = figure.canvas.get_renderer()
        for axes in figure.axes:
            boxes = [text.get_window_extent(renderer) for text in axes.texts]
            for i, box in enumerate(boxes):
                assert not any(box.overlaps(other) for other in boxes[:i]), [text.get_text() for text in axes.texts]


def test_timelines_of_long_names_stay_within() -> None:
    names = tuple(f"copy of {'w' * n}.weight{TEX}" for n in (1, 10, 20, 40, 80, 160))
    timelines = tuple(
        Timeline(f"CUDA{i}", 100, (*names, "everything else"), ((10,) * 50,) * 7, (100,) * 50, at, "decides " * 30)
        for i, at in enumerate((0, 25, 49))
    )
    for count in (1, 3):
        title, subtitle = "What? " + "on RTX 3090 + " * 9, f"-ot {TEX * 20}"
        assert_within(timeline_figure(TimelineChart(title, subtitle, 50, timelines[:count])))


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_dollars_are_no_formulas(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = r"2 A$\frac$B グラフ"
    rig = Rig((Gpu(name, 24 * GIB, FREE, (8, 6)),) * 2)
    for other in ([], [rf"ot={TEX};x$=CPU,\frac$=CPU"])[ending != "png" :]:
        over = ["ctx=4096,1048576", *other]
        chart = make_chart(*swept(monkeypatch, over, rig=rig, flags="-np 1"), "ctx", ["-ot", TEX])
        figure = chart_figure(chart)
        assert not any(text.get_parse_math() for text in written(figure))
        assert any(TEX in text.get_text() for text in written(figure))
        write_figure(str(tmp_path / f"a.{ending}"), figure)
    if ending == "svg":
        assert rb"A$\frac$B" in (tmp_path / "a.svg").read_bytes()


def test_lines_are_broken_where_they_may_be() -> None:
    ruler = Ruler(new_figure(8, 4.5, LIGHT))
    assert ruler.wrapped("How? a on RTX 3090 + RTX PRO 6000", 1.9, 13, True, r"(?<=\?) | (?=on )|(?<=\+) ") == [
        "How? a",
        "on RTX 3090 +",
        "RTX PRO 6000",
    ]
    for width in (0.01, 0.5, 1.0, 3.0):
        for text in ("", "word", "many words that are short", "W" * 50, "a " + "W" * 50 + " b"):
            lines = ruler.wrapped(text, width, 8.0)
            assert "".join(lines).replace(" ", "") == text.replace(" ", "")
            assert all(ruler.width(line, 8.0) <= width for line in lines if len(line) > 1)
    cut = ruler.wrapped("some words more than there is room for", 1.0, 8.0, most=2)
    assert len(cut) == 2 and cut[1].endswith("…") and ruler.width(cut[1], 8.0) <= 1.0
