"""What moved between two explanations, and which tensors, lifetimes or gaps moved it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from memplan.comparing.gaps import gap_changes
from memplan.comparing.lives import life_changes
from memplan.comparing.matching import Counterparts
from memplan.comparing.result import BufferChange, Comparison, Fate, GroupChange, PartChange, ResidentChange
from memplan.explaining.result import ComputeBuffer, Explanation, Peak, Placed, Resident
from memplan.result import DeviceUse, Estimate, HostUse


def compare(before: Explanation, after: Explanation) -> Comparison:
    """Set two explanations side by side.

    Weights, caches and states are compared one by one. Of a compute buffer, what is alive when it is fullest: by name
    and size, then what lies in gaps between, and whose lifetimes and places differ.
    """
    parts = tuple(_parts(before.estimate, after.estimate))
    if not before.buffers or not after.buffers:  # refused, or of a release whose graphs are not followed
        return Comparison(before, after, parts)
    match = Counterparts(before, after)
    buffers = ({b.device: b for b in before.buffers}, {b.device: b for b in after.buffers})
    names = sorted({**buffers[0], **buffers[1]}, key=_gpus_first)
    changes = tuple(_buffer(name, buffers[0].get(name), buffers[1].get(name), match) for name in names)
    return Comparison(
        before,
        after,
        parts,
        tuple(_residents(before.residents, after.residents)),
        changes,
        tuple(match.renamed.items()),
    )


def _gpus_first(name: str) -> tuple[bool, int, str]:
    return name == "CPU", len(name), name


def _parts(before: Estimate, after: Estimate) -> Iterator[PartChange]:
    uses: tuple[dict[str, DeviceUse | HostUse], dict[str, DeviceUse | HostUse]] = (
        {d.name: d for d in before.devices}, {d.name: d for d in after.devices},
    )  # fmt: skip
    names = sorted({**uses[0], **uses[1]}, key=_gpus_first)
    for side, estimate in zip(uses, (before, after), strict=True):
        side["host"] = estimate.host
    for name in (*names, "host"):
        a, b = (side.get(name, HostUse()) for side in uses)
        yield PartChange(name, "weights", a.model, b.model)
        yield PartChange(name, "context", a.context, b.context)
        yield PartChange(name, "compute", a.compute, b.compute)
        yield PartChange(name, "run time", a.run_time, b.run_time)
        if a.draft or b.draft:
            yield PartChange(name, "drafter", a.draft, b.draft)
        if a.projector or b.projector:
            yield PartChange(name, "projector", a.projector, b.projector)


# --- weights, caches, states ------------------------------------------------------------------------------------------


def _residents(before: Sequence[Resident], after: Sequence[Resident]) -> Iterator[ResidentChange]:
    """Those that lie elsewhere or have another size, all layers of one name together."""
    sides = [{(r.kind, r.name): r for r in residents} for residents in (before, after)]
    moved: dict[tuple[str, str, str, str], list[tuple[Resident | None, Resident | None]]] = {}
    for key in {**sides[0], **sides[1]}:
        a, b = sides[0].get(key), sides[1].get(key)
        where = ("" if a is None else a.buffer, "" if b is None else b.buffer)
        if a is None or b is None or where[0] != where[1] or a.bytes != b.bytes:
            r = b or a
            if r is not None:
                moved.setdefault((r.kind, r.role, *where), []).append((a, b))
    found = []
    for (kind, name, source, target), members in moved.items():
        either = [b or a for a, b in members]
        found.append(
            ResidentChange(
                kind,
                name,
                source,
                target,
                tuple(sorted({r.layer for r in either if r is not None and r.layer is not None})),
                len(members),
                sum(a.bytes for a, _ in members if a is not None),
                sum(b.bytes for _, b in members if b is not None),
            )
        )
    yield from sorted(found, key=lambda change: -max(change.before, change.after))


# --- compute buffers --------------------------------------------------------------------------------------------------


def _buffer(
    device: str, before: ComputeBuffer | None, after: ComputeBuffer | None, match: Counterparts
) -> BufferChange:
    sizes = [0 if b is None else b.bytes for b in (before, after)]
    peaks = [() if b is None else b.peaks for b in (before, after)]
    lost = [0 if b is None else b.lost for b in (before, after)]
    return BufferChange(
        device,
        before=sizes[0],
        after=sizes[1],
        before_peaks=peaks[0],
        after_peaks=peaks[1],
        same_moment=bool(peaks[0]) and [_moment(p, match) for p in peaks[0]] == [_moment(p, match) for p in peaks[1]],
        before_then=_then(before, peaks[1], match, 0),
        after_then=_then(after, peaks[0], match, 1),
        alive=sizes[1] - lost[1] - (sizes[0] - lost[0]),
        lost=lost[1] - lost[0],
        groups=tuple(_groups(device, peaks, match)),
        gaps=tuple(gap_changes(before, after, match)) if before is not None and after is not None else (),
        lives=tuple(life_changes(device, match)),
    )


def _moment(peak: Peak, match: Counterparts) -> tuple[str, int | None]:
    return match.label(peak.tensor), peak.tensor.layer


def _then(buffer: ComputeBuffer | None, others: Sequence[Peak], match: Counterparts, side: int) -> int | None:
    """How far ``buffer``, of ``side``, is filled at what is the other side's fullest moment; None if it has none.

    Several chunks are fullest at several moments, so there is none either.
    """
    if buffer is None or len(others) != 1 or len(buffer.peaks) != 1:
        return None
    found = match.find(others[0].tensor, side)
    if found is None or found[0] != buffer.device:
        return None
    node = found[1].first
    return max(p.offset + p.bytes for p in buffer.tensors if p.first <= node <= p.last)


def _groups(device: str, peaks: Sequence[Sequence[Peak]], match: Counterparts) -> Iterator[GroupChange]:
    """Of all chunks, each with what is alive when it is fullest."""
    sides = [_by_label((p for peak in side for p in peak.live), match) for side in peaks]
    found = []
    for base in {**sides[0], **sides[1]}:
        a, b = sides[0].get(base, ()), sides[1].get(base, ())
        if sorted(p.bytes for p in a) != sorted(p.bytes for p in b):
            found.append(GroupChange(base, a, b, _fate(device, a, b, peaks, match)))
    yield from sorted(found, key=lambda group: -abs(group.change))


def _by_label(live: Iterable[Placed], match: Counterparts) -> dict[str, tuple[Placed, ...]]:
    groups: dict[str, list[Placed]] = {}
    for p in live:
        groups.setdefault(match.label(p), []).append(p)
    return {name: tuple(members) for name, members in groups.items()}


def _fate(
    device: str, a: Sequence[Placed], b: Sequence[Placed], peaks: Sequence[Sequence[Peak]], match: Counterparts
) -> Fate:
    if a and b:
        if len(a) == len(b):
            return "larger" if sum(p.bytes for p in b) > sum(p.bytes for p in a) else "smaller"
        return "more" if len(b) > len(a) else "fewer"
    here, there = (b, 0) if b else (a, 1)
    largest = max(here, key=_bytes)
    if match.label(largest) not in match.labels[there]:
        return "only after" if b else "only before"
    found = match.find(largest, there)
    if found is not None and found[0] != device:
        return "from elsewhere" if b else "to elsewhere"
    # the moment that counts is that at which its own chunk is fullest
    peak = next((p for p in peaks[1 - there] if p.chunk == largest.chunk), None)
    if found is None or peak is None:
        return "more" if b else "fewer"
    low, high = match.moment(peak.node, 1 - there)
    if found[1].last < low:
        return "held longer" if b else "held shorter"
    if found[1].first > high:
        return "begins earlier" if b else "begins later"
    return "another moment"


def _bytes(p: Placed) -> int:
    return p.bytes
