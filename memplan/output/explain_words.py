"""What an explanation says in words: which tensor decides a buffer's size, and figures as its texts have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from memplan.explaining.names import ranges
from memplan.explaining.result import ComputeBuffer, Group
from memplan.output.words import MIB

MOST = 0.5
"""The share of a buffer with which a tensor decides its size by itself."""


def verdict(buffer: ComputeBuffer) -> str:
    """Which tensor it is, in one sentence."""
    groups, size = buffer.groups, buffer.bytes
    if not groups:
        return "nothing is computed here"
    top = groups[0]
    lost = ""
    if buffer.lost > MOST * top.bytes:
        gap = buffer.gaps[0]
        behind = f", mostly left behind by {gap.left_by}" if gap.left_by else ""
        lost = f"; {of_whole(buffer.lost, size)} lie in gaps{behind}"
    if top.bytes >= MOST * size:
        return f"{top.base} decides: {of_whole(top.bytes, size)}, {tensors_text(top)}{lost}"
    if len(groups) > 1 and groups[1].bytes * 2 <= top.bytes:
        return f"{top.base} takes most: {of_whole(top.bytes, size)}, {tensors_text(top)}{lost}"
    largest = ", ".join(f"{group.base} ({of_whole(group.bytes, size, group.count)})" for group in groups[:3])
    return f"no single tensor decides, the largest are {largest}{lost}"


def meaning(buffer: ComputeBuffer, meanings: Mapping[str, str]) -> str:
    """What the tensors that take most are, where llama.cpp has no name for them; empty for all others."""
    top = buffer.decides
    said = "" if top is None else meanings.get(top.base, "")
    return said and f"llama.cpp has no name for it: {said}"


def chunks_line(buffer: ComputeBuffer) -> str:
    """That a buffer has several chunks, each fullest at a moment of its own; empty for one."""
    if len(buffer.peaks) < 2:
        return ""
    sizes = " + ".join(tenths(peak.bytes) for peak in buffer.peaks)
    return f"in {len(buffer.peaks)} chunks ({sizes} MiB), each of which is fullest at a node of its own"


def of_whole(size: int, whole: int, count: int = 1) -> str:
    """Bytes in MiB, how many tensors they are, and their share of a whole."""
    return f"{tenths(size)} MiB{f' in {count} tensors' if count > 1 else ''}, {percent(size, whole)} %"


def tensors_text(group: Group) -> str:
    """How many tensors a group has, and of which layers."""
    count = f"{group.count} {plural('tensor', group.count)}"
    if not group.layers:
        return count
    return f"{count} of {plural('layer', len(group.layers))} {ranges(group.layers)}"


def plural(word: str, count: int) -> str:
    """The word for so many of it."""
    return word if count == 1 else f"{word}s"


def percent(size: int, whole: int) -> str:
    """A share in whole percent, without the sign."""
    return f"{100 * size / whole:.0f}"


def shape_text(shape: Iterable[int]) -> str:
    """A shape without its trailing ones: 128 x 4096."""
    extents = list(shape)
    while len(extents) > 1 and extents[-1] == 1:
        extents.pop()
    return " x ".join(f"{n}" for n in extents)


def tenths(size: int) -> str:
    """Bytes in MiB with one decimal."""
    return f"{size / MIB:,.1f}"
