"""A chart in the terminal: bars for stacks, a grid of characters for lines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from rich.text import Text

from memplan.output.chart import LINES, TIMES, Chart, Panel
from memplan.output.words import to_text, tokens_label

_BANDS = (("█", "#", "blue"), ("▓", "=", "cyan"), ("▒", "+", "yellow"))
_LINES = (
    ("●", "o", "blue"),
    ("▲", "x", "red"),
    ("■", "#", "green"),
    ("◆", "*", "magenta"),
    ("○", "a", "yellow"),
    ("△", "b", "cyan"),
    ("□", "c", "white"),
    ("◇", "d", "bright_blue"),
)
_HEIGHT = 16
_MOST_BARS = 24
_HEADROOM = 1.3


def render_chart(chart: Chart, *, width: int = 100, colour: bool = False, unicode: bool = True) -> str:
    """The chart as text of at most ``width`` columns (never fewer than 50), ending in a newline."""
    width = max(50, min(width, 160))
    lines: list[Text | str] = [Text(_plain(chart.title, unicode), "bold"), _plain(chart.subtitle, unicode)]
    for panel in chart.panels:
        lines.append("")
        title = f"{panel.title}: {panel.verdict}" if panel.verdict else panel.title
        lines.append(Text(_plain(title, unicode), "bold"))
        lines += _grid(chart, panel, width, unicode) if panel.kind == LINES else _bars(chart, panel, width, unicode)
    lines.append(_key(chart, unicode))
    if chart.panels[0].kind == LINES:
        lines += _verdicts(chart, unicode)
    lines += [_plain(note, unicode) for note in chart.notes]
    return to_text(lines, colour)


def _bars(chart: Chart, panel: Panel, width: int, unicode: bool) -> Iterator[Text]:
    """A bar for each value that was asked for and each mark: its bands, and where the capacity ends."""
    xs = panel.series[0].xs
    marked = {mark.x for mark in panel.marks}
    wanted = set(_thinned(chart.xs, _MOST_BARS)) | marked
    capacity = max((c.bytes for c in panel.capacities), default=0)
    highest = max([*panel.levels, capacity, 1])
    if capacity:
        highest = min(highest, int(capacity * _HEADROOM))
    labels = {x: f"{x:,}" for x in xs}
    label_width = max(len(labels[x]) for x in xs if x in wanted)
    room = width - label_width - 16
    edge = round(capacity * room / highest) if capacity else -1
    for i, x in enumerate(xs):
        if x not in wanted:
            continue
        line = Text(f"{labels[x]:>{label_width}} ", "bold" if x in marked else "")
        ys = [series.ys[i] for series in panel.series]
        if any(y is None for y in ys):
            line.append("llama.cpp does not start", "red")
            yield line
            continue
        cells: list[tuple[str, str]] = []
        done = 0
        for y, (block, ascii_block, style) in zip(ys, _BANDS, strict=True):
            done += y or 0
            end = min(room, round(done * room / highest))
            cells += [(block if unicode else ascii_block, style)] * (end - len(cells))
        cells += [(" ", "")] * (room + 1 - len(cells))
        if 0 <= edge <= room:
            cells[edge] = ("│" if unicode else "|", "bold red" if done > capacity else "bold")
        for text, style in cells:
            line.append(text, style)
        line.append(f" {done / (1 << 30):,.1f} GiB", "red" if capacity and done > capacity else "")
        if x in marked:
            line.append(" " + ("◄" if unicode else "<"), "bold")
        yield line
    if capacity:
        label = panel.capacities[0].label
        yield Text(" " * max(0, label_width + 1 + min(edge, room) - len(label)) + label, "dim")


def _grid(chart: Chart, panel: Panel, width: int, unicode: bool) -> Iterator[Text]:
    """Lines as characters; the capacities as dashes, the marks as crosses on them."""
    capacities = sorted({c.bytes for c in panel.capacities})
    lowest = min([*panel.levels, *capacities], default=0)
    highest = max([*panel.levels, *capacities, 1])
    if capacities:
        highest = max(min(highest, int(max(capacities) * _HEADROOM)), *capacities)
    if lowest < highest / 3:
        lowest = 0
    span = max(highest - lowest, 1)
    columns = width - 14
    logs = min(chart.xs) > 0
    place = math.log2 if logs else float
    left, right = place(min(chart.xs)), place(max(chart.xs))

    def column(x: float) -> int:
        return round((place(x) - left) / ((right - left) or 1) * (columns - 1))

    def row(y: float) -> int:
        return _HEIGHT - 1 - round((y - lowest) / span * (_HEIGHT - 1))

    canvas: list[list[tuple[str, str]]] = [[(" ", "")] * columns for _ in range(_HEIGHT)]
    for capacity in capacities:
        canvas[row(capacity)] = [("╌" if unicode else "-", "dim")] * columns
    for i, series in enumerate(panel.series):
        symbol, ascii_symbol, style = _LINES[i % len(_LINES)]
        points = [(x, y) for x, y in zip(series.xs, series.ys, strict=True) if y is not None]
        for x, y in _between(points, columns):
            r = row(y)
            if 0 <= r < _HEIGHT:
                canvas[r][column(x)] = (symbol if unicode else ascii_symbol, style)
    for mark in panel.marks:
        canvas[row(mark.y)][column(mark.x)] = ("✕" if unicode else "X", "bold red")
    for r, cells in enumerate(canvas):
        level = lowest + span * (_HEIGHT - 1 - r) / (_HEIGHT - 1)
        line = Text(f"{level / (1 << 30):>7,.1f} GiB" if r % 3 == 0 else " " * 11)
        line.append(" │" if unicode else " |", "dim")
        for text, style in cells:
            line.append(text, style)
        line.rstrip()
        yield line
    yield Text(" " * 12 + ("└" + "─" * columns if unicode else "+" + "-" * columns), "dim")
    label_of = tokens_label if chart.x_is_context else str
    ticks = [" "] * (columns + 13)
    free = 0
    for x in _thinned(chart.xs, 9):
        label = label_of(x)
        start = min(13 + column(x) - len(label) // 2, len(ticks) - len(label))
        if start >= free:
            ticks[start : start + len(label)] = label
            free = start + len(label) + 2
    yield Text("".join(ticks).rstrip())


def _between(points: Sequence[tuple[int, int]], columns: int) -> Iterator[tuple[float, float]]:
    for (x0, y0), (x1, y1) in pairwise(points):
        for k in range(columns):
            yield x0 + (x1 - x0) * k / columns, y0 + (y1 - y0) * k / columns
    yield from points[-1:]


def _thinned(xs: Sequence[int], most: int) -> list[int]:
    """At most ``most`` of the values, the first and last among them."""
    if len(xs) <= most:
        return list(xs)
    return sorted({xs[round(i * (len(xs) - 1) / (most - 1))] for i in range(most)})


def _key(chart: Chart, unicode: bool) -> Text:
    key = Text()
    if chart.panels[0].kind != LINES:
        for series, (block, ascii_block, style) in zip(chart.panels[0].series, _BANDS, strict=True):
            key.append(block if unicode else ascii_block, style)
            key.append(f" {series.label}  ", "dim")
    key.append(f"across: {chart.x_label}", "dim")
    return key


def _verdicts(chart: Chart, unicode: bool) -> Iterator[Text]:
    for i, (series, verdict) in enumerate(zip(chart.panels[0].series, chart.verdicts, strict=True)):
        symbol, ascii_symbol, style = _LINES[i % len(_LINES)]
        line = Text(f"{symbol if unicode else ascii_symbol} ", style)
        line.append(f"{series.label}: ")
        line.append(verdict, "bold")
        yield line


def _plain(text: str, unicode: bool) -> str:
    return text if unicode else text.replace(TIMES, "x").replace("·", "-").encode("ascii", "replace").decode()
