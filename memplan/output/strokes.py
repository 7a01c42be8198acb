"""Which colour and which stroke a line of a picture has."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from memplan.sweeping.axes import Axis, Value

COLOURS, STROKES = 8, 4
"""So many lines can be told apart by their colours, and so many by their strokes."""


def stroke_of(axes: Sequence[Axis], values: Sequence[Value], number: int) -> tuple[int, int]:
    """The colour and the stroke of the line that has these values of the axes that vary.

    Colours are for the first axes and strokes for the last, as far as there are enough; else lines have a colour each,
    by their ``number``.
    """
    at = [axis.values.index(value) for axis, value in zip(axes, values, strict=True)]
    counts = [len(axis.values) for axis in axes]
    for cut in range(len(axes) - 1, 0, -1):
        if prod(counts[:cut]) <= COLOURS and prod(counts[cut:]) <= STROKES:
            return _rank(at[:cut], counts[:cut]), _rank(at[cut:], counts[cut:])
    return number, 0


def _rank(at: Sequence[int], counts: Sequence[int]) -> int:
    """The place of a combination among all of them."""
    rank = 0
    for place, count in zip(at, counts, strict=True):
        rank = rank * count + place
    return rank
