"""A sweep as table, CSV or JSON: pure functions from data to text."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

from rich.text import Text

from memplan.llama.refusals import Refusal
from memplan.notes import context_note
from memplan.output.columns import Cell, Line, column_lines
from memplan.output.json import estimate_object
from memplan.output.words import host_notes, mib, model_line, outside_notes, printable, to_text, unchecked
from memplan.result import Estimate
from memplan.sweeping.axes import Axis, Value
from memplan.sweeping.effective import remarks
from memplan.sweeping.sweep import Sweep

MOST_COLUMNS = 6
"""GPUs that a table has a column each for; with more it shows the one with the least left."""


def settings_text(estimate: Estimate, given: Sequence[str], axes: Sequence[Axis]) -> str:
    """The program, its release and the flags that stay the same: ``llama-server v0.5.0 -cmoe -np 1``."""
    swept = {axis.name for axis in axes}
    program = "llama.cpp" if "app" in swept else f"llama-{estimate.flags.app}"
    release = [] if "llama" in swept else [estimate.llama]
    return printable(" ".join([program, *release, *given]))


def whole_context(estimate: Estimate, axes: Sequence[Axis]) -> str:
    """That the context is the model's own, where nobody said how long it is."""
    if estimate.refused or estimate.flags.n_ctx or any(axis.is_context for axis in axes):
        return ""
    return f", the model's own context of {estimate.n_ctx:,} tokens"


def render_sweep(
    sweep: Sweep, given: Sequence[str] = (), *, colour: bool = False, unicode: bool = True, width: int | None = None
) -> str:
    """A row a point: what is left on each GPU, what the host takes, and whether it fits. MiB."""
    first = sweep.points[0].estimate
    names = device_names(point.estimate for point in sweep.points)
    wide = len(names) <= MOST_COLUMNS
    heads = [axis.name for axis in sweep.axes]
    right = [axis.is_number for axis in sweep.axes]
    lefts = [f"{name} left" for name in names] if wide else ["least left", "on"]
    rows: list[list[Cell]] = []
    for point in sweep.points:
        estimate = point.estimate
        row: list[Cell] = [value_text(value) for value in point.values]
        row += _lefts(estimate, names) if wide else least_cells(estimate)
        row += ["" if estimate.refused else mib(estimate.host.used), verdict_cell(estimate)]
        rows.append(row)
    head = [*heads, *lefts, "host used", ""]
    aligned = [*right, *([True] * len(lefts) if wide else [True, False]), True, False]
    fitting = sum(point.estimate.fits for point in sweep.points)
    lines: list[Line] = [
        Text(model_line(first), "bold"),
        f"{settings_text(first, given, sweep.axes)}{whole_context(first, sweep.axes)}: MiB",
        "",
        *column_lines(head, rows, aligned, unicode),
        "",
        *([] if all(unchecked(point.estimate) for point in sweep.points) else [f"{fitting} of {len(rows)} fit"]),
    ]
    lines += remarks(sweep.axes, [(point.values, point.estimate) for point in sweep.points])
    return to_text([*lines, *closing_notes(point.estimate for point in sweep.points)], colour, width)


def sweep_csv(sweep: Sweep) -> str:
    """A row a point, sizes in bytes: the axes, the release, what each GPU and the host take, whether it fits."""
    names = device_names(point.estimate for point in sweep.points)
    parts = ("model", "context", "compute", "run time", "draft", "projector", "free", "left")
    columns = [f"{name} {part}" for name in names for part in parts]
    head = [axis.name for axis in sweep.axes] + ["release", "n_ctx", "n_ctx_seq", *columns]
    rows: list[list[object]] = []
    for point in sweep.points:
        e = point.estimate
        row: list[object] = [*point.values, e.llama, e.n_ctx, e.n_ctx_seq]
        by_name = {device.name: device for device in e.devices}
        for name in names:
            d = by_name.get(name)
            if d is None:
                row += [""] * len(parts)
            elif e.refused:
                row += [*[""] * (len(parts) - 2), d.free, ""]
            else:
                row += [d.model, d.context, d.compute, d.run_time, d.draft, d.projector, d.free, d.left]
        row += [""] * 3 if e.refused else [e.host.model, e.host.context, e.host.compute]
        row += [e.fits, e.exact, e.refused.kind if e.refused else ""]
        rows.append(row)
    return csv_text([*head, "host model", "host context", "host compute", "fits", "exact", "refused"], rows)


def sweep_json(sweep: Sweep) -> str:
    """One object: the axes and the points, each with its whole estimate."""
    points = [
        {"values": named_values(sweep.axes, point.values), "estimate": estimate_object(point.estimate)}
        for point in sweep.points
    ]
    return json.dumps({"axes": [axis_object(axis) for axis in sweep.axes], "points": points}, indent=2) + "\n"


def axis_object(axis: Axis) -> dict[str, Any]:
    """An axis as JSON has it."""
    return {"name": axis.name, "flags": list(axis.flags), "values": list(axis.values)}


def named_values(axes: Sequence[Axis], values: Sequence[Value]) -> dict[str, Value]:
    """One value of each axis, by the axis' name."""
    return {axis.name: value for axis, value in zip(axes, values, strict=True)}


def csv_text(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table as CSV; true and false as JSON writes them."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([str(cell).lower() if isinstance(cell, bool) else cell for cell in row] for row in rows)
    return out.getvalue()


def device_names(estimates: Iterable[Estimate]) -> list[str]:
    """Every GPU of some estimates, each once."""
    return list(dict.fromkeys(device.name for estimate in estimates for device in estimate.devices))


def value_text(value: Value) -> str:
    """One value of an axis as a table shows it."""
    return f"{value:,}" if isinstance(value, int) else printable(value)


def _lefts(estimate: Estimate, names: Sequence[str]) -> list[Cell]:
    left = {} if estimate.refused else {device.name: device.left for device in estimate.devices}
    return [(mib(left.get(name)), "red" if left.get(name, 0) < 0 else "green") for name in names]


def least_cells(estimate: Estimate) -> list[Cell]:
    """What is left where least is, and where that is."""
    place = _least(estimate)
    if place is None:
        return ["", ""]
    left, name = place
    return [(mib(left), "red" if left < 0 else "green"), name]


def least_place(estimate: Estimate) -> str:
    """Where least is left; nothing where all is."""
    place = _least(estimate)
    return "" if place is None else place[1]


def _least(estimate: Estimate) -> tuple[int, str] | None:
    if estimate.refused:
        return None
    places = [(device.left, device.name) for device in estimate.devices if device.used]
    if estimate.host.left is not None:
        places.append((estimate.host.left, "the host"))
    return min(places, default=None)


def verdict_cell(estimate: Estimate) -> tuple[str, str]:
    """Whether it fits, where it is short and by how many MiB, or why llama.cpp refuses; with a style."""
    if estimate.refused:
        return f"refused: {printable(estimate.refused.title)}", "red"
    if estimate.draft_refused:
        return f"refused: {printable(estimate.draft_refused.title)}", "red"
    if unchecked(estimate):
        return "not checked", ""
    if estimate.fits:
        buts = ["for run time"] * bool(estimate.unmodelled) + ["is tight"] * bool(estimate.tight)
        return f"fits{', but ' * bool(buts)}{' and '.join(buts)}", "yellow" if estimate.tight else "green"
    return f"{'starts, then ' if estimate.starts else ''}short: {shortage(estimate)}", "red"


def shortage(estimate: Estimate) -> str:
    """Where memory is short, and by how many MiB; nothing when it is not."""
    short = [f"{name} {mib(size, up=True)}" for name, size in estimate.shortages]
    return ", ".join(short[:2]) + (f" and {len(short) - 2} more" if len(short) > 2 else "")


def closing_notes(estimates: Iterable[Estimate]) -> list[str]:
    """Why some are refused, what is not checked or not counted, why some of it is not exact: each once."""
    estimates = list(estimates)
    reasons = dict.fromkeys(e.approximate for e in estimates if e.approximate)
    contexts = dict.fromkeys(note for e in estimates if (note := context_note(e)))
    refusals = dict.fromkeys(_refusal(why) for e in estimates if (why := e.refused or e.draft_refused) is not None)
    return [
        *refusals,
        *host_notes(estimates),
        *outside_notes(estimates),
        *contexts,
        *(f"not exact: {why}" for why in reasons),
    ]


def _refusal(refused: Refusal) -> str:
    said = "" if refused.title == refused.message else f": {refused.message}"
    return printable(f"{refused.title}{said}" + (f"; {refused.fix}" if refused.fix else ""))
