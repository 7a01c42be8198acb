from __future__ import annotations

import pytest

from memplan.backends.devices import Rig
from memplan.errors import FlagError
from memplan.output.chart import BANDS, LINES, STACK, make_chart
from tests.output.pictures import FREE, GIB, RIG, in_proportion, swept

CTX = "ctx=4096:1048576"


def test_one_axis_is_a_stack_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    chart = make_chart(*swept(monkeypatch, [CTX], flags="-cmoe -np 1"), "ctx", ["-cmoe", "-np", "1"])
    assert chart.title.startswith("How much context fits? ") and chart.title.endswith("on 2× RTX 3090")  # noqa: RUF001
    assert chart.subtitle == "llama-server v0.5.0  ·  -cmoe -np 1"
    assert chart.x_is_context and chart.xs[0] == 4096 and chart.xs[-1] == 1048576
    assert [panel.device for panel in chart.panels] == ["CUDA0", "CUDA1"]
    for i, panel in enumerate(chart.panels):
        assert panel.kind == STACK
        assert [series.label for series in panel.series] == list(BANDS)
        xs = panel.series[0].xs
        assert set(chart.xs) <= set(xs)
        assert panel.series[0].ys == (4 * GIB,) * len(xs)
        assert panel.series[1].ys == tuple(in_proportion(i, x, 1) for x in xs)
        assert [capacity.bytes for capacity in panel.capacities] == [FREE]
        # what does not fit on a device is marked at the last multiple of 256 that does
        room = FREE - 5 * GIB
        last = room // (16384 * (i + 1)) // 256 * 256
        if last < 1048576:
            assert [(mark.x, mark.y) for mark in panel.marks] == [(last, FREE)]
            assert panel.marks[0].label == f"fits to {last:,}"
            assert last in xs
        else:
            assert not panel.marks
    assert chart.panels[0].verdict == "1.0 GiB left at 1M"
    assert chart.panels[1].verdict == "15.0 GiB short at 1M"
    assert chart.verdicts == (f"fits to {chart.panels[1].marks[0].x:,}",)


def test_more_axes_are_a_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    chart = make_chart(*swept(monkeypatch, ["np=1,2,4", CTX]), "ctx")
    for i, panel in enumerate(chart.panels):
        assert panel.kind == LINES
        assert [series.label for series in panel.series] == ["-np 1", "-np 2", "-np 4"]
        assert len({(series.colour, series.style) for series in panel.series}) == 3
        for series, slots in zip(panel.series, (1, 2, 4), strict=True):
            assert series.ys == tuple(5 * GIB + in_proportion(i, x, slots) for x in series.xs)
        assert [capacity.line for capacity in panel.capacities] == [None]
        for mark in panel.marks:
            assert mark.line is not None
            series = panel.series[mark.line]
            used = series.ys[series.xs.index(mark.x)]
            assert used is not None and FREE - (16384 * 4 * 2 * 256) < used <= FREE
    ends = {mark.line: mark.x for mark in chart.panels[1].marks}
    assert chart.verdicts == tuple(f"fits to {ends[i]:,}" for i in range(3))
    assert ends[0] > ends[1] > ends[2]


def test_two_axes_give_colour_and_stroke(monkeypatch: pytest.MonkeyPatch) -> None:
    chart = make_chart(*swept(monkeypatch, ["np=1,2", "fa=on,off", CTX]), "ctx")
    strokes = {series.label: (series.colour, series.style) for series in chart.panels[0].series}
    assert strokes == {
        "-np 1, -fa on": (0, 0),
        "-np 1, -fa off": (0, 1),
        "-np 2, -fa on": (1, 0),
        "-np 2, -fa off": (1, 1),
    }
    assert "one line for all of these: -np 1, -fa on; -np 1, -fa off" in chart.notes


def test_a_rig_that_varies_has_a_capacity_for_each_line(monkeypatch: pytest.MonkeyPatch) -> None:
    over = ["gpu=RTX 3090,RTX 5090", CTX]
    chart = make_chart(*swept(monkeypatch, over, rig=Rig(())), "ctx")
    (panel,) = chart.panels
    assert panel.title == "CUDA0  RTX 3090 or RTX 5090"
    assert [capacity.line for capacity in panel.capacities] == [0, 1]
    assert panel.capacities[0].bytes < panel.capacities[1].bytes
    assert " on " not in chart.title


def test_what_is_refused_is_a_gap_and_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def need(device: int, n_ctx: int, slots: int) -> int | None:
        return None if n_ctx == 16384 else 1000

    chart = make_chart(*swept(monkeypatch, ["ctx=4096:65536", "np=1,2"], need), "ctx")
    assert chart.panels[0].series[0].ys[2] is None
    assert chart.notes[-1] == "llama.cpp does not start at 2 of 10 points (k-v-types-differ)"
    chart = make_chart(*swept(monkeypatch, ["ctx=4096:65536"], lambda *_: None), "ctx")
    assert chart.verdicts == ("does not start",)
    assert chart.panels[0].levels == []


def test_hosts_and_many_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Rig(RIG.gpus, 64 * GIB)
    chart = make_chart(*swept(monkeypatch, [CTX], rig=known), "ctx")
    assert [panel.device for panel in chart.panels] == ["CUDA0", "CUDA1", "host"]
    alone = make_chart(*swept(monkeypatch, [CTX], rig=Rig(())), "ctx")
    assert [panel.device for panel in alone.panels] == ["host"]
    assert alone.panels[0].capacities == ()
    many = make_chart(*swept(monkeypatch, [CTX], rig=Rig(RIG.gpus * 4)), "ctx")
    assert [panel.device for panel in many.panels] == [f"CUDA{i}" for i in range(2, 8)]
    assert many.notes == ("the 6 fullest of 8 devices",)


def test_other_axes_along_the_bottom(monkeypatch: pytest.MonkeyPatch) -> None:
    sweeper, sweep = swept(monkeypatch, ["np=1,2,4,8,16"], flags="-c 262144")
    chart = make_chart(sweeper, sweep, "np")
    assert (chart.x_label, chart.x_is_context) == ("-np", False)
    assert chart.title.startswith("How much memory for which -np?")
    assert chart.panels[0].marks[0].x == 4
    assert "slots" not in chart.subtitle


def test_what_is_no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FlagError, match="at least two numbers"):
        make_chart(*swept(monkeypatch, ["fa=on,off", CTX]), "fa")
    with pytest.raises(FlagError, match="at least two numbers"):
        make_chart(*swept(monkeypatch, ["ctx=4096"]), "ctx")
    with pytest.raises(FlagError, match="16 at most"):
        make_chart(*swept(monkeypatch, ["np=1:20:1", "ctx=4096,8192"]), "ctx")


def test_what_needs_less_as_it_rises_is_marked_where_it_begins_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def need(device: int, n_ctx: int, slots: int) -> int:
        return (100 - slots) * GIB

    chart = make_chart(*swept(monkeypatch, ["np=20,40,60,80,99"], need, flags="-c 4096"), "np")
    assert [(mark.x, mark.label) for mark in chart.panels[0].marks] == [(83, "fits from 83")]
    assert chart.verdicts == ("fits from 83",)
