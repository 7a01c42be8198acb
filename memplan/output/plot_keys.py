"""Which line of a picture is which: names at the lines' ends where they fit, or a key above the panels.

Everything is measured first, so that no name passes the picture's edge. Lengths are inches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from memplan.output.chart import LINES, Chart, Panel, Series
from memplan.output.figures import EDGE, STYLES, Theme
from memplan.output.lettering import LINE, Ruler

NAME, VERDICT = 8.5, 7.5
"""Sizes of what stands at a line's end."""

WIDEST_NAME = 2.3
MOST_ENDS = 8
"""Names up to this width, and so many lines, can stand at their ends; what is more goes into a key."""

SAMPLE = 0.3
"""A piece of the line before its name, where strokes differ."""

_HANDLE, _PAD, _SPACING, _BORDER, _BETWEEN = 2.4, 0.8, 1.6, 0.2, 0.5
"""A key's samples, what follows them, what is between its columns, around it and between its rows, in ems."""


@dataclass(frozen=True, slots=True)
class EndKey:
    """Names at the ends of the lines; ``width``: what they take to the right of the panel."""

    width: float
    samples: bool


@dataclass(frozen=True, slots=True)
class LineKey:
    """A key above the panels: an entry a line, in so many columns."""

    entries: tuple[str, ...]
    columns: int
    size: float
    height: float


def stroke(series: Series, theme: Theme) -> tuple[str, Any]:
    """A line's colour and stroke."""
    n = len(theme.lines)
    return theme.lines[series.colour % n], STYLES[(series.style + series.colour // n) % len(STYLES)]


def fit_end_key(chart: Chart, ruler: Ruler, theme: Theme) -> EndKey | None:
    """How names stand at the lines' ends; None where there is no room for them."""
    panel = chart.panels[0]
    if panel.kind != LINES or len(chart.panels) > 1 or len(panel.series) > MOST_ENDS:
        return None
    widest = ruler.widest([series.label for series in panel.series], NAME, True)
    widest = max(widest, ruler.widest(chart.verdicts, VERDICT))
    samples = any(stroke(series, theme)[1] != STYLES[0] for series in panel.series)
    return EndKey(0.12 + (SAMPLE if samples else 0) + widest, samples) if widest <= WIDEST_NAME else None


def fit_line_key(chart: Chart, width: float, ruler: Ruler) -> LineKey:
    """The key with as many columns as there is room for, or in one with long names in several lines."""
    pairs = zip(chart.panels[0].series, chart.verdicts, strict=True)
    entries = [f"{series.label}: {verdict}" for series, verdict in pairs]
    for size in (8.0, 7.0):
        em = size / 72
        for columns in range(min(4, len(entries)), 0, -1):
            held = [ruler.widest(column, size) for column in _dealt(entries, columns)]
            around = columns * (_HANDLE + _PAD) + (columns - 1) * _SPACING + 2 * _BORDER
            if sum(held) + around * em <= width:
                return _key(entries, columns, size)
    room = width - (_HANDLE + _PAD + 2 * _BORDER) * 7.0 / 72
    broken = ["\n".join(ruler.wrapped(entry, room, 7.0, between=r"(?<=,) ", most=12)) for entry in entries]
    return _key(broken, 1, 7.0)


def _dealt(entries: Sequence[str], columns: int) -> list[list[str]]:
    """The entries column by column; the first columns hold one more where they do not come out even."""
    each, more = divmod(len(entries), columns)
    ends = [k * each + min(k, more) for k in range(columns + 1)]
    return [list(entries[a:b]) for a, b in pairwise(ends)]


def _key(entries: Sequence[str], columns: int, size: float) -> LineKey:
    def tall(column: Sequence[str]) -> float:
        lines = sum(entry.count("\n") + 1 for entry in column)
        return lines * size * LINE + (len(column) - 1 + 2 * _BORDER) * _BETWEEN * size / 72

    return LineKey(tuple(entries), columns, size, max(map(tall, _dealt(entries, columns))))


def draw_line_key(figure: Any, chart: Chart, key: LineKey, theme: Theme, y: float) -> None:
    """Draw the key, ``y`` inches below the top."""
    from matplotlib.lines import Line2D

    width, height = figure.get_size_inches()
    handles = []
    for series, entry in zip(chart.panels[0].series, key.entries, strict=True):
        colour, style = stroke(series, theme)
        handles.append(Line2D([], [], color=colour, linestyle=style, linewidth=2.0, label=entry))
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(EDGE / width, 1 - y / height), fontsize=key.size,
        frameon=False, ncols=key.columns, labelcolor=theme.text, handlelength=_HANDLE, handletextpad=_PAD,
        borderpad=_BORDER, borderaxespad=0, columnspacing=_SPACING, labelspacing=_BETWEEN,
    )  # fmt: skip


def draw_band_key(figure: Any, panel: Panel, theme: Theme, y: float) -> None:
    """Draw the key of a stack's bands at the right, ``y`` inches below the top."""
    from matplotlib.patches import Patch

    width, height = figure.get_size_inches()
    handles = [Patch(color=theme.bands[series.colour], label=series.label) for series in panel.series]
    figure.legend(
        handles=handles, loc="upper right", bbox_to_anchor=(1 - EDGE / width, 1 - y / height), fontsize=8,
        frameon=False, ncols=len(handles), labelcolor=theme.text, handlelength=1.0, handleheight=0.9, columnspacing=1.2,
        borderpad=0.2, borderaxespad=0,
    )  # fmt: skip


def draw_end_key(axes: Any, panel: Panel, verdicts: Sequence[str], theme: Theme, key: EndKey) -> None:
    """Each line's name and how far it fits, at its right end; moved apart where they would overlap."""
    low, high = axes.get_ylim()
    ends: list[tuple[float, int]] = []
    for i, series in enumerate(panel.series):
        last = next((y for y in reversed(series.ys) if y is not None), None)
        shown = min(max(last if last is not None else low, low), high)
        at = axes.transAxes.inverted().transform(axes.transData.transform((series.xs[-1], shown)))[1]
        ends.append((float(at), i))
    ends.sort()
    tall = axes.get_position().height * axes.get_figure().get_figheight()
    gap = (NAME + VERDICT) * LINE / tall
    places: list[float] = []
    for y, _ in ends:
        places.append(max(y, places[-1] + gap if places else 0.03))
    if places[-1] > 0.98:
        places[-1] = 0.98
        for k in range(len(places) - 2, -1, -1):
            places[k] = min(places[k], places[k + 1] - gap)
    for (_, i), place in zip(ends, places, strict=True):
        colour, style = stroke(panel.series[i], theme)
        start = 8.0
        if key.samples:
            start += 72 * SAMPLE
            wide = axes.get_position().width * axes.get_figure().get_figwidth()
            sample = (1 + 0.07 / wide, 1 + (SAMPLE + 0.04) / wide)
            middle = place + 0.5 * NAME / 72 / tall
            axes.plot(sample, [middle, middle], color=colour, linestyle=style, linewidth=1.8, clip_on=False,
                      transform=axes.transAxes, label="_sample")  # fmt: skip
        for text, size, weight, tone, align in (
            (panel.series[i].label, NAME, "bold", colour, "bottom"),
            (verdicts[i], VERDICT, "normal", theme.muted, "top"),
        ):
            axes.annotate(text, (1, place), xycoords="axes fraction", xytext=(start, 0), textcoords="offset points",
                          color=tone, fontsize=size, fontweight=weight, ha="left", va=align,
                          annotation_clip=False)  # fmt: skip
