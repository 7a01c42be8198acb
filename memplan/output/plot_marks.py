"""Levels and dots of a panel, with their words placed where there is room. Lengths are inches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from memplan.output.chart import STACK, Mark, Panel
from memplan.output.figures import Theme, halo
from memplan.output.lettering import LINE, Ruler
from memplan.output.plot_keys import stroke

WHOLE, ALONE, FREE = 9.0, 8.0, 8.0
"""Sizes of what is written at a dot, at a hollow one, and at a level."""

ABOVE_LEVEL = 0.22
"""What words on a level need above it."""

_STEP = 0.1
_EDGE = 0.04


@dataclass(frozen=True, slots=True)
class _Box:
    """Where something is written, from the panel's lower left corner."""

    left: float
    low: float
    wide: float
    tall: float

    @property
    def right(self) -> float:
        return self.left + self.wide

    @property
    def high(self) -> float:
        return self.low + self.tall

    def meets(self, other: _Box) -> bool:
        across = self.left < other.right + _EDGE and other.left < self.right + _EDGE
        return across and self.low < other.high and other.low < self.high


class _Panel:
    """A drawn panel, measured: what lies where, and what has been written."""

    def __init__(self, axes: Any, stack: bool) -> None:
        place = axes.get_position()
        width, height = axes.get_figure().get_size_inches()
        self.wide, self.tall = place.width * width, place.height * height
        self._to_axes = axes.transData + axes.transAxes.inverted()
        self._stack = stack
        drawn = [line for line in axes.get_lines() if line.get_label() not in ("_cut", "_mark", "_thread")]
        self._curves = [
            [self.at(x, y) for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]
            for line in (drawn[-1:] if stack else drawn)
        ]
        self._written: list[_Box] = []

    def at(self, x: float, y: float) -> tuple[float, float]:
        """A point of the data, in inches."""
        across, up = self._to_axes.transform((x, y))
        return float(across) * self.wide, float(up) * self.tall

    def is_clear(self, box: _Box, of_words: bool = False) -> bool:
        """Whether nothing is drawn or written there; ``of_words``: or at least nothing written."""
        if min(box.left, box.low) < 0 or box.right > self.wide or box.high > self.tall:
            return False
        if any(box.meets(other) for other in self._written):
            return False
        if of_words:
            return True
        spans = [(0.0 if self._stack else min(ys), max(ys)) for ys in self._heights(box)]
        return not any(low < box.high and box.low < high for low, high in spans)

    def top(self, box: _Box) -> float:
        """The highest point of what is drawn where the box is wide."""
        return max((max(ys) for ys in self._heights(box)), default=0.0)

    def write(self, box: _Box) -> _Box:
        """Take note that something is written there."""
        self._written.append(box)
        return box

    def _heights(self, box: _Box) -> Iterator[list[float]]:
        """For each curve its heights between the sides of the box."""
        for curve in self._curves:
            ys = []
            for (x0, y0), (x1, y1) in pairwise(curve):
                if x1 < box.left or x0 > box.right:
                    continue
                slope = (y1 - y0) / ((x1 - x0) or 1)
                ys += [y0 + slope * (max(x0, box.left) - x0), y0 + slope * (min(x1, box.right) - x0)]
            if ys:
                yield ys


def draw_marks_and_capacities(axes: Any, panel: Panel, theme: Theme, ruler: Ruler) -> None:
    """The levels of what is free, and a dot where a line or stack meets its own; all with words where there is room.

    The dot of what fits on this device alone is hollow. From the one that counts, a thread goes down to the axis; on
    stacks, and beside the only dot of all where there is room, the value is written.
    """
    measured = _Panel(axes, panel.kind == STACK)
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
        if panel.kind == STACK:
            _write_mark(axes, mark, theme, ruler, measured)
    _draw_capacities(axes, panel, theme, ruler, measured)
    if panel.kind != STACK and len(panel.marks) == 1 and panel.marks[0].whole:
        _write_mark(axes, panel.marks[0], theme, ruler, measured)


def _write_mark(axes: Any, mark: Mark, theme: Theme, ruler: Ruler, panel: _Panel) -> None:
    """The mark's words, on the side of it where there is room."""
    size = WHOLE if mark.whole else ALONE
    long, tall = ruler.width(mark.label, size, mark.whole), size * LINE
    x, y = panel.at(mark.x, mark.y)
    sides = [x - 0.07 - long, x + 0.085]
    if "from" in mark.label:
        sides.reverse()
    boxes = [_Box(left, y + up, long, tall) for up in (0.05, -0.05 - tall) for left in sides]
    box = next((box for box in boxes if panel.is_clear(box)), None)
    if box is None and mark.line is not None:
        return  # the key says it too
    box = panel.write(box or _Box(max(0.02, min(x - long / 2, panel.wide - long)), y + 0.09, long, tall))
    _text(axes, mark.label, box, panel, theme.text if mark.whole else theme.muted, size, theme, bold=mark.whole)


def _draw_capacities(axes: Any, panel: Panel, theme: Theme, ruler: Ruler, measured: _Panel) -> None:
    """The levels, each with its words on it, or below it, where nothing else is; else above all that is in the way."""
    said: set[tuple[str, int]] = set()
    for capacity in panel.capacities:
        colour = theme.limit if capacity.line is None else stroke(panel.series[capacity.line], theme)[0]
        axes.axhline(capacity.bytes, color=colour, linewidth=1.2, linestyle=(0, (4, 2)), label="_capacity")
        if (capacity.label, capacity.bytes) in said:
            continue
        said.add((capacity.label, capacity.bytes))
        long, tall = ruler.width(capacity.label, FREE), FREE * LINE
        y = measured.at(axes.get_xlim()[0], capacity.bytes)[1]
        lefts = [_EDGE + k * _STEP for k in range(max(1, int((measured.wide - long - _EDGE) / _STEP) + 1))]
        beside = [_Box(left, y + up, long, tall) for up in (0.03, -0.04 - tall) for left in lefts]
        spots = [_Box(left, 0, long, tall) for left in lefts]
        tops = [max(measured.top(spot), y) for spot in spots]
        above = [_Box(s.left, top + up, long, tall) for up in (0.04, 0.24) for s, top in zip(spots, tops, strict=True)]
        box = next((box for box in [*beside, *above] if measured.is_clear(box)), None)
        box = box or next((box for box in beside if measured.is_clear(box, of_words=True)), beside[0])
        if box in above:
            thread = [(box.left + 0.04) / measured.wide] * 2
            axes.plot(thread, [y / measured.tall, box.low / measured.tall], color=colour, linewidth=0.8,
                      transform=axes.transAxes, label="_thread")  # fmt: skip
        _text(axes, capacity.label, measured.write(box), measured, colour, FREE, theme)


def _text(
    axes: Any, text: str, box: _Box, panel: _Panel, colour: str, size: float, theme: Theme, bold: bool = False
) -> None:
    axes.annotate(
        text, (box.left / panel.wide, (box.low + 0.02) / panel.tall), xycoords="axes fraction", color=colour,
        fontsize=size, fontweight="bold" if bold else "normal", ha="left", va="bottom", bbox=halo(theme), zorder=6,
    )  # fmt: skip
