from __future__ import annotations

from itertools import product

from memplan.output.figures import DARK, LIGHT, STYLES
from memplan.output.strokes import COLOURS, STROKES, stroke_of
from memplan.sweeping.axes import parse_axis


def strokes(*over: str) -> list[tuple[int, int]]:
    axes = [parse_axis(text) for text in over]
    return [stroke_of(axes, values, i) for i, values in enumerate(product(*(axis.values for axis in axes)))]


def test_colours_and_strokes_never_repeat_while_there_are_enough() -> None:
    assert {COLOURS} == {len(theme.lines) for theme in (LIGHT, DARK)} and len(STYLES) == STROKES
    assert strokes("np=1,2", "fa=on,off") == [(0, 0), (0, 1), (1, 0), (1, 1)]
    found = strokes("cache=f16,q8_0", "ub=256,512", "np=1,2,4")
    assert len(set(found)) == 12
    assert {colour for colour, _ in found} == set(range(4)) and {style for _, style in found} == set(range(3))
    single = strokes("np=1:12:1")
    assert len({(colour % COLOURS, style + colour // COLOURS) for colour, style in single}) == 12
