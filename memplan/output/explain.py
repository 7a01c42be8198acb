"""An explanation as text for people, or as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from memplan.explaining.names import UNNAMED, ranges
from memplan.explaining.result import ComputeBuffer, Explanation, Peak, Placed, Resident, SplitUse
from memplan.output.columns import Cell, Line, column_lines
from memplan.output.explain_words import chunks_line, meaning, percent, plural, shape_text, tenths, verdict
from memplan.output.json import estimate_object, plain
from memplan.output.words import MIB, model_line, printable, settings_line, to_text, verdict_line
from memplan.result import Estimate

SMALL = MIB // 10
"""Inputs below this many bytes are not listed."""


def render_explanation(
    x: Explanation,
    *,
    top: int = 10,
    device: str = "",
    smaller: Sequence[tuple[str, Estimate]] = (),
    colour: bool = False,
    unicode: bool = True,
    width: int | None = None,
) -> str:
    """All of it: each device's peak, the largest tensors, the splits, and where everything lies.

    ``top``: lines of each list.  ``device``: only this device, if one is named.  ``smaller``: other settings and their
    estimates, whose compute buffers are told beside this one's.
    """
    estimate = x.estimate
    lines: list[Line] = [Text(model_line(estimate), "bold"), settings_line(estimate)]
    if estimate.refused is not None:
        lines += ["", Text(f"llama.cpp does not start with these settings: {estimate.refused.message}", "bold red")]
        return to_text(lines, colour, width)
    lines += [note for note in estimate.notes if note.startswith("--path ")]
    lines.append(Text(verdict_line(estimate), "bold green" if estimate.fits else "bold red"))
    for buffer in x.buffers:
        if device in ("", buffer.device):
            lines += _buffer_lines(x, buffer, smaller, top, unicode)
    if not device:
        lines += ["", Text("The largest tensors of the prompt's graph", "bold")]
        lines += _largest_lines(x.largest, top, unicode)
    lines += _split_lines([split for split in x.splits if device in ("", split.device)], top, unicode)
    names = {buffer.buffer for buffer in x.buffers if device in ("", buffer.device)}
    lines += _resident_lines([r for r in x.residents if not device or r.buffer in names], top, unicode)
    if estimate.approximate:
        lines += ["", f"not exact: {estimate.approximate}"]
    return to_text(lines, colour, width)


def explanation_json(x: Explanation, top: int = 100) -> str:
    """The explanation as one JSON object; sizes in bytes. ``top``: how many of the graph's largest tensors."""
    found = {
        "estimate": estimate_object(x.estimate),
        "buffers": [_buffer_object(buffer) for buffer in x.buffers],
        "largest": [plain(p) for p in x.largest[:top]],
        "splits": [plain(split) for split in x.splits],
        "residents": [plain(r) for r in x.residents],
    }
    return json.dumps(found, indent=2) + "\n"


# --- text -------------------------------------------------------------------------------------------------------------


def _buffer_lines(
    x: Explanation, buffer: ComputeBuffer, smaller: Sequence[tuple[str, Estimate]], top: int, unicode: bool
) -> Iterator[Line]:
    yield ""
    head = Text(f"{buffer.device}: compute buffer of {tenths(buffer.bytes)} MiB", "bold")
    if buffer.buffer != buffer.device:
        head.append(f" in {buffer.buffer}")
    yield head
    yield Text(printable(verdict(buffer)), "yellow")
    yield from filter(None, (meaning(buffer, x.meanings), chunks_line(buffer)))
    others = [(flag, e.buffers[buffer.buffer].compute) for flag, e in smaller if buffer.buffer in e.buffers]
    if others:
        yield "it would be " + ", ".join(f"{tenths(size)} MiB with {flag}" for flag, size in others)
    for peak in buffer.peaks:
        yield printable(_moment(peak, x.estimate.nodes[0], len(buffer.peaks) > 1))
        yield from _tensor_lines(peak, top, unicode)


def _moment(peak: Peak, nodes: int, chunked: bool) -> str:
    chunk = f"chunk {peak.chunk}: " if chunked else ""
    tensor = peak.tensor
    layer = "" if tensor.layer is None else f", in layer {tensor.layer}"
    where = "before the first node" if peak.node < 0 else f"at node {peak.node:,} of {nodes:,}"
    return f"{chunk}fullest {where}{layer}, when {tensor.title} [{tensor.does}] gets its place"


def _tensor_lines(peak: Peak, top: int, unicode: bool) -> Iterator[Line]:
    rows: list[list[Cell]] = []
    alike = _with_copies(peak.live)
    for copies in alike[:top]:
        p = copies[0]
        size = sum(copy.bytes for copy in copies)
        last = max(copy.last for copy in copies)
        alive = f"{p.first:,}..{last:,}" if p.first >= 0 else f"start..{last:,}"
        layer = ranges(sorted({copy.layer for copy in copies if copy.layer is not None}))
        word = "copies" if p.does == "copy" else "alike"
        title = p.title if len(copies) == 1 else f"{len(copies)} {word}: {p.title} ..."
        row: list[Cell] = [(tenths(size), "yellow"), percent(size, peak.bytes)]
        rows.append([*row, printable(title), p.does, p.type, shape_text(p.shape), layer, alive])
    blank: list[Cell] = [""] * 5
    rest = [p for copies in alike[top:] for p in copies]
    if rest:
        size = sum(p.bytes for p in rest)
        rows.append([(tenths(size), "yellow"), percent(size, peak.bytes), f"{len(rest)} more", *blank])
    if peak.gaps:
        gaps = f"lost in {len(peak.gaps)} {plural('gap', len(peak.gaps))} between them"
        rows.append([(tenths(peak.lost), "red"), percent(peak.lost, peak.bytes), gaps, *blank])
    rows.append([(tenths(peak.bytes), "bold"), "100", "in all", *blank])
    heads = ["MiB", "%", "tensor", "op", "type", "shape", "layer", "alive at nodes"]
    yield from column_lines(heads, rows, [True, True, False, False, False, False, True, False], unicode)


def _with_copies(live: Sequence[Placed]) -> list[list[Placed]]:
    """Live tensors, largest first; together are the copies that pipeline parallelism keeps of one input, and inputs
    without a name that are alike in all layers."""
    groups: dict[object, list[Placed]] = {}
    for p in live:
        alike = (p.base, p.type, p.shape, p.bytes, p.first)
        nameless = p.does == "input" and p.base != p.name and UNNAMED.match(p.name)
        key = (*alike, p.last) if p.does == "copy" else alike if nameless else id(p)
        groups.setdefault(key, []).append(p)
    return sorted(groups.values(), key=lambda copies: -sum(p.bytes for p in copies))


def _largest_lines(tensors: Sequence[Placed], top: int, unicode: bool) -> Iterator[Line]:
    """Those of all layers in one line."""
    alike: dict[tuple[object, ...], list[Placed]] = {}
    for p in tensors:
        alike.setdefault((p.base, p.op, p.type, p.shape, p.bytes), []).append(p)
    rows: list[list[Cell]] = []
    for members in list(alike.values())[:top]:
        p = members[0]
        layers = ranges(sorted({m.layer for m in members if m.layer is not None}))
        size: Cell = (tenths(p.bytes), "yellow")
        rows.append([size, printable(p.base), p.does, p.type, shape_text(p.shape), str(len(members)), layers])
    heads = ["MiB each", "tensor", "op", "type", "shape", "count", "layers"]
    yield from column_lines(heads, rows, [True, False, False, False, False, True, False], unicode)


def _split_lines(splits: Sequence[SplitUse], top: int, unicode: bool) -> Iterator[Line]:
    by_device: dict[str, list[SplitUse]] = {}
    for split in splits:
        by_device.setdefault(split.device, []).append(split)
    yield ""
    yield Text("Splits of the prompt's graph, and what is copied in for them", "bold")
    rows: list[list[Cell]] = []
    for device, own in by_device.items():
        inputs = [i for split in own for i in split.inputs]
        weights = [i for i in inputs if i.weight]
        copies = max((i.copies for i in inputs), default=1)
        rows.append(
            [
                device,
                f"{len(own):,}",
                f"{sum(split.last - split.first + 1 for split in own):,}",
                f"{len(inputs):,}",
                tenths(sum(i.cost for i in inputs)),
                tenths(sum(i.cost for i in weights)) if weights else "",
                str(copies),
            ]
        )
    heads = ["device", "splits", "nodes", "inputs", "MiB copied in", "of weights", "copies kept"]
    yield from column_lines(heads, rows, [False, *[True] * 6], unicode)
    large = ((i, split) for split in splits for i in split.inputs if i.cost >= SMALL)
    largest = sorted(large, key=lambda pair: -pair[0].cost)[:top]
    if largest:
        rows = [
            [
                (tenths(i.cost), "yellow"),
                printable(i.name),
                i.type,
                f"{i.source} to {split.device}",
                f"{split.first:,}..{split.last:,}",
                f"{i.copies} x {tenths(i.bytes)}" if i.copies > 1 else "",
            ]
            for i, split in largest
        ]
        yield ""
        heads = ["MiB", "input", "type", "from, to", "for nodes", "copies"]
        yield from column_lines(heads, rows, [True, False, False, False, False, False], unicode)


def _resident_lines(residents: Sequence[Resident], top: int, unicode: bool) -> Iterator[Line]:
    yield ""
    yield Text("Weights, caches and states, and where they lie", "bold")
    groups: dict[tuple[str, str, str, str], list[Resident]] = {}
    for r in residents:
        groups.setdefault((r.buffer, r.kind, r.role, r.type), []).append(r)
    ranked = sorted(groups.items(), key=lambda item: -sum(r.bytes for r in item[1]))
    shown = sorted(ranked[:top], key=lambda item: item[0][0])
    rows: list[list[Cell]] = []
    for (buffer, kind, role, type), members in shown:
        size = sum(r.bytes for r in members)
        layers = ranges(sorted({r.layer for r in members if r.layer is not None}))
        rows.append([buffer, (tenths(size), "yellow"), kind, printable(role), type, str(len(members)), layers])
    rest = [r for _, members in ranked[top:] for r in members]
    if rest:
        rows.append(["", (tenths(sum(r.bytes for r in rest)), "yellow"), "", "the rest", "", str(len(rest)), ""])
    heads = ["buffer", "MiB", "", "tensors", "type", "count", "layers"]
    yield from column_lines(heads, rows, [False, True, False, False, False, True, False], unicode)


# --- JSON -------------------------------------------------------------------------------------------------------------


def _buffer_object(buffer: ComputeBuffer) -> dict[str, Any]:
    return {
        "device": buffer.device,
        "buffer": buffer.buffer,
        "bytes": buffer.bytes,
        "verdict": verdict(buffer),
        "peaks": [
            {
                "chunk": peak.chunk,
                "bytes": peak.bytes,
                "node": peak.node,
                "tensor": peak.tensor.name,
                "live": [plain(p) for p in peak.live],
                "gaps": [plain(gap) for gap in peak.gaps],
                "groups": [plain(group) for group in peak.groups],
            }
            for peak in buffer.peaks
        ],
    }
