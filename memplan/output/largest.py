"""The largest or smallest values that fit, as table, CSV or JSON: pure functions from data to text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from memplan.output.columns import Cell, Line, column_lines
from memplan.output.json import estimate_object
from memplan.output.sweep import (
    axis_object,
    closing_notes,
    csv_text,
    least_cells,
    least_place,
    named_values,
    settings_text,
    shortage,
    value_text,
    verdict_cell,
    whole_context,
)
from memplan.output.words import MIB, mib, model_line, to_text
from memplan.result import Estimate
from memplan.sweeping.axes import Axis, Value
from memplan.sweeping.effective import remarks
from memplan.sweeping.largest import Largest, slack


@dataclass(frozen=True, slots=True)
class Hunt:
    """What was looked for: the last value of ``axis`` that fits, with every combination of the ``others``.

    ``word``: largest or smallest.  ``margin``: bytes to be left on every GPU.  ``asked``: the values were given.
    """

    axis: Axis
    others: tuple[Axis, ...]
    word: str = "largest"
    margin: int = 0
    asked: bool = True

    @property
    def head(self) -> str:
        """What the column is called."""
        return f"{self.word} {self.axis.name}"


@dataclass(frozen=True, slots=True)
class LargestRow:
    """The last value that fits with one combination of the other axes' values."""

    values: tuple[Value, ...]
    largest: Largest


def render_largest(
    hunt: Hunt,
    rows: Sequence[LargestRow],
    given: Sequence[str] = (),
    *,
    colour: bool = False,
    unicode: bool = True,
    width: int | None = None,
) -> str:
    """A row a combination of the other axes: the value, what it leaves, and why the next does not fit."""
    first = rows[0].largest.estimate
    cells: list[list[Cell]] = []
    for row in rows:
        found = row.largest
        cell: list[Cell] = [value_text(value) for value in row.values]
        if found.value is None:
            cell += [("none", "bold red"), "", "", f"{found.first:,} {_verdict(found.estimate)}"]
        else:
            left, on = least_cells(found.estimate)
            cell += [(f"{found.value:,}", "bold green"), left, on, _beyond(hunt, found)]
        cells.append(cell)
    heads = [*(axis.name for axis in hunt.others), hunt.head, "left, MiB", "on", "and then"]
    aligned = [*(axis.is_number for axis in hunt.others), True, True, False, False]
    tried = sum(row.largest.tried for row in rows)
    how = " and ".join(sorted({row.largest.method for row in rows}))
    axes = (*hunt.others, hunt.axis)
    margin = f", {mib(hunt.margin)} MiB to be left on every GPU" if hunt.margin else ""
    lines: list[Line] = [
        Text(model_line(first), "bold"),
        f"{settings_text(first, given, axes)}{whole_context(first, axes)}{margin}",
        "",
        *column_lines(heads, cells, aligned, unicode),
        "",
        f"found by {how}, {tried} estimate{'s' * (tried != 1)}",
    ]
    if any(row.largest.value is None for row in rows):
        lines.append("none fits: memplan plan finds a placement that does; -cmoe keeps all experts on the host")
    shown = [
        ((*row.values, row.largest.first if row.largest.value is None else row.largest.value), row.largest.estimate)
        for row in rows
    ]
    lines += remarks(axes, shown)
    return to_text([*lines, *closing_notes(row.largest.estimate for row in rows)], colour, width)


def _beyond(hunt: Hunt, found: Largest) -> str:
    if found.beyond is not None:
        value, estimate = found.beyond
        return f"{value:,} {_verdict(estimate)}"
    if hunt.asked:
        return f"nothing {'larger' if hunt.word == 'largest' else 'smaller'} was asked"
    if hunt.word == "smallest":
        return "there is no less"
    return "all that the model has" if hunt.axis.is_context else "the most that is tried"


def _verdict(estimate: Estimate) -> str:
    """Why an estimate is not good enough; what leaves too little fits otherwise."""
    if estimate.refused or estimate.draft_refused:
        return f"is {verdict_cell(estimate)[0]}"
    if estimate.fits:
        least = min(estimate.devices, key=lambda device: device.left)
        return f"leaves {least.left // MIB:,} MiB on {least.name}"
    when = "starts, and is short once slots are full" if estimate.starts else "is short"
    return f"{when}: {shortage(estimate)} MiB"


def largest_csv(hunt: Hunt, rows: Sequence[LargestRow]) -> str:
    """A row a combination of the other axes: the value, the bytes it leaves, the next value, how it was found."""
    head = [*(axis.name for axis in hunt.others), hunt.head, "least left", "on", "next", "next left", "method", "tried"]
    table: list[list[object]] = []
    for row in rows:
        found = row.largest
        value, left = ("", "") if found.value is None else (found.value, slack(found.estimate))
        on = "" if found.value is None else least_place(found.estimate)
        beyond = ("", "") if found.beyond is None else (found.beyond[0], slack(found.beyond[1]))
        table.append([*row.values, value, left, on, *beyond, found.method, found.tried])
    return csv_text(head, table)


def largest_json(hunt: Hunt, rows: Sequence[LargestRow]) -> str:
    """One object: what was looked for, and for each combination of the other axes what was found, with its estimate."""
    found = [
        {
            "values": named_values(hunt.others, row.values),
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
    asked = {"axis": hunt.axis.name, "bound": hunt.word, "margin": hunt.margin}
    return json.dumps({**asked, "axes": [axis_object(axis) for axis in hunt.others], "found": found}, indent=2) + "\n"
