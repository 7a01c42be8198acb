"""A comparison as text for people, or as one JSON object."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from memplan.comparing.result import (
    BufferChange,
    Comparison,
    GapChange,
    GroupChange,
    LifeChange,
    PartChange,
    ReleaseStep,
)
from memplan.explaining.names import ranges
from memplan.explaining.result import Peak, Placed
from memplan.output.columns import Cell, Line, column_lines
from memplan.output.compare_verdict import changed, changed_here, releases_heading, verdict
from memplan.output.explain_words import tenths
from memplan.output.words import MIB, model_line, printable, settings_line, to_text
from memplan.output.wrapping import wrap_words

SMALL = MIB // 10
"""Changes of fewer bytes are not listed."""

FATES = {
    "only after": "no such tensor in {a}",
    "only before": "no such tensor in {b}",
    "from elsewhere": "on another device in {a}",
    "to elsewhere": "on another device in {b}",
    "held longer": "no longer alive at this moment in {a}",
    "held shorter": "no longer alive at this moment in {b}",
    "begins earlier": "not yet there at this moment in {a}",
    "begins later": "not yet there at this moment in {b}",
    "another moment": "in {other} too, but not when it is fullest",
    "larger": "larger",
    "smaller": "smaller",
    "more": "more of them",
    "fewer": "fewer of them",
}
"""What a fate means, for sides called a and b."""


def render_comparison(
    c: Comparison,
    names: tuple[str, str],
    *,
    top: int = 8,
    colour: bool = False,
    unicode: bool = True,
    width: int | None = None,
    fill: int = 100,
) -> str:
    """What moved, device by device, what moved it, what releases between say of it, and last a verdict.

    ``names``: of the two sides; ``top``: lines of each list; ``fill``: columns that releases' words are filled to;
    ``width``: those that all else keeps to, None for as wide as it is.
    """
    a, b = (printable(name) for name in names)
    lines: list[Line] = [*_heads(c, a, b), *(f"not exact: {why}" for why in _inexact(c))]
    for name, side in ((a, c.before), (b, c.after)):
        refused = side.estimate.refused
        if refused is not None:
            said = f"{name}: llama.cpp does not start with these settings: {printable(refused.message)}"
            lines.append(Text(said, "red"))
    if c.before.estimate.refused is not None or c.after.estimate.refused is not None:
        return to_text([*lines, *_closing(c, b, fill)], colour, width)
    lines += ["", *part_lines(c.parts, a, b, unicode)]
    lines += _resident_lines(c, a, b, top, unicode)
    lines += [f"{old} in {a} is {new} in {b}: one tensor by two names" for old, new in c.renamed]
    for alike in alike_buffers(c.buffers):
        if abs(alike[0].change) >= SMALL:
            lines += ["", *buffer_lines(alike, c.after.meanings, a, b, top, unicode)]
    return to_text([*lines, *_closing(c, b, fill)], colour, width)


def _heads(c: Comparison, a: str, b: str) -> Iterator[Line]:
    for name, side in ((a, c.before), (b, c.after)):
        model = model_line(side.estimate)
        line = Text("" if model.startswith(re.split(r"[/\\]", name)[-1]) else f"{name}: ", "bold")
        line.append(f"{model}; {settings_line(side.estimate)}")
        yield line


def _closing(c: Comparison, b: str, width: int) -> Iterator[Line]:
    """What releases between the sides changed, and the verdict."""
    releases = changed(c)
    if releases:
        yield ""
        yield Text(releases_heading(c), "bold")
        steps = {step.release: step for step in c.steps}
        idle = [r.name for r in releases if r.name in steps and not steps[r.name].anything]
        for release in releases:
            if release.name not in idle:
                here = f" Here: {moved_here(steps[release.name])}." if release.name in steps else ""
                said = f"{release.name}: {changed_here(c, release)}{here}"
                yield from wrap_words(said, min(width, 100), later="  ")
        if idle:
            yield from wrap_words(f"nothing here: {', '.join(idle)}", min(width, 100), later="  ")
    yield ""
    before, after = c.before.estimate, c.after.estimate
    yield Text(verdict(c, b), "bold red" if before.fits and not after.fits else "bold")


def moved_here(step: ReleaseStep) -> str:
    """What a release moves of the question at hand, in words; only of one that moves anything."""
    if step.refused[0] != step.refused[1]:
        return "llama.cpp no longer starts" if step.refused[1] else "llama.cpp starts now"
    said = [f"{move.buffer} {move.part} {with_unit(move.change)}" for move in step.moves]
    if step.splits[0] != step.splits[1]:
        said.append(f"{step.splits[1]} splits in place of {step.splits[0]}")
    return ", ".join(said)


def _inexact(c: Comparison) -> list[str]:
    return list(dict.fromkeys(x.estimate.approximate for x in (c.before, c.after) if x.estimate.approximate))


def part_lines(parts: Sequence[PartChange], a: str, b: str, unicode: bool) -> Iterator[Line]:
    """A row for each part of a device that moved, and in words which did not."""
    moved = [part for part in parts if part.change]
    names = [
        "weights",
        "context",
        "compute",
        *(["run time"] if any(p.part == "run time" and p.after for p in parts) else []),
    ]
    if not moved:
        yield f"nothing moved: {_listed(names)} are the same on every device"
        return
    rows: list[list[Cell]] = [
        [p.device, p.part, tenths(p.before), tenths(p.after), (signed(p.change), "red" if p.change > 0 else "green")]
        for p in moved
    ]
    yield from column_lines(["MiB", "", a, b, "change"], rows, [False, False, True, True, True], unicode)
    same = [name for name in names if not any(p.part == name for p in moved)]
    if same:
        yield f"the same on every device: {_listed(same)}"


def _listed(names: Sequence[str]) -> str:
    """``weights, context and compute``."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _resident_lines(c: Comparison, a: str, b: str, top: int, unicode: bool) -> Iterator[Line]:
    moved = [r for r in c.residents if max(r.before, r.after) >= SMALL]
    if not moved:
        return
    yield ""
    yield Text("Weights, caches and states that moved", "bold")
    rows: list[list[Cell]] = []
    for r in moved[:top]:
        where = r.target if r.source == r.target else f"{r.source or 'nowhere'} to {r.target or 'nowhere'}"
        row: list[Cell] = [r.kind, printable(r.name), where, tenths(r.before), tenths(r.after)]
        rows.append([*row, str(r.count), ranges(r.layers)])
    rest = moved[top:]
    if rest:
        row = ["", f"{len(rest)} more", "", tenths(sum(r.before for r in rest)), tenths(sum(r.after for r in rest))]
        rows.append([*row, str(sum(r.count for r in rest)), ""])
    heads = ["", "MiB", "where", a, b, "count", "layers"]
    yield from column_lines(heads, rows, [False, False, False, True, True, True, False], unicode)


# --- a compute buffer -------------------------------------------------------------------------------------------------


def alike_buffers(buffers: Sequence[BufferChange]) -> list[list[BufferChange]]:
    """The buffers of devices on which the same moves, to the digit that is shown, together."""
    found: dict[object, list[BufferChange]] = {}
    for b in buffers:
        moved = {(g.base, g.fate, _size(g.before), _size(g.after)) for g in b.groups if abs(g.change) >= SMALL}
        sizes = tuple(map(tenths, (b.before, b.after, b.alive, b.lost)))
        found.setdefault((sizes, frozenset(moved)), []).append(b)
    return list(found.values())


def _device(name: str) -> str:
    """What a device is called in all of a comparison."""
    return "host" if name == "CPU" else name


def buffer_lines(
    alike: Sequence[BufferChange], meanings: Mapping[str, str], a: str, b: str, top: int, unicode: bool
) -> Iterator[Line]:
    """Why a compute buffer is larger or smaller: in a few sentences, then tensor by tensor.

    ``alike``: buffers of one change; the first is described.
    """
    buffer = alike[0]
    names = [_device(other.device) for other in alike]
    which = names[0] if len(names) == 1 else f"{', '.join(names)} (alike; layers are {names[0]}'s)"
    yield Text(
        f"{which}: compute buffer {tenths(buffer.before)} to {tenths(buffer.after)} MiB, {signed(buffer.change)}",
        "bold",
    )
    for sentence in sentences(buffer, a, b):
        yield Text(printable(sentence), "yellow")
    groups = [group for group in buffer.groups if abs(group.change) >= SMALL]
    if groups:
        yield from _group_lines(buffer, groups, a, b, top, unicode)
        nameless = [group.base for group in groups[:top] if group.base in meanings]
        yield from (f"{base} has no name in llama.cpp: {meanings[base]}" for base in nameless)
    lives, most = _large(buffer.lives), (top + 2) // 3
    yield from (printable(f"- {life_sentence(life, a, b)}") for life in lives[:most])
    if len(lives) > most:
        yield f"- {len(lives) - most} more hold their place longer, shorter or elsewhere (--top {3 * len(lives)}: all)"


def _large(lives: Sequence[LifeChange]) -> list[LifeChange]:
    return [life for life in lives if life.bytes >= MIB * life.count]


def sentences(buffer: BufferChange, a: str, b: str) -> Iterator[str]:
    """What moved a buffer, most important first."""
    before, after = buffer.before_peaks, buffer.after_peaks
    if not before or not after:
        yield f"only {b if after else a} computes anything here"
        return
    if buffer.same_moment and len(before) == 1:
        yield f"both are fullest at the same moment, when {_called(after[0].tensor)} gets its place"
    else:
        yield _fullest(a, before, b, buffer.after_then)
        yield _fullest(b, after, a, buffer.before_then)
    if not buffer.alive and not buffer.groups:
        yield (
            f"the same tensors are alive, to the byte; {tenths(abs(buffer.lost))} MiB"
            f" {'more' if buffer.lost > 0 else 'less'} are lost in gaps between them"
        )
    elif buffer.lost:
        yield f"live tensors {with_unit(buffer.alive)}, gaps between them {with_unit(buffer.lost)}"
    if buffer.same_moment:
        large = [gap for gap in buffer.gaps if (gap.bytes - gap.other) * 4 >= max(abs(buffer.change), abs(buffer.lost))]
        for gap in large[:2]:
            yield gap_sentence(gap, a, b)


def _fullest(name: str, peaks: Sequence[Peak], other: str, then: int | None) -> str:
    """When one side is fullest, chunk by chunk, and how full the other is at the same step."""
    if len(peaks) > 1:
        chunks = [
            f"{tenths(p.bytes)} MiB, fullest when {_called(p.tensor)} [{p.tensor.does}] gets its place" for p in peaks
        ]
        return f"in {name} it has {len(peaks)} chunks: {'; '.join(chunks)}"
    said = f"{name} is fullest when {_called(peaks[0].tensor)} gets its place"
    return said if then is None else f"{said}; at that step {other}'s buffer is filled to {tenths(then)} MiB"


def gap_sentence(gap: GapChange, a: str, b: str) -> str:
    """Who left the place that one side loses, what no longer fits there, and what fills it on the other side."""
    here, there = (b, a) if gap.side == "after" else (a, b)
    owner = f"{_called(gap.owner)} ({tenths(gap.owner.bytes)} MiB)"
    said = f"in {here}, {tenths(gap.bytes)} MiB stay empty where {owner} lay"
    if gap.above is not None:
        said += f": too little for {_called(gap.above)} ({tenths(gap.above.bytes)} MiB), which lies above"
    for filling in sorted(gap.filled_otherwise, key=lambda f: -f.tensor.bytes)[:1]:
        said += f"; in {there}, {_called(filling.tensor)} ({tenths(filling.tensor.bytes)} MiB) fills that place"
        other = filling.counterpart
        if other is None:
            said += f", and {here} has no such tensor"
        elif other.in_place_of:
            said += f", and in {here} it takes over the place of {other.in_place_of}"
        elif not filling.alive:
            said += f", and in {here} it is not alive by then"
    return said


def life_sentence(life: LifeChange, a: str, b: str) -> str:
    """A stay that is longer, shorter or in another's place, in one sentence."""
    which = f"{life.base} ({_counted(life.count, life.bytes)})"
    of = life.of or "an unnamed tensor"
    if life.how == "in place":
        return f"{which} takes over the place of {of} in {b}, and has a place of its own in {a}"
    if life.how == "own place":
        return f"{which} has a place of its own in {b}, and takes over that of {of} in {a}"
    until = f", until {of} is computed" if life.of else ""
    return f"{which} holds its place {life.how} in {b} than in {a}{until}"


def _counted(count: int, size: int) -> str:
    return f"{tenths(size)} MiB" if count == 1 else f"{count} x {tenths(size // count)} MiB"


def _called(p: Placed) -> str:
    """A tensor without its number: ``FLASH_ATTN_EXT of q of layer 2``."""
    return p.base if p.layer is None else f"{p.base} of layer {p.layer}"


def _group_lines(
    buffer: BufferChange, groups: Sequence[GroupChange], a: str, b: str, top: int, unicode: bool
) -> Iterator[Line]:
    rows: list[list[Cell]] = []
    for group in groups[:top]:
        fullest = a if group.after else b
        either = group.after or group.before
        ops = " and ".join(dict.fromkeys(p.does for p in either))
        said = FATES[group.fate].format(a=a, b=b, other=fullest)
        change: Cell = (signed(group.change), "red" if group.change > 0 else "green")
        rows.append([change, _size(group.before), _size(group.after), printable(group.base), ops, said])
    rest = groups[top:]
    if rest:
        rows.append([signed(sum(group.change for group in rest)), "", "", f"{len(rest)} more", "", ""])
    if buffer.lost:
        lost = [sum(peak.lost for peak in peaks) for peaks in (buffer.before_peaks, buffer.after_peaks)]
        rows.append([signed(buffer.lost), tenths(lost[0]), tenths(lost[1]), "lost in gaps", "", ""])
    chunked = max(len(buffer.before_peaks), len(buffer.after_peaks)) > 1
    which = "its chunk" if chunked else "the host" if buffer.device == "CPU" else buffer.device
    heads = ["change", a, b, f"alive when {which} is fullest", "op", ""]
    yield from column_lines(heads, rows, [True, True, True, False, False, False], unicode)


def _size(members: Sequence[Placed]) -> str:
    return tenths(sum(p.bytes for p in members)) if members else ""


def signed(size: int) -> str:
    """Bytes as MiB with their sign; in bytes where that would be 0.0."""
    return f"{size:+,} B" if 0 < abs(size) < MIB // 20 else f"{size / MIB:+,.1f}"


def with_unit(size: int) -> str:
    """``signed`` with the one unit that it is in, for a sentence."""
    said = signed(size)
    return said if said.endswith(" B") else f"{said} MiB"
