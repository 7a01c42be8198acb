"""A chart as a figure: stacked bands or lines against a capacity, with the last value that fits marked."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from memplan.output.chart import BANDS, LINES, STACK, Chart, Panel, Series
from memplan.output.figures import (
    DARK,
    LIGHT,
    STYLES,
    Theme,
    dress,
    gib_ticks,
    halo,
    headings,
    new_figure,
    shrunk,
    size_label,
    title_lines,
)
from memplan.output.words import tokens_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 8.0, 4.5
"""Inches of a picture with one row of panels."""

HEADROOM = 1.3
"""How far above the capacity a panel goes, at most: what needs more leaves it at the top."""

FINE = 12
"""Pieces that a stretch between two values is drawn in: memory grows in proportion, which is a curve over doublings."""


@dataclass(frozen=True, slots=True)
class _Scale:
    log_x: bool
    log_y: bool
    columns: int


def chart_figure(chart: Chart, *, dark: bool = False, log_x: bool = True, log_y: bool = False) -> Figure:
    """The figure of a chart.

    ``dark``: on a dark ground.  ``log_x``, ``log_y``: doublings at equal distances. Raises OutputError without
    matplotlib.
    """
    theme = DARK if dark else LIGHT
    count = len(chart.panels)
    columns = 1 if count == 1 else 3 if count > 4 else 2
    rows = -(-count // columns)
    lines = chart.panels[0].kind == LINES
    title = title_lines(chart.title)
    # the key of a stack stands to the right of the last line
    subtitle = textwrap.wrap(chart.subtitle, 118 if lines else 84, break_long_words=False)[:3]
    keys = -(-len(chart.verdicts) // 3) if lines and columns > 1 else 0
    above = 0.14 + 0.25 * len(title) + 0.17 * len(subtitle) + 0.19 * keys + 0.36
    below = 0.62 + 0.14 * len(chart.notes)
    gap = 0.66
    height = max(HEIGHT, above + below + 2.2 * rows + gap * (rows - 1))
    panel_height = (height - above - below - gap * (rows - 1)) / rows
    figure = new_figure(WIDTH, height, theme)
    headings(figure, title, subtitle, theme)
    right = 0.79 if lines and columns == 1 else 0.975
    low_x, high_x = min(chart.xs), max(chart.xs)
    levels = [_levels(panel, log_y) for panel in chart.panels]
    alike = _alike(chart.panels)
    if alike:
        levels = [(min(low for low, _ in levels), max(high for _, high in levels))] * count
    # what does not even triple is better seen in equal steps
    scale = _Scale(log_x and low_x > 0 and high_x >= 3 * low_x, log_y, columns)
    grid = figure.subplots(rows, columns, squeeze=False)
    figure.subplots_adjust(
        left=0.085, right=right, top=1 - above / height, bottom=below / height, wspace=0.2, hspace=gap / panel_height
    )
    for i, axes in enumerate(grid.flat):
        if i < count:
            _draw(axes, chart, chart.panels[i], levels[i], theme, scale)
            if alike and i % columns:
                axes.tick_params(labelleft=False)
        else:
            axes.set_axis_off()
    x_label = (below - 0.50) / height
    figure.text((0.085 + right) / 2, x_label, chart.x_label, color=theme.muted, fontsize=8.5, ha="center", va="bottom")
    key_top = 1 - (above - 0.36 - 0.19 * keys) / height
    if keys:
        _line_key(figure, chart, theme, key_top)
    elif not lines:
        _band_key(figure, theme, 1 - (above - 0.47) / height, right)
    for k, note in enumerate(reversed(chart.notes)):
        figure.text(0.02, (0.05 + 0.14 * k) / height, note, color=theme.muted, fontsize=7, ha="left", va="bottom")
    return figure


def _alike(panels: Sequence[Panel]) -> bool:
    """Whether panels can have the same scale: all capacities within a factor of two."""
    levels = [capacity.bytes for panel in panels for capacity in panel.capacities]
    return bool(levels) and max(levels) <= 2 * min(levels)


def _draw(axes: Any, chart: Chart, panel: Panel, levels: tuple[int, int], theme: Theme, scale: _Scale) -> None:
    dress(axes, theme)
    title = f"{panel.title}:  {panel.verdict}" if panel.verdict else panel.title
    text = axes.set_title(title, color=theme.text, fontsize=9, loc="left", pad=6)
    text.set_fontsize(max(6.5, shrunk(text, 1.04 * axes.bbox.width)))
    if scale.log_x:
        axes.set_xscale("log", base=2)
    if scale.log_y:
        axes.set_yscale("log", base=2)
    low, high = levels
    axes.set_xlim(min(chart.xs), max(chart.xs))
    axes.set_ylim(low, high)
    _x_ticks(axes, chart, scale)
    ticks = gib_ticks(low, high, scale.log_y)
    axes.set_yticks(ticks, [size_label(tick) for tick in ticks])
    axes.minorticks_off()
    if panel.kind == STACK:
        _stack(axes, panel, theme)
    else:
        for series in panel.series:
            _line(axes, series, theme)
    for capacity in panel.capacities:
        colour = theme.limit if capacity.line is None else _stroke(panel.series[capacity.line], theme)[0]
        axes.axhline(capacity.bytes, color=colour, linewidth=1.2, linestyle=(0, (4, 2)), label="_capacity")
        axes.annotate(
            capacity.label, (0, capacity.bytes), xycoords=("axes fraction", "data"), xytext=(3, 2.5),
            textcoords="offset points", color=colour, fontsize=8, ha="left", va="bottom", bbox=halo(theme), zorder=4,
        )  # fmt: skip
    _marks(axes, panel, theme)
    if panel.kind == LINES and scale.columns == 1:
        _end_labels(axes, panel, chart.verdicts, theme, low, high)


def _levels(panel: Panel, log_y: bool) -> tuple[int, int]:
    """The lowest and the highest level that the panel shows."""
    levels = panel.levels or [0]
    capacities = [capacity.bytes for capacity in panel.capacities]
    highest = max(*levels, *capacities, 1)
    if log_y:
        return max(1, int(min(y for y in (*levels, highest) if y) * 0.8)), int(highest * 1.35)
    if capacities:
        highest = max(min(highest, int(max(capacities) * HEADROOM)), max(capacities))
    if panel.kind == STACK:
        return 0, int(highest * 1.06)
    lowest = min(*levels, *capacities, highest)
    room = max(highest - lowest, highest // 50)
    return (0 if lowest <= room else int(lowest - room * 0.12)), int(highest + room * 0.10)


def _x_ticks(axes: Any, chart: Chart, scale: _Scale) -> None:
    low, high = min(chart.xs), max(chart.xs)
    most = max(12 // scale.columns, 3)
    powers = [1 << e for e in range(max(0, (low - 1).bit_length()), high.bit_length())]
    if scale.log_x and len(powers) > 1:
        ticks = powers
    elif chart.x_is_context:
        step = 1 << max(0, (high // 8).bit_length())
        ticks = list(range(-(-low // step) * step, high + 1, step))
    else:
        steps = (size * 10**e for e in range(10) for size in (1, 2, 5))
        step = next(step for step in steps if (high - low) // step < most)
        ticks = list(range(-(-low // step) * step, high + 1, step))
    while len(ticks) > most:
        ticks = ticks[len(ticks) % 2 == 0 :: 2]
    label = tokens_label if chart.x_is_context else str
    axes.set_xticks(ticks, [label(tick) for tick in ticks])


def _stack(axes: Any, panel: Panel, theme: Theme) -> None:
    shown = [i for i in range(len(panel.series[0].xs)) if all(series.ys[i] is not None for series in panel.series)]
    if not shown:
        return
    base = [0] * len(shown)
    xs = [panel.series[0].xs[i] for i in shown]
    for series in panel.series:
        top = [low + (series.ys[i] or 0) for low, i in zip(base, shown, strict=True)]
        fine_xs, fine_low = fine(xs, base)
        _, fine_top = fine(xs, top)
        axes.fill_between(
            fine_xs, fine_low, fine_top, color=theme.bands[series.colour], linewidth=0, label=series.label
        )
        axes.plot(fine_xs, fine_top, color=theme.background, linewidth=0.9, label="_edge")
        base = top


def _line(axes: Any, series: Series, theme: Theme) -> None:
    colour, style = _stroke(series, theme)
    label = series.label
    xs: list[int] = []
    ys: list[int] = []
    for x, y in (*zip(series.xs, series.ys, strict=True), (0, None)):
        if y is not None:
            xs.append(x)
            ys.append(y)
        elif xs:
            # what llama.cpp refuses is a gap
            fine_xs, fine_ys = fine(xs, ys)
            axes.plot(fine_xs, fine_ys, color=colour, linestyle=style, linewidth=2.0, label=label)
            label = "_more"
            xs, ys = [], []


def fine(xs: Sequence[int], ys: Sequence[int]) -> tuple[list[float], list[float]]:
    """The same points with others between them, in proportion."""
    fine_xs: list[float] = []
    fine_ys: list[float] = []
    for (x0, y0), (x1, y1) in pairwise(zip(xs, ys, strict=True)):
        for k in range(FINE):
            fine_xs.append(x0 + (x1 - x0) * k / FINE)
            fine_ys.append(y0 + (y1 - y0) * k / FINE)
    return [*fine_xs, *xs[-1:]], [*fine_ys, *ys[-1:]]


def _stroke(series: Series, theme: Theme) -> tuple[str, Any]:
    n = len(theme.lines)
    return theme.lines[series.colour % n], STYLES[(series.style + series.colour // n) % len(STYLES)]


def _marks(axes: Any, panel: Panel, theme: Theme) -> None:
    """A dot where a line or stack meets its capacity, and a thread down to the axis; on stacks the value beside it."""
    for mark in panel.marks:
        colour = theme.text if mark.line is None else _stroke(panel.series[mark.line], theme)[0]
        bottom = axes.get_ylim()[0]
        axes.plot([mark.x, mark.x], [bottom, mark.y], color=colour, linewidth=0.9, linestyle=":", label="_thread")
        axes.plot(
            [mark.x], [mark.y], marker="o", markersize=6, color=colour, markeredgecolor=theme.background,
            markeredgewidth=1.0, label="_mark", zorder=5, clip_on=False,
        )  # fmt: skip
        if panel.kind == STACK or len(panel.marks) == 1:
            left = (
                not mark.label.startswith("fits from")
                and axes.transAxes.inverted().transform(axes.transData.transform((mark.x, mark.y)))[0] > 0.45
            )
            axes.annotate(
                mark.label, (mark.x, mark.y), xytext=(-5 if left else 6, 4),
                textcoords="offset points", color=theme.text, fontsize=9, fontweight="bold",
                ha="right" if left else "left", va="bottom", bbox=halo(theme), zorder=6,
            )  # fmt: skip


def _end_labels(axes: Any, panel: Panel, verdicts: Sequence[str], theme: Theme, low: float, high: float) -> None:
    """Each line's name and how far it fits, at its right end; moved apart where they would overlap."""
    ends: list[tuple[float, int]] = []
    for i, series in enumerate(panel.series):
        last = next((y for y in reversed(series.ys) if y is not None), None)
        shown = min(max(last if last is not None else low, low), high)
        at = axes.transAxes.inverted().transform(axes.transData.transform((series.xs[-1], shown)))[1]
        ends.append((float(at), i))
    ends.sort()
    gap = 0.088 if len(ends) <= 11 else 0.96 / len(ends)
    places: list[float] = []
    for y, _ in ends:
        places.append(max(y, places[-1] + gap if places else 0.03))
    if places[-1] > 0.98:
        places[-1] = 0.98
        for k in range(len(places) - 2, -1, -1):
            places[k] = min(places[k], places[k + 1] - gap)
    small = len(ends) > 11
    for (_, i), place in zip(ends, places, strict=True):
        series = panel.series[i]
        label = textwrap.shorten(series.label, 30, placeholder="…")
        at = (1.012, place)
        axes.annotate(
            label, at, xycoords="axes fraction", color=_stroke(series, theme)[0], fontsize=7 if small else 8.5,
            fontweight="bold", ha="left", va="center" if small else "bottom", annotation_clip=False,
        )  # fmt: skip
        if not small:
            axes.annotate(verdicts[i], at, xycoords="axes fraction", color=theme.muted, fontsize=7.5, ha="left",
                          va="top", annotation_clip=False)  # fmt: skip


def _line_key(figure: Any, chart: Chart, theme: Theme, top: float) -> None:
    from matplotlib.lines import Line2D

    handles = []
    for series, verdict in zip(chart.panels[0].series, chart.verdicts, strict=True):
        colour, style = _stroke(series, theme)
        label = f"{series.label}: {verdict}"
        handles.append(Line2D([], [], color=colour, linestyle=style, linewidth=2.0, label=label))
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.012, top), fontsize=8, frameon=False, ncols=3,
        labelcolor=theme.text, handlelength=2.4, borderpad=0.2, columnspacing=1.6,
    )  # fmt: skip


def _band_key(figure: Any, theme: Theme, y: float, right: float) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=band) for band, colour in zip(BANDS, theme.bands, strict=True)]
    figure.legend(
        handles=handles, loc="center right", bbox_to_anchor=(right + 0.01, y), fontsize=8, frameon=False,
        ncols=3, labelcolor=theme.text, handlelength=1.0, handleheight=0.9, columnspacing=1.2, borderpad=0.2,
    )  # fmt: skip
