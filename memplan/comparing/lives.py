"""Tensors that hold their place in a compute buffer longer, shorter, or take it over from another."""

from __future__ import annotations

from collections.abc import Iterator

from memplan.comparing.matching import Counterparts
from memplan.comparing.result import LifeChange
from memplan.explaining.result import Placed

SMALL = 1 << 20
"""Stays of fewer bytes, all layers together, are not told."""


def life_changes(device: str, match: Counterparts) -> Iterator[LifeChange]:
    """Lifetimes and places that differ between the two sides on one device, largest first."""
    found: dict[LifeChange, list[Placed]] = {}
    for a, b in match.pairs(device):
        change = _change(a, b, match)
        if change is not None:
            found.setdefault(change, []).append(b)
    changes = []
    for kind, members in found.items():
        size = sum(p.bytes for p in members)
        if size >= SMALL:
            layers = tuple(sorted({p.layer for p in members if p.layer is not None}))
            changes.append(LifeChange(kind.how, kind.base, size, len(members), layers, kind.of))
    yield from sorted(changes, key=lambda change: -change.bytes)


def _change(a: Placed, b: Placed, match: Counterparts) -> LifeChange | None:
    """How the second's stay differs from the first's, sizes and layers left out."""
    if bool(a.in_place_of) != bool(b.in_place_of):
        side = 1 if b.in_place_of else 0
        p = b if side else a
        of = match.predecessor(p, side)
        if of is not None and match.label(of) == match.label(p):
            return None
        how = "in place" if side else "own place"
        said = p.in_place_of if of is None else match.label(of)
        return LifeChange("in place" if how == "in place" else "own place", match.label(b), 0, 0, (), said)
    if match.handed_on(a, 0) or match.handed_on(b, 1):
        return None
    low, high = match.moment(a.last, 0)
    if low <= b.last <= high:
        return None
    last = match.computed(b.last, 1)
    until = "" if last is None else match.label(last)
    return LifeChange("longer" if b.last > high else "shorter", match.label(b), 0, 0, (), until)
