"""Figures by what is in them: lines, labels, marks, ticks."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from memplan.backends.devices import Rig
from memplan.errors import FlagError, OutputError
from memplan.output.chart import BANDS, Chart, make_chart
from memplan.output.figures import (
    DARK,
    LIGHT,
    check_figure_path,
    gib_ticks,
    new_figure,
    size_labels,
    write_figure,
)
from memplan.output.plot import CUT, chart_figure, fine
from memplan.output.words import tokens_label
from tests.output.pictures import FREE, GIB, RIG, swept


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Chart:
    sweeper, sweep = swept(monkeypatch, ["np=1,2,4", "ctx=4096:1048576"])
    return make_chart(sweeper, sweep, "ctx", ["-cmoe"])


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> Chart:
    return make_chart(*swept(monkeypatch, ["ctx=4096:1048576"]), "ctx", ["-cmoe"])


def named(axes: Any, label: str) -> list[Any]:
    return [line for line in axes.get_lines() if line.get_label() == label]


def texts(figure: Any) -> str:
    found = [text.get_text() for text in figure.texts]
    for legend in figure.legends:
        found += [text.get_text() for text in legend.get_texts()]
    for axes in figure.axes:
        found += [axes.get_title(loc="left"), *(text.get_text() for text in axes.texts)]
    return "\n".join(found)


def test_lines_capacities_and_marks_are_drawn_where_they_are(lines: Chart) -> None:
    figure = chart_figure(lines)
    for axes, panel in zip(figure.axes, lines.panels, strict=True):
        for series in panel.series:
            (line,) = named(axes, series.label)
            drawn = dict(zip(line.get_xdata(), line.get_ydata(), strict=True))
            assert all(drawn[x] == y for x, y in zip(series.xs, series.ys, strict=True))
        (capacity,) = named(axes, "_capacity")
        assert set(capacity.get_ydata()) == {FREE}
        assert [(m.get_xdata()[0], m.get_ydata()[0]) for m in named(axes, "_mark")] == [(m.x, m.y) for m in panel.marks]
        assert axes.get_xscale() == "log"
        assert axes.get_xlim() == (4096, 1048576)
    shown = texts(figure)
    assert all(f"{s.label}: {v}" in shown for s, v in zip(lines.panels[0].series, lines.verdicts, strict=True))
    assert lines.title in shown and lines.subtitle in shown and lines.x_label in shown
    assert shown.count("22.0 GiB free") == 2


def test_stacks_reach_what_is_used(stack: Chart) -> None:
    figure = chart_figure(stack)
    for axes, panel in zip(figure.axes, stack.panels, strict=True):
        assert [c.get_label() for c in axes.collections] == list(BANDS)[:4]
        top = named(axes, "_edge")[-1]
        drawn = dict(zip(top.get_xdata(), top.get_ydata(), strict=True))
        assert all(drawn[x] == y for x, y in zip(panel.series[0].xs, panel.levels, strict=True))
        assert axes.get_ylim()[0] == 0
        labels = [text.get_text() for text in axes.texts]
        assert all(mark.label in labels for mark in panel.marks)
    assert all(band in texts(figure) for band in list(BANDS)[:4])


def test_ticks_are_powers_of_two(stack: Chart) -> None:
    axes = chart_figure(stack).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()][-2:] == ["256K", "1M"]
    assert [label.get_text() for label in axes.get_yticklabels()][:3] == ["0", "4 GiB", "8 GiB"]
    linear = chart_figure(stack, log_x=False).axes[0]
    assert linear.get_xscale() == "linear"
    assert [label.get_text() for label in linear.get_xticklabels()][:2] == ["256K", "512K"]


def test_doublings_of_memory(lines: Chart) -> None:
    log = chart_figure(lines, log_y=True).axes[0]
    assert log.get_yscale() == "log"
    assert "8 GiB" in [label.get_text() for label in log.get_yticklabels()]


def test_an_axis_that_does_not_begin_at_nothing_says_so(monkeypatch: pytest.MonkeyPatch, lines: Chart) -> None:
    def need(device: int, n_ctx: int, slots: int) -> int:
        return (14 << 30) + 1024 * n_ctx * slots

    cut = chart_figure(make_chart(*swept(monkeypatch, ["np=1,2", "ctx=4096:1048576"], need), "ctx"))
    assert cut.axes[0].get_ylim()[0] > 0 and named(cut.axes[0], "_cut") and CUT in texts(cut)
    whole = chart_figure(lines)
    assert whole.axes[0].get_ylim()[0] == 0 and not named(whole.axes[0], "_cut") and CUT not in texts(whole)


@pytest.mark.parametrize("cards", [1, 3, 5, 8])
@pytest.mark.parametrize("over", [["ctx=4096:1048576"], ["np=1,2", "ctx=4096:1048576"]])
def test_words_lie_over_nothing_else(monkeypatch: pytest.MonkeyPatch, cards: int, over: list[str]) -> None:
    def need(device: int, n_ctx: int, slots: int) -> int:
        return ((19 if device == cards - 1 else 2) << 30) + 2048 * n_ctx * slots

    rig = Rig(RIG.gpus[:1] * cards)
    figure: Any = chart_figure(make_chart(*swept(monkeypatch, over, need, rig=rig), "ctx"))
    draw = figure.canvas.get_renderer()
    for axes in figure.axes:
        title, panel = axes._left_title.get_window_extent(draw), axes.get_window_extent(draw)
        words = [text for text in axes.texts if text.get_bbox_patch() is not None]
        assert len(words) >= 1
        boxes = [text.get_window_extent(draw) for text in words]
        assert not any(box.overlaps(title) for box in boxes)
        assert all(panel.y0 <= box.y0 and box.y1 <= panel.y1 for box in boxes)
        drawn = [line for line in axes.get_lines() if line.get_label() == "_edge"][-1:]
        for line in drawn:
            tops = axes.transData.transform(list(zip(line.get_xdata(), line.get_ydata(), strict=True)))
            for box in boxes:
                assert all(y <= box.y0 for x, y in tops if box.x0 <= x <= box.x1)


def test_a_single_panel_names_its_lines_at_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    over = ["gpu=RTX 3090,RTX 5090", "ctx=4096:1048576"]
    chart = make_chart(*swept(monkeypatch, over), "ctx")
    figure = chart_figure(chart)
    (axes,) = figure.axes
    shown = [text.get_text() for text in axes.texts]
    assert {"RTX 3090", "RTX 5090"} <= set(shown)
    assert len(named(axes, "_capacity")) == 2


def test_dark_and_light_differ_in_ground_not_in_content(stack: Chart) -> None:
    light, dark = chart_figure(stack), chart_figure(stack, dark=True)
    assert texts(light) == texts(dark)
    assert light.get_facecolor() != dark.get_facecolor()


def test_every_colour_can_be_told_from_its_ground() -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for theme in (LIGHT, DARK):
        ground = luminance(theme.background)
        for colour in (*theme.lines, *theme.bands, theme.text, theme.muted):
            low, high = sorted((ground, luminance(colour)))
            assert (high + 0.05) / (low + 0.05) > 2, colour
        # bands that touch differ in brightness too, for print
        a, b, c, d, e, f = (luminance(colour) for colour in theme.bands)
        assert abs(a - b) > 0.15 and abs(c - d) > 0.05 and abs(d - e) > 0.04 and abs(e - f) > 0.04 and abs(d - f) > 0.04
        assert len(set(theme.lines)) == len(theme.lines)
        assert c != b


def test_fine_points_keep_the_given_ones() -> None:
    xs, ys = fine([1, 3, 9], [10, 20, 80])
    assert {(1, 10), (3, 20), (9, 80)} <= set(zip(xs, ys, strict=True))
    assert xs == sorted(xs)


@pytest.mark.parametrize(
    ("low", "high", "log", "labels"),
    [
        (0, 24 * GIB, False, ["0", "4 GiB", "8 GiB", "12 GiB", "16 GiB", "20 GiB", "24 GiB"]),
        (80 * GIB, 100 * GIB, False, ["80 GiB", "84 GiB", "88 GiB", "92 GiB", "96 GiB", "100 GiB"]),
        (
            0,
            GIB,
            False,
            ["0", "0.125 GiB", "0.25 GiB", "0.375 GiB", "0.5 GiB", "0.625 GiB", "0.75 GiB", "0.875 GiB", "1 GiB"],
        ),
        (
            0,
            GIB // 2,
            False,
            ["0", "64 MiB", "128 MiB", "192 MiB", "256 MiB", "320 MiB", "384 MiB", "448 MiB", "512 MiB"],
        ),
        (1000 << 20, 1200 << 20, False, ["1,024 MiB", "1,056 MiB", "1,088 MiB", "1,120 MiB", "1,152 MiB", "1,184 MiB"]),
        (GIB, 20 * GIB, True, ["1 GiB", "2 GiB", "4 GiB", "8 GiB", "16 GiB"]),
        (4 * GIB, 25 * GIB, True, ["4 GiB", "6 GiB", "8 GiB", "12 GiB", "16 GiB", "24 GiB"]),
        (70 * GIB, 105 * GIB, True, ["72 GiB", "80 GiB", "88 GiB", "96 GiB", "104 GiB"]),
    ],
)
def test_levels(low: int, high: int, log: bool, labels: list[str]) -> None:
    assert size_labels(gib_ticks(low, high, log)) == labels


def test_numbers_of_tokens() -> None:
    assert [tokens_label(n) for n in (256, 4096, 131072, 1048576, 100000)] == ["256", "4K", "128K", "1M", "100,000"]


@pytest.mark.parametrize("ending", ["png", "svg", "pdf", "PNG"])
def test_files(ending: str, stack: Chart, tmp_path: Path) -> None:
    path = tmp_path / f"a.{ending}"
    check_figure_path(str(path))
    write_figure(str(path), chart_figure(stack))
    data = path.read_bytes()
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending.lower()]
    assert data.startswith(start)
    if ending == "svg":
        assert b"How much context fits?" in data
    write_figure(str(path), chart_figure(stack))
    assert path.read_bytes() == data
    assert os.listdir(tmp_path) == [path.name]


def test_paths_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder.png").mkdir()
    for path, error, said in [
        (str(tmp_path / "a.gif"), FlagError, "ends in .png, .svg, .pdf"),
        (str(tmp_path), FlagError, "ends in"),
        (str(tmp_path / "folder.png"), OutputError, "is not a regular file"),
        (str(tmp_path / "nowhere" / "a.png"), OutputError, "no folder"),
        ("", FlagError, "ends in"),
    ]:
        with pytest.raises(error, match=said):
            check_figure_path(path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OutputError, match=r"pip install matplotlib"):
        check_figure_path(str(tmp_path / "a.png"))


def test_a_library_that_is_broken_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(OutputError, match="drawing needs matplotlib"):
        new_figure(8, 4, LIGHT)
