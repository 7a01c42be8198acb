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


@pytest.mark.parametrize("most", [40 * 1024, 17 * 1024 + 2])
def test_what_is_too_much_passes_the_line(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # by 1 MiB too much: less than a column
    need = {4096: 16 * 1024, 8192: 17 * 1024, 16384: 17 * 1024 + 1, 32768: most}
    over = [f"ctx={','.join(map(str, need))}"]
    chart = make_chart(
        *swept(monkeypatch, over, lambda device, n_ctx, _: min(y for x, y in need.items() if x >= n_ctx) << 20), "ctx"
    )
    for width in (50, 60, 100):
        rows = [line for line in render_chart(chart, width=width).splitlines() if " GiB" in line and "│" in line]
        bars = [row.partition(" GiB")[0].rpartition(" ")[0] for row in rows]
        assert len({bar.index("│") for bar in bars}) == 1
        for bar, row in zip(bars, rows, strict=True):
            beyond = bar.partition("│")[2].strip()
            assert bool(beyond) == row.endswith(" !")
            assert ("→" in beyond) == (" 45.0 GiB" in row)
    said = render_chart(chart, width=100)
    assert "│ what is free  ◄ the last that fits  ! more than that" in said
    assert ("→ goes on" in said) == (most == 40 * 1024)


def test_levels_stand_at_their_own_rows_and_panels_share_a_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    chart = make_chart(*swept(monkeypatch, ["ctx=4096:1048576", "np=1,2"]), "ctx")
    lines = render_chart(chart, width=80).splitlines()
    levels = [line for line in lines if " 22.0 GiB free " in line]
    assert len(levels) == 2 and all(line.startswith("   22.0 GiB │") for line in levels)
    axes = [[line.partition("│")[0] for line in lines if " GiB │" in line[:14]]]
    half = len(axes[0]) // 2
    assert axes[0][:half] == axes[0][half:]
    assert "╌ what is free  ✕ the last that fits on that device" in lines


def test_each_line_has_a_sign_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    chart = make_chart(*swept(monkeypatch, ["ctx=4096,8192", "np=1:16:1"]), "ctx")
    for unicode in (True, False):
        keys = [
            line for line in render_chart(chart, unicode=unicode).splitlines() if ": fits" in line and "-np" in line
        ]
        assert len(keys) == len({line[0] for line in keys}) == 16


def test_equal_steps_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    chart = make_chart(*swept(monkeypatch, ["ctx=4096:1048576", "np=1,2"]), "ctx")
    assert render_chart(chart) != render_chart(chart, log_x=False)
