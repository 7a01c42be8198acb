"""Bytes that a compute buffer loses between live tensors: who left the place, and who fills it otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memplan.comparing.matching import Counterparts
from memplan.comparing.result import Filling, GapChange
from memplan.explaining.result import ComputeBuffer, Gap, Placed

SMALL = 1 << 20
"""Changes below this many bytes are not told."""


def gap_changes(before: ComputeBuffer, after: ComputeBuffer, match: Counterparts) -> Iterator[GapChange]:
    """Places that one side loses when its chunks are fullest and the other does not, largest change first."""
    if not before.peaks or not after.peaks:
        return
    buffers = (before, after)
    lost = (_by_owner(before), _by_owner(after))
    found = []
    for side in (0, 1):
        other_lost = {id(owner): size for owner, size, _ in lost[1 - side]}
        for owner, size, gap in lost[side]:
            there = match.find(owner, 1 - side)
            counterpart = there[1] if there is not None and there[0] == before.device else None
            other = 0 if counterpart is None else other_lost.get(id(counterpart), 0)
            if size - other >= SMALL:
                found.append(_change(side, size, other, owner, counterpart, gap, buffers, match))
    yield from sorted(found, key=lambda change: change.other - change.bytes)


def _change(
    side: int,
    size: int,
    other: int,
    owner: Placed,
    counterpart: Placed | None,
    gap: Gap,
    buffers: tuple[ComputeBuffer, ComputeBuffer],
    match: Counterparts,
) -> GapChange:
    live = buffers[side].live
    filled = _in_place_of(owner, live)
    here = {id(p) for p in filled}
    alive = {id(p) for p in live}
    otherwise = []
    for p in _in_place_of(counterpart, buffers[1 - side].live) if counterpart is not None else ():
        found = match.find(p, side)
        own = found[1] if found is not None and found[0] == buffers[side].device else None
        if own is None or id(own) not in here:
            otherwise.append(Filling(p, own, own is not None and id(own) in alive))
    end = gap.offset + gap.bytes
    above = [
        p
        for p in live
        if p.chunk == gap.chunk and p.offset >= end
        if p.first > owner.last and p.bytes > gap.bytes and not p.in_place_of
    ]
    return GapChange(
        side="after" if side else "before",
        bytes=size,
        other=other,
        owner=owner,
        counterpart=counterpart,
        filled=tuple(filled),
        filled_otherwise=tuple(otherwise),
        above=min(above, key=_offset, default=None),
    )


def _by_owner(buffer: ComputeBuffer) -> list[tuple[Placed, int, Gap]]:
    """Each tensor that left gaps at its chunk's peak, their bytes, and the largest of them."""
    found: dict[int, tuple[Placed, int, Gap]] = {}
    for node, gap in ((peak.node, gap) for peak in buffer.peaks for gap in peak.gaps):
        left = [
            p
            for p in buffer.tensors
            if p.title == gap.left_by and p.chunk == gap.chunk and p.last <= node and _overlap(p, gap) > 0
        ]
        if left:
            owner = max(left, key=lambda p: (_overlap(p, gap), p.last))
            known = found.get(id(owner))
            found[id(owner)] = (owner, gap.bytes, gap) if known is None else (owner, known[1] + gap.bytes, known[2])
    return list(found.values())


def _overlap(p: Placed, gap: Gap) -> int:
    return min(gap.offset + gap.bytes, p.offset + p.bytes) - max(gap.offset, p.offset)


def _in_place_of(owner: Placed, live: Sequence[Placed]) -> list[Placed]:
    """Live tensors that lie where ``owner`` lay and came after it."""
    end = owner.offset + owner.bytes
    return [
        p
        for p in sorted(live, key=_offset)
        if p.chunk == owner.chunk and p.first >= owner.last and p.offset < end and owner.offset < p.offset + p.bytes
    ]


def _offset(p: Placed) -> int:
    return p.offset
