"""A chart in the terminal: bars for stacks, a grid of characters for lines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from rich.text import Text

from memplan.output.chart import LINES, Chart, Panel
from memplan.output.chart_words import TIMES
from memplan.output.table import PARTS
from memplan.output.words import to_text, tokens_label
from memplan.output.wrapping import wrap_words

_BANDS = [part[1:4] for part in PARTS]
_LINES = (
    ("●", "o", "blue"),
    ("▲", "x", "red"),
    ("■", "#", "green"),
    ("◆", "*", "magenta"),
    ("○", "a", "yellow"),
    ("△", "b", "cyan"),
    ("□", "c", "white"),
    ("◇", "d", "bright_blue"),
    *(
        (letter, letter, colour)
        for letter, colour in zip(
            "efghijkm", ("blue", "red", "green", "magenta", "yellow", "cyan", "white", "bright_blue"), strict=True
        )
    ),
)
_SIGNS = {
    "free": ("│", "|"),
    "level": ("╌", "-"),
    "last": ("◄", "<"),
    "alone": ("◁", "("),
    "cross": ("✕", "X"),
    "on": ("→", ">"),
}
_HEIGHT = 16
_MOST_BARS = 24


def render_chart(
    chart: Chart, *, width: int = 100, colour: bool = False, unicode: bool = True, log_x: bool = True
) -> str:
    """The chart as text of at most ``width`` columns (never fewer than 50), ending in a newline.

    ``log_x``: doublings at equal distances, where lines are drawn.
    """
    width = max(50, min(width, 160))
    is_lines = chart.panels[0].kind == LINES
    lines: list[Text | str] = [Text(line, "bold") for line in _folded(chart.title, width, unicode)]
    lines += _folded(chart.subtitle, width, unicode)
    if not is_lines:
        lines += [Text(line, "bold") for line in _folded(chart.answers[0], width, unicode)]
    levels = [_levels(panel) for panel in chart.panels]
    if chart.shared_scale:
        levels = [(min(low for low, _ in levels), max(high for _, high in levels))] * len(levels)
    for panel, (low, high) in zip(chart.panels, levels, strict=True):
        lines.append("")
        title = f"{panel.title}: {panel.verdict}" if panel.verdict else panel.title
        lines += [Text(line, "bold") for line in _folded(title, width, unicode)]
        if is_lines:
            lines += _grid(chart, panel, (low, high), width, unicode, log_x)
        else:
            lines += _bars(chart, panel, width, unicode)
    lines += _key(chart, width, unicode)
    if is_lines:
        lines += ["the axis of memory does not begin at 0"] * any(low for low, _ in levels)
        lines += _verdicts(chart, unicode)
    for note in chart.notes:
        lines += _folded(note, width, unicode)
    return to_text(lines, colour, width)


def _levels(panel: Panel) -> tuple[int, int]:
    """The lowest and the highest level of a grid."""
    levels = [*panel.levels, *(capacity.bytes for capacity in panel.capacities)]
    lowest = min(levels, default=0)
    return (0 if lowest < panel.top / 3 else lowest), panel.top


def _bars(chart: Chart, panel: Panel, width: int, unicode: bool) -> Iterator[Text]:
    """A bar for each value that was asked for and each mark: its bands, and where the capacity ends."""
    xs = panel.series[0].xs
    marked = {mark.x: mark.whole for mark in panel.marks}
    wanted = set(_thinned(chart.xs, _MOST_BARS)) | set(marked)
    capacity = max((c.bytes for c in panel.capacities), default=0)
    highest = panel.top
    labels = {x: f"{x:,}" for x in xs}
    label_width = max(len(labels[x]) for x in xs if x in wanted)
    room = width - label_width - 16
    edge = round(capacity * room / highest) if capacity else -1
    if highest > capacity > 0:
        edge = min(edge, room - 2)
    bar = _sign("free", unicode)
    for i, x in enumerate(xs):
        if x not in wanted:
            continue
        line = Text(f"{labels[x]:>{label_width}} ", "bold" if marked.get(x) else "")
        ys = [series.ys[i] for series in panel.series]
        if any(y is None for y in ys):
            line.append("llama.cpp does not start", "red")
            yield line
            continue
        cells: list[tuple[str, str]] = []
        done = 0
        for y, series in zip(ys, panel.series, strict=True):
            block, ascii_block, style = _BANDS[series.colour]
            done += y or 0
            end = min(room, round(done * room / highest))
            cells += [(block if unicode else ascii_block, style)] * (end - len(cells))
        over = capacity > 0 and done > capacity
        if over:
            # what is too much passes the line, and what is not stays before it, however little it is
            cells += cells[-1:] * (edge + 2 - len(cells))
        elif capacity:
            del cells[edge:]
        if done > highest:
            cells[-1] = (_sign("on", unicode), "bold red")
        cells += [(" ", "")] * (room + 1 - len(cells))
        if 0 <= edge <= room:
            cells[edge] = (bar, "bold red" if over else "bold")
        for text, style in cells:
            line.append(text, style)
        line.append(f" {done / (1 << 30):,.1f} GiB", "red" if over else "")
        if over:
            line.append(" !", "bold red")
        elif x in marked:
            line.append(" " + _sign("last" if marked[x] else "alone", unicode), "bold")
        yield line
    if capacity:
        label = panel.capacities[0].label
        yield Text(" " * max(0, label_width + 1 + min(edge, room) - len(label)) + label, "dim")


def _grid(
    chart: Chart, panel: Panel, levels: tuple[int, int], width: int, unicode: bool, log_x: bool
) -> Iterator[Text]:
    """Lines as characters; the capacities as dashes with their words on them, the marks as crosses."""
    lowest, highest = levels
    capacities = {capacity.bytes: capacity.label for capacity in panel.capacities}
    span = max(highest - lowest, 1)
    columns = width - 14
    logs = log_x and min(chart.xs) > 0
    place = math.log2 if logs else float
    left, right = place(min(chart.xs)), place(max(chart.xs))

    def column(x: float) -> int:
        return round((place(x) - left) / ((right - left) or 1) * (columns - 1))

    def row(y: float) -> int:
        return _HEIGHT - 1 - round((y - lowest) / span * (_HEIGHT - 1))

    canvas: list[list[tuple[str, str]]] = [[(" ", "")] * columns for _ in range(_HEIGHT)]
    for capacity in capacities:
        canvas[row(capacity)] = [(_sign("level", unicode), "dim")] * columns
    for i, series in enumerate(panel.series):
        symbol, ascii_symbol, style = _LINES[i % len(_LINES)]
        points = [(x, y) for x, y in zip(series.xs, series.ys, strict=True) if y is not None]
        for x, y in _between(points, columns):
            r = row(y)
            if 0 <= r < _HEIGHT:
                canvas[r][column(x)] = (symbol if unicode else ascii_symbol, style)
    for mark in panel.marks:
        canvas[row(mark.y)][column(mark.x)] = (_sign("cross", unicode), "bold red")
    for capacity, label in capacities.items():
        _write(canvas[row(capacity)], f" {label} ", _sign("level", unicode))
    # a level stands at its own row, and nothing else beside it
    exact = {row(capacity): capacity for capacity in capacities}
    for r, cells in enumerate(canvas):
        level = exact.get(r, lowest + span * (_HEIGHT - 1 - r) / (_HEIGHT - 1))
        shown = r in exact or (r % 3 == 0 and not {r - 1, r + 1} & set(exact))
        line = Text(f"{level / (1 << 30):>7,.1f} GiB" if shown else " " * 11)
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


def _write(cells: list[tuple[str, str]], text: str, over: str) -> None:
    """Write into a row where it shows nothing but ``over``, the first such place; nowhere if there is none."""
    for start in range(1, len(cells) - len(text)):
        if all(cell == over for cell, _ in cells[start : start + len(text)]):
            cells[start : start + len(text)] = [(char, "bold") for char in text]
            return


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


def _key(chart: Chart, width: int, unicode: bool) -> Iterator[Text]:
    """What blocks and signs stand for, and what runs along."""
    is_lines = chart.panels[0].kind == LINES
    marks = [mark for panel in chart.panels for mark in panel.marks]
    limited = [panel for panel in chart.panels if panel.capacities]
    keys: list[Text] = []
    if not is_lines:
        for series in chart.panels[0].series:
            block, ascii_block, style = _BANDS[series.colour]
            keys.append(Text(block if unicode else ascii_block, style).append(f" {series.label}", "dim"))
    keys.append(Text(f"{'across' if is_lines else 'down'}: {chart.x_label}", "dim"))
    yield from _filled(keys, width)
    said: list[str] = []
    if is_lines:
        said += [f"{_sign('level', unicode)} what is free"] * bool(limited)
        said += [f"{_sign('cross', unicode)} the last that fits on that device"] * bool(marks)
    else:
        said += [f"{_sign('free', unicode)} what is free"] * bool(limited)
        said += [f"{_sign('last', unicode)} the last that fits"] * any(mark.whole for mark in marks)
        said += [f"{_sign('alone', unicode)} the last on that device alone"] * any(not mark.whole for mark in marks)
        over = any(level > max(c.bytes for c in panel.capacities) for panel in limited for level in panel.levels)
        said += ["! more than that"] * over
        cut = any(level > panel.top for panel in limited for level in panel.levels)
        said += [f"{_sign('on', unicode)} goes on"] * cut
    yield from _filled([Text(part, "dim") for part in said], width)


def _filled(parts: Sequence[Text], width: int) -> Iterator[Text]:
    """Parts side by side, as many in a line as fit."""
    line = Text()
    for part in parts:
        if line and len(line) + 2 + len(part) > width:
            yield line
            line = Text()
        line.append("  " if line else "")
        line.append_text(part)
    if line:
        yield line


def _sign(name: str, unicode: bool) -> str:
    return _SIGNS[name][0 if unicode else 1]


def _folded(text: str, width: int, unicode: bool) -> list[str]:
    """The text in lines of at most ``width``, but for longer words."""
    return wrap_words(_plain(text, unicode), width) or [""]


def _verdicts(chart: Chart, unicode: bool) -> Iterator[Text]:
    for i, (series, verdict) in enumerate(zip(chart.panels[0].series, chart.verdicts, strict=True)):
        symbol, ascii_symbol, style = _LINES[i % len(_LINES)]
        line = Text(f"{symbol if unicode else ascii_symbol} ", style)
        line.append(f"{series.label}: ")
        line.append(verdict, "bold")
        yield line


def _plain(text: str, unicode: bool) -> str:
    return text if unicode else text.replace(TIMES, "x").replace("·", "-").encode("ascii", "replace").decode()
