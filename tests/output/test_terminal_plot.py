from __future__ import annotations

import pytest

from memplan.output.chart import make_chart
from memplan.output.terminal_plot import render_chart
from tests.output.pictures import swept


@pytest.mark.parametrize("unicode", [True, False])
@pytest.mark.parametrize("width", [20, 80, 120])
@pytest.mark.parametrize("over", [["ctx=4096:1048576"], ["ctx=4096:1048576", "np=1,4"], ["ctx=4096,8192"]])
def test_charts_in_the_terminal(over: list[str], width: int, unicode: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    chart = make_chart(*swept(monkeypatch, over, flags="-cmoe"), "ctx", ["-cmoe"])
    text = render_chart(chart, width=width, unicode=unicode)
    lines = text.splitlines()
    drawn = [line for line in lines if line.endswith((" GiB", " <", " ◄")) or line.startswith(" ")]
    assert drawn and max(len(line) for line in drawn) <= max(width, 50) + 2
    assert unicode or text.isascii()
    assert "\x1b" not in text
    assert all(panel.device in text for panel in chart.panels)
    if len(over) == 1:
        assert "4,096 " in text
        for panel in chart.panels:
            assert all(any(line.startswith(f"{mark.x:>9,} ") or f"{mark.x:,} " in line for line in lines)
                       for mark in panel.marks)  # fmt: skip
    else:
        assert [line.partition(": ")[2] for line in lines if ": fits to" in line] == list(chart.verdicts)


def test_bars_are_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    chart = make_chart(*swept(monkeypatch, ["ctx=4096,524288,1048576"], flags="-np 1"), "ctx")
    bars = [
        line for line in render_chart(chart, width=120, unicode=False).splitlines() if " GiB" in line and "#" in line
    ]
    small, half, whole = bars[:3]
    assert small.count("=") <= 1
    assert abs(whole.count("=") - 2 * half.count("=")) <= 2
    assert small.count("#") == half.count("#") == whole.count("#")
    assert whole.rstrip().endswith("21.0 GiB")


def test_colours_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    chart = make_chart(*swept(monkeypatch, ["ctx=4096,8192"]), "ctx")
    assert "\x1b[" in render_chart(chart, colour=True)


def test_what_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    chart = make_chart(*swept(monkeypatch, ["ctx=4096,8192"], lambda *_: None), "ctx")
    assert "llama.cpp does not start" in render_chart(chart)
    lines = make_chart(*swept(monkeypatch, ["ctx=4096,8192", "np=1,2"], lambda *_: None), "ctx")
    assert "does not start" in render_chart(lines)
