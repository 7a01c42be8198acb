"""The two ways of a path as tables for people, or as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rich.text import Text

from memplan.comparing.paths import BothPaths, PathSide
from memplan.explaining.names import ranges
from memplan.explaining.result import Explanation
from memplan.output.columns import Cell, Line, column_lines
from memplan.output.compare import alike_buffers, buffer_lines, signed
from memplan.output.compare_json import comparison_object
from memplan.output.compare_verdict import where_short
from memplan.output.explain_words import shape_text, tenths
from memplan.output.json import estimate_object, plain
from memplan.output.sweep import closing_notes
from memplan.output.table import beside_on_devices
from memplan.output.words import mib, model_line, printable, settings_line, to_text, unchecked
from memplan.result import HostUse


def render_paths(
    p: BothPaths, *, top: int = 12, colour: bool = False, unicode: bool = True, width: int | None = None
) -> str:
    """Device by device, what each path takes; the tensors that make the difference; how much context each allows."""
    first = p.sides[0].explanation.estimate
    lines: list[Line] = [Text(model_line(first), "bold"), settings_line(first), usual_line(p)]
    for side in p.sides:
        refused = side.explanation.estimate.refused
        if refused is not None:
            lines.append(Text(f"{side.path}: llama.cpp does not start: {printable(refused.message)}", "red"))
    if first.refused is None:
        lines += ["", *_devices(p, unicode)]
    if p.tensors:
        lines += ["", Text("Tensors that only one path has", "bold"), *_tensors(p, top, unicode)]
    for alike in alike_buffers(p.comparison.buffers) if p.comparison is not None else ():
        if alike[0].change:
            meanings, fewer = p.sides[-1].explanation.meanings, max(1, top // 2)
            lines += ["", *buffer_lines(alike, meanings, "fused", "unfused", fewer, unicode)]
    lines += ["", *(Text(context_line(side), "bold") for side in p.sides)]
    return to_text([*lines, *closing_notes(side.explanation.estimate for side in p.sides)], colour, width)


def usual_line(p: BothPaths) -> str:
    """Which path the release takes."""
    name = p.release.name
    if len(p.sides) == 1:
        return f"{name} has no fused {p.name}: only the unfused path is there"
    if p.usual == "fused":
        return f"{name} takes the fused path here{_where_fused(p.sides[0].explanation)}"
    return f"{name} takes the unfused path here: it turns the fused {p.name} off where a device lacks it"


def _where_fused(x: Explanation) -> str:
    """That the fused op runs on the host, or some of them do, where there are GPUs."""
    homes = [b.device for b in x.buffers for p in b.tensors if p.op == "LIGHTNING_INDEXER"]
    host = homes.count("CPU")
    if not host or not x.estimate.devices:
        return ""
    which = "the op" if host == len(homes) else f"the op of {host} in {len(homes)} layers"
    return (
        f"; the host computes {which}: each layer's inputs are copied there and its scores back, so a prompt's graph"
        f" has {x.estimate.splits[0]} splits"
    )


def context_line(side: PathSide) -> str:
    """From which context on a path no longer fits."""
    found = side.largest
    if found.value is not None and unchecked(found.estimate):
        takes = f"{found.value:,} tokens of context take {mib(found.estimate.host.used)} MiB"
        return f"{side.path}: {takes} of the host's memory, which is not checked: --host-mib says what it has"
    if found.value is None:
        return f"{side.path}: no context fits; with {found.estimate.n_ctx:,} tokens {_said(side)}"
    if found.beyond is None:
        return f"{side.path}: fits up to {found.value:,} tokens of context, the model's own"
    return f"{side.path}: fits up to {found.value:,} tokens of context; from {found.beyond[0]:,} on, {_said(side)}"


def _said(side: PathSide) -> str:
    found = side.largest
    estimate = found.estimate if found.value is None or found.beyond is None else found.beyond[1]
    if estimate.refused is not None:
        return f"llama.cpp refuses ({printable(estimate.refused.title)})"
    if estimate.fits:
        return f"less than the reserve is left on {' and '.join(device.name for device in estimate.tight)}"
    if estimate.starts:
        return f"it starts, but what kernels take does not fit{where_short(estimate)}"
    return f"it does not fit{where_short(estimate)}"


def _devices(p: BothPaths, unicode: bool) -> Iterator[Line]:
    """A row for each device: what it holds, on both paths where they may differ, by how much, and what is left."""
    estimates = [side.explanation.estimate for side in p.sides]
    paths = [side.path for side in p.sides]
    every = [("model", "", "weights"), ("context", "", "context"), ("compute", "yellow", "compute")]
    every += beside_on_devices(estimates)
    devices = list(zip(*([*e.devices, e.host] for e in estimates), strict=True))
    both = {"compute", "run_time"}
    both |= {field for field, _, _ in every if any(len({getattr(use, field) for use in uses}) > 1 for uses in devices)}
    rows: list[list[Cell]] = []
    for uses in devices:
        first, last = uses[0], uses[-1]
        row: list[Cell] = ["host" if isinstance(first, HostUse) else first.name]
        for field, style, _ in every:
            row += [(tenths(getattr(use, field)), style) for use in (uses if field in both else uses[:1])]
        changes = [getattr(last, field) - getattr(first, field) for field, _, _ in every]
        row += [signed(sum(changes))] if len(uses) > 1 else []
        rows.append([*row, *(_left(use.left) for use in uses)])
    heads = ["MiB"]
    for field, _, name in every:
        heads += [f"{path} {name}" for path in paths] if field in both else [name]
    heads += ["change"] if len(paths) > 1 else []
    heads += [f"{path} left" for path in paths]
    yield from column_lines(heads, rows, [False, *[True] * (len(heads) - 1)], unicode)


def _left(left: int | None) -> Cell:
    return "" if left is None else (mib(left), "red" if left < 0 else "green")


def _tensors(p: BothPaths, top: int, unicode: bool) -> Iterator[Line]:
    """Like tensors of several devices in one line."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for i, t in enumerate(p.tensors):
        alike.setdefault((t.path, t.tensor.base, t.tensor.op, t.tensor.shape, t.tensor.type), []).append(i)
    rows: list[list[Cell]] = []
    for members in list(alike.values())[:top]:
        same = [p.tensors[i] for i in members]
        t = same[0]
        name = printable(t.tensor.base) + (" (its permuted copy)" if t.copy else "")
        at_peak = [f"{s.at_peak} on {s.device}" for s in same if s.at_peak]
        layers = sorted({layer for s in same for layer in s.layers})
        row: list[Cell] = [t.path, (tenths(t.tensor.bytes), "yellow"), name, t.tensor.does, t.tensor.type]
        row += [shape_text(t.tensor.shape), str(sum(s.count for s in same)), ranges(layers)]
        rows.append([*row, ", ".join(at_peak) or "none"])
    heads = ["path", "MiB each", "tensor", "op", "type", "shape", "count", "layers", "alive at the peak"]
    right = [False, True, False, False, False, False, True, False, False]
    yield from column_lines(heads, rows, right, unicode)


def paths_json(p: BothPaths) -> str:
    """One object: both paths with their estimates and largest contexts, what differs, and the whole comparison."""
    found: dict[str, Any] = {
        "llama": p.release.name,
        "name": p.name,
        "indexer": p.usual,
        "paths": [_side(side) for side in p.sides],
        "tensors": [
            {
                "path": t.path,
                "device": t.device,
                "count": t.count,
                "layers": list(t.layers),
                "permuted_copy": t.copy,
                "alive_at_peak": t.at_peak,
                "tensor": plain(t.tensor),
            }
            for t in p.tensors
        ],
        "comparison": None if p.comparison is None else comparison_object(p.comparison, ("fused", "unfused")),
    }
    return json.dumps(found, indent=2) + "\n"


def _side(side: PathSide) -> dict[str, Any]:
    beyond = side.largest.beyond
    return {
        "path": side.path,
        "estimate": estimate_object(side.explanation.estimate),
        "largest_context": side.largest.value,
        "does_not_fit_from": None if beyond is None else beyond[0],
        "beyond": None if beyond is None else estimate_object(beyond[1]),
        "said": context_line(side),
    }
