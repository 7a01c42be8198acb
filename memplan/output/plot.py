"""A chart as a figure: stacked bands or lines against a capacity, with the last value that fits marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from memplan.output.chart import LINES, STACK, Chart, Panel, Series
from memplan.output.figures import (
    DARK,
    EDGE,
    LIGHT,
    Theme,
    draw_headings,
    dress,
    fit_headings,
    gib_ticks,
    new_figure,
    size_labels,
)
from memplan.output.lettering import LINE, Ruler, plain_text
from memplan.output.plot_keys import (
    draw_band_key,
    draw_end_key,
    draw_line_key,
    fit_end_key,
    fit_line_key,
    stroke,
)
from memplan.output.plot_marks import ABOVE_LEVEL, draw_marks_and_capacities
from memplan.output.words import tokens_label

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 8.0, 4.5
"""Inches of a picture; it grows in height where more has to be said."""

FINE = 12
"""Pieces that a stretch between two values is drawn in: memory grows in proportion, which is a curve over doublings."""

HOLLOW = "a hollow dot: what would fit on that device alone, while another is short already"

CUT = "two strokes at the foot of an axis: it does not begin at 0"

_TICK, _TITLE, _NOTE, _ANSWER = 8.0, 9.0, 7.0, 9.0
_BAND_KEY = 0.83  # a band
_PANEL = 2.2
_ABOVE = ABOVE_LEVEL / _PANEL
"""The part of a panel's height that words on its highest level need."""


@dataclass(frozen=True, slots=True)
class _Scale:
    log_x: bool
    log_y: bool
    x_ticks: tuple[int, ...]
    x_labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _View:
    """What of a panel is shown: levels and ticks up the side, its title in lines, and where it lies (inches)."""

    panel: Panel
    levels: tuple[int, int]
    ticks: tuple[int, ...]
    title: tuple[str, ...]
    size: float


def chart_figure(chart: Chart, *, dark: bool = False, log_x: bool = True, log_y: bool = False) -> Figure:
    """The figure of a chart.

    ``dark``: on a dark ground.  ``log_x``, ``log_y``: doublings at equal distances. Raises OutputError without
    matplotlib.
    """
    figure = new_figure(WIDTH, HEIGHT, DARK if dark else LIGHT)
    with plain_text():
        _fill(figure, chart, DARK if dark else LIGHT, log_x, log_y)
    return figure


def _fill(figure: Figure, chart: Chart, theme: Theme, log_x: bool, log_y: bool) -> None:
    ruler = Ruler(figure)
    room = WIDTH - 2 * EDGE
    count = len(chart.panels)
    columns = next(columns for columns, most in ((1, 1), (2, 4), (3, 9), (4, count)) if count <= most)
    rows = -(-count // columns)
    lines = chart.panels[0].kind == LINES
    ends = fit_end_key(chart, ruler, theme)
    key = fit_line_key(chart, room, ruler) if lines and ends is None else None

    # across: the widest tick beside each panel that has its own scale, names at the right
    levels = [_levels(panel, log_y) for panel in chart.panels]
    shared = chart.shared_scale
    if shared:
        levels = [(min(low for low, _ in levels), max(high for _, high in levels))] * count
    ticks = [tuple(gib_ticks(low, high, log_y)) for low, high in levels]
    beside = ruler.widest([label for at in ticks for label in size_labels(at)], _TICK)
    x_label = tokens_label if chart.x_is_context else "{:,}".format
    x_wide = ruler.widest([x_label(x) for x in chart.xs], _TICK)
    left = max(0.085 * WIDTH, EDGE + beside + 0.08)
    right = WIDTH - EDGE - (ends.width if ends else max(0.04, x_wide / 2))
    between = max(0.3, x_wide + 0.12) + (0 if shared else beside)
    wide = (right - left - between * (columns - 1)) / columns
    x_ticks = _x_ticks(chart, log_x, max(2, int(wide / (x_wide + 0.16))))
    # what does not even triple is better seen in equal steps
    log_x = log_x and min(chart.xs) > 0 and max(chart.xs) >= 3 * min(chart.xs)
    scale = _Scale(log_x, log_y, tuple(x_ticks), tuple(x_label(x) for x in x_ticks))

    # down: what stands above the panels, the panels with their titles, what stands below
    heads = fit_headings(chart.title, chart.subtitle, WIDTH, ruler)
    answer = (
        []
        if lines
        else ruler.wrapped(chart.answers[0], room - _BAND_KEY * len(chart.panels[0].series), _ANSWER, True, most=4)
    )
    above = heads.height + 0.07 + (key.height if key else len(answer) * _ANSWER * LINE)
    said = [*chart.notes, *([HOLLOW] if lines and any(not m.whole for p in chart.panels for m in p.marks) else [])]
    said += [CUT] if any(low and not log_y for low, _ in levels) else []
    notes = [line for note in said for line in ruler.wrapped(note, room, _NOTE, most=4)]
    below = 0.26 + 0.07 + 8.5 * LINE + 0.09 + len(notes) * _NOTE * LINE
    views = [_view(*each, wide, ruler) for each in zip(chart.panels, levels, ticks, strict=True)]
    titles = [max(len(v.title) * v.size * LINE for v in views[r * columns : (r + 1) * columns]) for r in range(rows)]
    fixed = above + below + sum(titles) + 0.16 * rows + 0.36 * (rows - 1)
    tall = max(_PANEL, (HEIGHT - fixed) / rows)
    height = max(HEIGHT, fixed + tall * rows)
    figure.set_size_inches(WIDTH, height)

    draw_headings(figure, heads, theme)
    y = heads.height + 0.04
    if key is not None:
        draw_line_key(figure, chart, key, theme, y)
    if not lines:
        draw_band_key(figure, chart.panels[0], theme, y)
    for k, line in enumerate(answer):
        figure.text(EDGE / WIDTH, 1 - (y + k * _ANSWER * LINE) / height, line, color=theme.text, fontsize=_ANSWER,
                    fontweight="bold", va="top")  # fmt: skip
    y = above
    for i, view in enumerate(views):
        row, column = divmod(i, columns)
        if column == 0:
            y += 0.16 + titles[row] + (0.36 + tall if row else 0)
        box = ((left + column * (wide + between)) / WIDTH, 1 - (y + tall) / height, wide / WIDTH, tall / height)
        axes = figure.add_axes(box)
        _draw(axes, view, chart, scale, theme, ruler)
        if shared and column:
            axes.tick_params(labelleft=False)
        if ends is not None:
            draw_end_key(axes, view.panel, chart.verdicts, theme, ends)
    place = (below - 0.33) / height
    figure.text((left + right) / 2 / WIDTH, place, chart.x_label, color=theme.muted, fontsize=8.5, ha="center",
                va="top")  # fmt: skip
    for k, line in enumerate(reversed(notes)):
        figure.text(EDGE / WIDTH, (0.05 + k * _NOTE * LINE) / height, line, color=theme.muted, fontsize=_NOTE,
                    va="bottom")  # fmt: skip


def _view(panel: Panel, levels: tuple[int, int], ticks: tuple[int, ...], wide: float, ruler: Ruler) -> _View:
    """A panel with its title in as few lines as its width allows."""
    text = f"{panel.title}:  {panel.verdict}" if panel.verdict else panel.title
    title, size = ruler.wrapped(text, wide, _TITLE, between="(?<=:)  "), _TITLE
    if len(title) > 2:
        size = 7.5
        title = ruler.wrapped(text, wide, size, between="(?<=:)  ", most=4)
    return _View(panel, levels, ticks, tuple(title), size)


def _draw(axes: Any, view: _View, chart: Chart, scale: _Scale, theme: Theme, ruler: Ruler) -> None:
    dress(axes, theme)
    panel = view.panel
    axes.set_title("\n".join(view.title), color=theme.text, fontsize=view.size, loc="left", pad=6)
    if scale.log_x:
        axes.set_xscale("log", base=2)
    if scale.log_y:
        axes.set_yscale("log", base=2)
    axes.set_xlim(min(chart.xs), max(chart.xs))
    axes.set_ylim(*view.levels)
    axes.set_xticks(scale.x_ticks, scale.x_labels)
    axes.set_yticks(view.ticks, size_labels(view.ticks))
    axes.minorticks_off()
    if view.levels[0] and not scale.log_y:
        _cut(axes, theme)
    if panel.kind == STACK:
        _stack(axes, panel, theme)
    else:
        for series in panel.series:
            _line(axes, series, theme)
    draw_marks_and_capacities(axes, panel, theme, ruler)


def _cut(axes: Any, theme: Theme) -> None:
    """Two strokes at the lower left corner."""
    for up in (0.02, 0.045):
        axes.plot([0, 0.024], [up - 0.012, up + 0.012], color=theme.muted, linewidth=1.2, clip_on=False,
                  transform=axes.transAxes, label="_cut")  # fmt: skip


def _levels(panel: Panel, log_y: bool) -> tuple[int, int]:
    """The lowest and the highest level that the panel shows."""
    levels = panel.levels or [0]
    capacities = [capacity.bytes for capacity in panel.capacities]
    if log_y:
        highest = max(*levels, *capacities, 1)
        lowest = max(1, int(min(y for y in (*levels, highest) if y) * 0.8))
        return lowest, int(highest * max(1.1, (highest / lowest) ** (_ABOVE / (1 - _ABOVE))))
    highest = panel.top
    lowest = 0 if panel.kind == STACK else min(*levels, *capacities, highest)
    room = max(highest - lowest, highest // 50)
    low = 0 if lowest <= room else int(lowest - room * 0.12)
    words = max((int((c - low * _ABOVE) / (1 - _ABOVE)) for c in capacities), default=0)
    return low, max(int(highest + room * 0.06), words)


def _x_ticks(chart: Chart, log: bool, most: int) -> list[int]:
    """At most so many ticks along the bottom: powers of two, or round steps."""
    low, high = min(chart.xs), max(chart.xs)
    log = log and low > 0 and high >= 3 * low
    powers = [1 << e for e in range(max(0, (low - 1).bit_length()), high.bit_length())]
    if log and len(powers) > 1:
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
    return ticks


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
    colour, style = stroke(series, theme)
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
