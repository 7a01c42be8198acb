"""Levels and dots of a panel, with their words placed where there is room. Lengths are inches."""

from __future__ import annotations

from typing import Any

from memplan.output.chart import STACK, Mark, Panel
from memplan.output.figures import Theme, halo
from memplan.output.lettering import LINE, Ruler
from memplan.output.plot_keys import stroke

Span = tuple[float, float]
"""From where to where along the bottom something is written."""

WHOLE, ALONE, FREE = 9.0, 8.0, 8.0
"""Sizes of what is written at a dot, at a hollow one, and at a level."""


def draw_marks(axes: Any, panel: Panel, theme: Theme, ruler: Ruler) -> list[tuple[float, Span]]:
    """A dot where a line or stack meets its capacity; what fits on this device alone is hollow.

    From the dot that counts, a thread goes down to the axis; on stacks, and beside the only dot of all, the value is
    written. The answer: on which level, and from where to where.
    """
    wide = axes.get_position().width * axes.get_figure().get_figwidth()
    written: list[tuple[float, Span]] = []
    for mark in panel.marks:
        colour = theme.text if mark.line is None else stroke(panel.series[mark.line], theme)[0]
        if mark.whole:
            bottom = axes.get_ylim()[0]
            axes.plot([mark.x, mark.x], [bottom, mark.y], color=colour, linewidth=0.9, linestyle=":", label="_thread")
        axes.plot(
            [mark.x], [mark.y], marker="o", markersize=6 if mark.whole else 4.5, linestyle="none", label="_mark",
            color=colour if mark.whole else theme.background, markeredgewidth=1.0, zorder=5, clip_on=False,
            markeredgecolor=theme.background if mark.whole else colour,
        )  # fmt: skip
        if panel.kind == STACK or (mark.whole and len(panel.marks) == 1):
            written.append((mark.y, _write(axes, mark, theme, ruler, wide)))
    return written


def _write(axes: Any, mark: Mark, theme: Theme, ruler: Ruler, wide: float) -> Span:
    """The mark's words, on the side of it where there is room; from where to where they reach."""
    size = WHOLE if mark.whole else ALONE
    long = ruler.width(mark.label, size, mark.whole)
    at = wide * float(axes.transAxes.inverted().transform(axes.transData.transform((mark.x, mark.y)))[0])
    left, right = (at - 0.07 - long, at - 0.07), (at + 0.085, at + 0.085 + long)
    rising = "from" not in mark.label
    fits = [span for span in ((left, right) if rising else (right, left)) if span[0] >= 0.02 and span[1] <= wide]
    start, end = fits[0] if fits else (max(0.02, min(at - long / 2, wide - long)), wide)
    axes.annotate(
        mark.label, (start / wide, mark.y), xycoords=("axes fraction", "data"), xytext=(0, 4 if fits else 7),
        textcoords="offset points", color=theme.text if mark.whole else theme.muted, fontsize=size,
        fontweight="bold" if mark.whole else "normal", ha="left", va="bottom", bbox=halo(theme), zorder=6,
    )  # fmt: skip
    return start, end


def draw_capacities(axes: Any, panel: Panel, theme: Theme, ruler: Ruler, written: list[tuple[float, Span]]) -> None:
    """The levels of what is free, each with its words at the left; elsewhere on it where others are in their way."""
    place = axes.get_position()
    wide, tall = (
        size * extent
        for size, extent in zip((place.width, place.height), axes.get_figure().get_size_inches(), strict=True)
    )
    low, high = axes.get_ylim()
    near = FREE * LINE / tall * (high - low)
    taken = [(y, *span) for y, span in written]
    said: set[tuple[str, int]] = set()
    for capacity in panel.capacities:
        colour = theme.limit if capacity.line is None else stroke(panel.series[capacity.line], theme)[0]
        axes.axhline(capacity.bytes, color=colour, linewidth=1.2, linestyle=(0, (4, 2)), label="_capacity")
        if (capacity.label, capacity.bytes) in said:
            continue
        said.add((capacity.label, capacity.bytes))
        long = ruler.width(capacity.label, FREE)
        spots = [(k * (long + 0.12) + 0.04, k * (long + 0.12) + 0.04 + long) for k in range(int(wide / (long + 0.12)))]
        clear = [
            spot
            for spot in spots
            if not any(abs(y - capacity.bytes) < near and start < spot[1] and spot[0] < end for y, start, end in taken)
        ]
        start, end = (clear or [(0.04, 0.04 + long)])[0]
        taken.append((capacity.bytes, start, end))
        axes.annotate(
            capacity.label, (start / wide, capacity.bytes), xycoords=("axes fraction", "data"),
            xytext=(0, 2.5 if clear else -2.5), textcoords="offset points", color=colour, fontsize=FREE, ha="left",
            va="bottom" if clear else "top", bbox=halo(theme), zorder=4,
        )  # fmt: skip
