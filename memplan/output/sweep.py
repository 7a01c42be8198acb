"""A sweep, and the largest values that fit, as table, CSV or JSON: pure functions from data to text."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from memplan.notes import context_note
from memplan.output.columns import Cell, column_lines
from memplan.output.json import estimate_object
from memplan.output.words import host_notes, mib, model_line, printable, to_text
from memplan.result import Estimate
from memplan.sweeping.axes import Axis, Value
from memplan.sweeping.largest import Largest, slack
from memplan.sweeping.sweep import Sweep

MOST_COLUMNS = 6
"""GPUs that a table has a column each for; with more it shows the one with the least left."""


@dataclass(frozen=True, slots=True)
class LargestRow:
    """The largest value that fits with one combination of the other axes' values."""

    values: tuple[Value, ...]
    largest: Largest


def settings_text(estimate: Estimate, given: Sequence[str], axes: Sequence[Axis]) -> str:
    """The program, its release and the flags that stay the same: ``llama-server v0.5.0 -cmoe -np 1``."""
    swept = {axis.name for axis in axes}
    program = "llama.cpp" if "app" in swept else f"llama-{estimate.flags.app}"
    release = [] if "llama" in swept else [estimate.llama]
    return printable(" ".join([program, *release, *given]))


def render_sweep(sweep: Sweep, given: Sequence[str] = (), *, colour: bool = False, unicode: bool = True) -> str:
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
        row: list[Cell] = [_value(value) for value in point.values]
        row += _lefts(estimate, names) if wide else least_cells(estimate)
        row += ["" if estimate.refused else mib(estimate.host.used), verdict_cell(estimate)]
        rows.append(row)
    head = [*heads, *lefts, "host used", ""]
    aligned = [*right, *([True] * len(lefts) if wide else [True, False]), True, False]
    fitting = sum(point.estimate.fits for point in sweep.points)
    lines: list[Text | str] = [
        Text(model_line(first), "bold"),
        f"{settings_text(first, given, sweep.axes)}: MiB",
        "",
        *column_lines(head, rows, aligned, unicode),
        "",
        f"{fitting} of {len(rows)} fit",
    ]
    return to_text([*lines, *closing_notes(point.estimate for point in sweep.points)], colour)


def render_largest(
    name: str,
    axes: Sequence[Axis],
    rows: Sequence[LargestRow],
    given: Sequence[str] = (),
    *,
    colour: bool = False,
    unicode: bool = True,
) -> str:
    """A row a combination of the other ``axes``: the largest value, what it leaves, and why the next does not fit."""
    first = rows[0].largest.estimate
    cells: list[list[Cell]] = []
    for row in rows:
        found = row.largest
        cell: list[Cell] = [_value(value) for value in row.values]
        if found.value is None:
            cell += [("none", "bold red"), "", "", verdict_cell(found.estimate)[0]]
        else:
            left, on = least_cells(found.estimate)
            cell += [(f"{found.value:,}", "bold green"), left, on, _beyond(found)]
        cells.append(cell)
    heads = [*(axis.name for axis in axes), f"largest {name}", "left, MiB", "on", "and then"]
    aligned = [*(axis.is_number for axis in axes), True, True, False, False]
    tried = sum(row.largest.tried for row in rows)
    how = " and ".join(sorted({row.largest.method for row in rows}))
    lines: list[Text | str] = [
        Text(model_line(first), "bold"),
        settings_text(first, given, axes),
        "",
        *column_lines(heads, cells, aligned, unicode),
        "",
        f"found by {how}, {tried} estimates",
    ]
    return to_text([*lines, *closing_notes(row.largest.estimate for row in rows)], colour)


def sweep_csv(sweep: Sweep) -> str:
    """A row a point, sizes in bytes: the axes, the release, what each GPU and the host take, whether it fits."""
    names = device_names(point.estimate for point in sweep.points)
    columns = [f"{name} {part}" for name in names for part in ("model", "context", "compute", "free", "left")]
    head = [axis.name for axis in sweep.axes] + ["release", "n_ctx", "n_ctx_seq", *columns]
    rows: list[list[object]] = []
    for point in sweep.points:
        e = point.estimate
        row: list[object] = [*point.values, e.llama, e.n_ctx, e.n_ctx_seq]
        by_name = {device.name: device for device in e.devices}
        for name in names:
            d = by_name.get(name)
            if d is None:
                row += [""] * 5
            else:
                row += ["", "", "", d.free, ""] if e.refused else [d.model, d.context, d.compute, d.free, d.left]
        row += [""] * 3 if e.refused else [e.host.model, e.host.context, e.host.compute]
        row += [e.fits, e.exact, e.refused.kind if e.refused else ""]
        rows.append(row)
    return _csv([*head, "host model", "host context", "host compute", "fits", "exact", "refused"], rows)


def largest_csv(name: str, axes: Sequence[Axis], rows: Sequence[LargestRow]) -> str:
    """A row a combination of the other axes: the largest value, the bytes it leaves, how it was found."""
    head = [*(axis.name for axis in axes), f"largest {name}", "least left", "method", "tried"]
    table: list[list[object]] = []
    for row in rows:
        found = row.largest
        value, left = ("", "") if found.value is None else (found.value, slack(found.estimate))
        table.append([*row.values, value, left, found.method, found.tried])
    return _csv(head, table)


def sweep_json(sweep: Sweep) -> str:
    """One object: the axes and the points, each with its whole estimate."""
    points = [
        {"values": _named(sweep.axes, point.values), "estimate": estimate_object(point.estimate)}
        for point in sweep.points
    ]
    return json.dumps({"axes": [_axis_object(axis) for axis in sweep.axes], "points": points}, indent=2) + "\n"


def largest_json(name: str, axes: Sequence[Axis], rows: Sequence[LargestRow]) -> str:
    """One object: the axis, and for each combination of the others the largest value with its estimate."""
    found = [
        {
            "values": _named(axes, row.values),
            "value": row.largest.value,
            "method": row.largest.method,
            "tried": row.largest.tried,
            "estimate": estimate_object(row.largest.estimate),
            "beyond": None
            if row.largest.beyond is None
            else {"value": row.largest.beyond[0], "estimate": estimate_object(row.largest.beyond[1])},
        }
        for row in rows
    ]
    return json.dumps({"axis": name, "axes": [_axis_object(axis) for axis in axes], "largest": found}, indent=2) + "\n"


def _axis_object(axis: Axis) -> dict[str, Any]:
    return {"name": axis.name, "flags": list(axis.flags), "values": list(axis.values)}


def _named(axes: Sequence[Axis], values: Sequence[Value]) -> dict[str, Value]:
    return {axis.name: value for axis, value in zip(axes, values, strict=True)}


def _csv(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([str(cell).lower() if isinstance(cell, bool) else cell for cell in row] for row in rows)
    return out.getvalue()


def device_names(estimates: Iterable[Estimate]) -> list[str]:
    """Every GPU of some estimates, each once."""
    return list(dict.fromkeys(device.name for estimate in estimates for device in estimate.devices))


def _value(value: Value) -> str:
    return f"{value:,}" if isinstance(value, int) else printable(value)


def _lefts(estimate: Estimate, names: Sequence[str]) -> list[Cell]:
    left = {} if estimate.refused else {device.name: device.left for device in estimate.devices}
    return [(mib(left.get(name)), "red" if left.get(name, 0) < 0 else "green") for name in names]


def least_cells(estimate: Estimate) -> list[Cell]:
    """What is left where least is, and where that is."""
    if estimate.refused:
        return ["", ""]
    places = [(device.left, device.name) for device in estimate.devices if device.used]
    if estimate.host.left is not None:
        places.append((estimate.host.left, "the host"))
    if not places:
        return ["", ""]
    left, name = min(places)
    return [(mib(left), "red" if left < 0 else "green"), name]


def verdict_cell(estimate: Estimate) -> tuple[str, str]:
    """Whether it fits, where it is short and by how many MiB, or why llama.cpp refuses; with a style."""
    if estimate.refused:
        return f"refused: {printable(estimate.refused.title)}", "red"
    if estimate.fits:
        return "fits", "green"
    short = [f"{device.name} {mib(-device.left, up=True)}" for device in estimate.short]
    if estimate.host.left is not None and estimate.host.left < 0:
        short.append(f"host {mib(-estimate.host.left, up=True)}")
    shown = ", ".join(short[:2]) + (f" and {len(short) - 2} more" if len(short) > 2 else "")
    return f"short: {shown}", "red"


def _beyond(found: Largest) -> str:
    if found.beyond is None:
        return "nothing larger was asked"
    value, estimate = found.beyond
    return f"{value:,} is {verdict_cell(estimate)[0]}{'' if estimate.refused else ' MiB'}"


def closing_notes(estimates: Iterable[Estimate]) -> list[str]:
    """What is not checked, what is asked of the model, and why some of it is not exact, each reason once."""
    estimates = list(estimates)
    reasons = dict.fromkeys(e.approximate for e in estimates if e.approximate)
    contexts = dict.fromkeys(note for e in estimates if (note := context_note(e)))
    return [*host_notes(estimates), *contexts, *(f"not exact: {why}" for why in reasons)]
