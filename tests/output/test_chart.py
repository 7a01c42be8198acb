from __future__ import annotations

from dataclasses import replace

import pytest

from memplan.backends.devices import Rig
from memplan.errors import FlagError
from memplan.output.chart import BANDS, LINES, STACK, make_chart
from memplan.sweeping.largest import candidates, largest
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
        assert [series.label for series in panel.series] == list(BANDS)[:4]
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
    last = chart.panels[1].marks[0].x
    assert chart.verdicts == (f"fits to {last:,}",)
    assert chart.answers == (f"fits to {last:,} tokens (CUDA1 is short from {last + 256:,} on)",)
    assert chart.in_short == chart.answers[0]


def test_the_reserve_is_left_as_by_the_largest_value(monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = (300 << 20, 2 * GIB)
    sweeper, sweep = swept(monkeypatch, [CTX], flags="-np 1", reserve=reserve)
    chart = make_chart(sweeper, sweep, "ctx")
    axis, values = candidates(sweeper, "ctx")
    last = largest(range(256, 1048577, 256), lambda x: sweeper.at((x,))).value
    assert axis.is_context and set(values) == set(chart.xs) and last == (15 * GIB) // 32768
    first, second = chart.panels
    assert [panel.capacities[0].bytes for panel in chart.panels] == [FREE - kept for kept in reserve]
    assert second.capacities[0].label == "22.0 GiB free less 2 reserve"
    assert [(mark.x, mark.y, mark.whole) for mark in second.marks] == [(last, FREE - 2 * GIB, True)]
    assert chart.verdicts == (f"fits to {last:,}",)
    said = f"(with {last + 256:,}, CUDA1 has 2,040 MiB left, less than its reserve of 2,048)"
    assert chart.answers == (f"fits to {last:,} tokens {said}",)
    assert (first.verdict, second.verdict) == ("1.0 GiB left at 1M", "15.0 GiB short at 1M")


def test_what_starts_everywhere_and_keeps_no_reserve_is_tight(monkeypatch: pytest.MonkeyPatch) -> None:
    def need(device: int, n_ctx: int, slots: int) -> int:
        return (16 << 30) + n_ctx

    over, reserve = ["ctx=4096:1048576", "np=1,2"], (3 * GIB,) * 2
    chart = make_chart(*swept(monkeypatch, over[:1], need, reserve=reserve), "ctx")
    assert chart.verdicts == ("is tight at best",)
    assert chart.answers[0] == (
        "is tight with any context asked for: at best, with 4,096 tokens, CUDA0 has 1,023 MiB left, less than its"
        " reserve of 3,072"
    )
    assert not any(panel.marks for panel in chart.panels)
    assert chart.panels[0].verdict == "1.0 GiB left at 1M, less than the reserve"
    two = make_chart(*swept(monkeypatch, over, need, reserve=reserve), "ctx")
    assert two.in_short == chart.in_short


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


def test_lines_that_are_the_same_everywhere_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    chart = make_chart(*swept(monkeypatch, ["np=1,2", "fa=on,off", CTX]), "ctx")
    strokes = {series.label: (series.colour, series.style) for series in chart.panels[0].series}
    assert strokes == {"-np 1, -fa on / -np 1, -fa off": (0, 0), "-np 2, -fa on / -np 2, -fa off": (1, 0)}
    assert len(chart.verdicts) == len(chart.answers) == 2

    def need(device: int, n_ctx: int, slots: int) -> int:
        return n_ctx * (slots if device else 1)

    chart = make_chart(*swept(monkeypatch, ["np=1,2", CTX], need), "ctx")
    assert len(chart.verdicts) == 2
    assert "one line on CUDA0: -np 1; -np 2" in chart.notes


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
    said = "llama.cpp does not start at 2 of 10 points: does not support different K (q8_0) and V (f16) cache types"
    assert said in chart.notes
    chart = make_chart(*swept(monkeypatch, ["ctx=4096:65536"], lambda *_: None), "ctx")
    assert chart.verdicts == ("does not start",)
    assert chart.answers[0].startswith("llama.cpp does not start: does not support different K (q8_0)")
    assert chart.panels[0].levels == []


def test_hosts_and_many_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Rig(RIG.gpus, 64 * GIB)
    chart = make_chart(*swept(monkeypatch, [CTX], rig=known), "ctx")
    assert [panel.device for panel in chart.panels] == ["CUDA0", "CUDA1", "host"]
    alone = make_chart(*swept(monkeypatch, [CTX], rig=Rig(())), "ctx")
    assert [panel.device for panel in alone.panels] == ["host"]
    assert alone.panels[0].capacities == ()
    many = make_chart(*swept(monkeypatch, [CTX], rig=Rig(RIG.gpus * 7)), "ctx")
    assert [panel.device for panel in many.panels] == [f"CUDA{i}" for i in range(2, 14)]
    assert many.notes[0] == "the 12 fullest of 14 devices; not shown: CUDA0, CUDA1"
    assert many.notes[1:] == ("not included: the CUDA context and the code of kernels (see --reserve)",)
    assert alone.answers[0].startswith("needs up to ") and "--host-mib" in alone.answers[0]


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


def test_what_fits_is_what_fits_on_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    def need(device: int, n_ctx: int, slots: int) -> int:
        return (device + 1) * 65536 * n_ctx

    for over in ([CTX], [CTX, "np=1,2"]):
        chart = make_chart(*swept(monkeypatch, over, need), "ctx")
        first, second = (panel.marks for panel in chart.panels)
        assert len(first) == len(second) == len(chart.verdicts)
        for alone, mark, verdict in zip(first, second, chart.verdicts, strict=True):
            assert mark.whole and mark.label == verdict == f"fits to {mark.x:,}"
            assert not alone.whole and alone.x > mark.x
            assert alone.label == f"CUDA0 alone: to {alone.x:,}"


def test_where_nothing_fits_it_is_said_and_all_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    chart = make_chart(*swept(monkeypatch, [CTX], lambda device, n_ctx, _: 30 * GIB + n_ctx), "ctx")
    assert chart.verdicts == ("does not fit",)
    assert chart.answers[0].startswith("does not fit with any context asked for: at best, with 4,096 tokens, CUDA0 is")
    panel = chart.panels[0]
    assert panel.verdict == "short throughout: 13.0 GiB at 4K, 13.0 GiB at 1M"
    assert panel.top == max(panel.levels)
    # where some fits, what needs far more leaves the picture at the top
    steep = make_chart(*swept(monkeypatch, [CTX], lambda device, n_ctx, _: 65536 * n_ctx), "ctx").panels[0]
    assert FREE < steep.top < max(steep.levels)


def test_values_that_llama_cpp_takes_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    over = ["llama=b9924,v0.5.0", "indexer=fused,unfused", "ctx=4096,8192"]
    sweeper, sweep = swept(monkeypatch, over)
    points = tuple(replace(p, estimate=replace(p.estimate, llama=str(p.values[0]))) for p in sweep.points)
    sweeper._known.update({point.values: point.estimate for point in points})
    chart = make_chart(sweeper, replace(sweep, points=points), "ctx")
    assert [series.label for series in chart.panels[0].series] == [
        "b9924, no fused indexer (b9924 has none) / b9924, no fused indexer"
        " / v0.5.0, fused indexer / v0.5.0, no fused indexer"
    ]
    assert any(note.startswith("b9924 has no fused indexer") for note in chart.notes)


def test_how_slots_share_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = [
        make_chart(*swept(monkeypatch, [CTX], flags=flags), "ctx").x_label for flags in ("-np 1", "-np 4", "-np 4 -kvu")
    ]
    assert labels == [
        "tokens of context (-c)",
        "tokens of context (-c), of which each slot has its part",
        "tokens of context (-c), shared by all slots",
    ]
    varied = make_chart(*swept(monkeypatch, [CTX, "np=1,2,4"]), "ctx")
    assert any("context is that of all slots together" in note for note in varied.notes)


def test_all_lines_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    two = make_chart(*swept(monkeypatch, [CTX, "np=1,2"]), "ctx")
    assert two.in_short == f"-np 1: {two.verdicts[0]}; -np 2: {two.verdicts[1]}"
    many = make_chart(*swept(monkeypatch, [CTX, "np=1,2,4,8,200"]), "ctx")
    ends = [verdict.removeprefix("fits to ") for verdict in many.verdicts[:4]]
    assert many.verdicts[4] == "does not fit"
    assert many.in_short == f"of 5 lines 4 fit to {ends[3]} ... {ends[0]}, 1 do not fit"
