"""Slots as a table for people, or as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text

from memplan.output.columns import Cell, Line, column_lines
from memplan.output.json import estimate_object
from memplan.output.sweep import MOST_COLUMNS, closing_notes, device_names, least_cells, settings_text, verdict_cell
from memplan.output.table import beside_on_devices
from memplan.output.words import mib, model_line, printable, to_text
from memplan.result import Estimate
from memplan.sweeping.slots import SlotAdvice, SlotRow, SlotTable


def render_slots(
    table: SlotTable, given: Sequence[str] = (), *, colour: bool = False, unicode: bool = True, width: int | None = None
) -> str:
    """A block for each path, a row a count of slots; then what to do where the default does not fit.

    ``given``: llama-server's flags beside those of the slots. MiB.
    """
    first = table.rows[0].estimate
    names = device_names(row.estimate for row in table.rows)
    lines: list[Line] = [Text(model_line(first), "bold"), f"{settings_text(first, given, ())}: MiB"]
    for path in dict.fromkeys(row.path for row in table.rows):
        usual = f" (what {table.release.name} takes here)" if path == table.usual else ""
        rows = [row for row in table.rows if row.path == path]
        heading = [Text(f"{path.capitalize()} {table.path}{usual}", "bold")] if table.path else []
        lines += ["", *heading, *_block(rows, names, unicode, width)]
    if {row.path for row in table.rows} == {"unfused"}:
        lines += ["", f"{table.release.name} has no fused {table.path}"]
    notes = closing_notes(row.estimate for row in table.rows)
    lines += ["", *notes] if notes else []
    if table.advice is not None:
        lines += ["", Text(advice_line(table.advice), "bold green")]
    elif none_fits := none_fits_line(table):
        lines += ["", Text(none_fits, "bold red")]
    return to_text(lines, colour, width)


def _block(rows: Sequence[SlotRow], names: Sequence[str], unicode: bool, width: int | None) -> Iterator[Line]:
    wide = len(names) <= (MOST_COLUMNS if width is None or width >= 100 else 3)
    computes = [f"{name} compute" for name in names or ["host"]] if wide else ["most compute", "on"]
    beside = beside_on_devices(row.estimate for row in rows if row.estimate.draft_refused is None)
    cells: list[list[Cell]] = []
    for row in rows:
        e = row.estimate
        mark = "default" if row.default else "as given" if row.given else ""
        shared = "shared" if row.unified else "each" if row.slots > 1 else ""
        line: list[Cell] = [str(row.slots), f"{e.n_ctx_seq:,}", shared]
        if (why := e.refused or e.draft_refused) is not None:
            said = ("refused: " + printable(why.message), "red")
            cells.append([*line, *[""] * (len(computes) + len(beside) + 3), said, mark])
            continue
        used = {device.name: device.compute for device in e.devices}
        most = max(used.items(), key=lambda item: item[1], default=("", 0))
        line.append((mib(context_bytes(e)), "magenta"))
        if wide:
            line += [(mib(used.get(name, 0)), "yellow") for name in names] or [(mib(e.host.compute), "yellow")]
        else:
            line += [(mib(most[1]), "yellow"), most[0]]
        line += [(mib(max(getattr(d, field) for d in e.devices)), tint) for field, tint, _ in beside]
        verdict, style = verdict_cell(e)
        if e.short:
            verdict = verdict.split(":")[0]  # what is left says where, and by how much
        cells.append([*line, *least_cells(e), (verdict, style), (mark, "bold")])
    most_of = [f"most {head}" if len(names) > 1 else head for _, _, head in beside]
    heads = ["slots", "tokens a slot", "", "caches", *computes, *most_of, "left", "on", "", ""]
    figures = [*([True] * len(computes) if wide else [True, False]), *(True for _ in beside)]
    right = [True, True, False, True, *figures, True, False, False, False]
    yield from column_lines(heads, cells, right, unicode)


def context_bytes(estimate: Estimate) -> int:
    """Caches and states on all devices."""
    return sum(use.context for use in estimate.buffers.values())


def advice_line(advice: SlotAdvice) -> str:
    """What fits in the default's place, in one line."""
    default = advice.default
    said = (
        f"without -np, llama-{default.estimate.flags.app} takes {default.slots} slots that share"
        f" {default.estimate.n_ctx_seq:,} tokens: {_why(default.estimate)}"
    )
    fits = []
    for row in (advice.fewer, advice.shorter):
        if row is not None:
            each = "each" if row.slots > 1 and not row.unified else "in all" if row.slots > 1 else "for its slot"
            fits.append(f"{' '.join(row.words)} ({row.estimate.n_ctx_seq:,} tokens {each})")
    return f"{said}; what fits: {', or '.join(fits)}"


def none_fits_line(table: SlotTable) -> str:
    """Why none of the rows on the path that the release takes fits, and what to do; empty if one does."""
    rows = [row.estimate for row in table.rows if row.path == table.usual]
    if any(e.fits for e in rows):
        return ""
    elsewhere = f" on the {table.usual} {table.path}" if any(row.estimate.fits for row in table.rows) else ""
    started = [e for e in rows if e.refused is None and e.draft_refused is None]
    if not started:
        mends = dict.fromkeys(why.fix for e in rows if (why := e.refused or e.draft_refused) is not None and why.fix)
        return f"no slot count starts{elsewhere}{': ' if mends else ''}{'; or '.join(map(printable, mends))}"
    said = f"no slot count fits{elsewhere}"
    if not all(e.short for e in started):
        most = max((-e.host.left for e in started if e.host.left is not None), default=0)
        host = "the host's memory is too small" if most > 0 else "GPUs and host have too little memory together"
        return f"{said}: {host}; ask memplan plan"
    best = max(started, key=lambda e: min(device.left for device in e.devices))
    over = [device for device in best.devices if device.model > device.free]
    ask = "ask memplan plan" if best.flags.overrides else "add -cmoe, or ask memplan plan"
    if sum(device.model for device in best.devices) > sum(device.free for device in best.devices):
        which = "the GPUs" if len(best.devices) > 1 else "the GPU"
        return f"{said}: the weights alone exceed {which}; {ask}"
    if over:
        names = f"{over[0].name}{f' and {len(over) - 1} more' if len(over) > 1 else ''}"
        return f"{said}: the weights alone exceed {names}; {ask}"
    parts = "weights do, caches and compute buffers do not"
    return f"{said}, of those tried: {parts}; lower -c or -ub, or ask memplan plan"


def _why(estimate: Estimate) -> str:
    if (refused := estimate.refused or estimate.draft_refused) is not None:
        return f"llama.cpp does not start ({printable(refused.title)})"
    short = [(size, name) for name, size in estimate.shortages]
    if not short:
        return "GPUs and host together have too little memory"
    most, name = max(short)
    rest = len(short) - 1
    others = f", and {rest} more {'devices are' if rest > 1 else 'device is'} short" if rest else ""
    return f"{name} is {mib(most, up=True)} MiB short{others}"


def slots_json(table: SlotTable) -> str:
    """One object: every row with its whole estimate, and the advice."""
    advice = table.advice
    found: dict[str, Any] = {
        "llama": table.release.name,
        **({"indexer": table.usual} if table.path else {}),
        "rows": [
            {
                "slots": row.slots,
                "unified": row.unified,
                **({"indexer": row.path} if table.path else {}),
                "default": row.default,
                "given": row.given,
                "args": list(row.words),
                "n_ctx_slot": row.estimate.n_ctx_seq,
                "context": context_bytes(row.estimate),
                "fits": row.estimate.fits,
                "estimate": estimate_object(row.estimate),
            }
            for row in table.rows
        ],
        "advice": None
        if advice is None
        else {
            "said": advice_line(advice),
            "args": [list(row.words) for row in (advice.fewer, advice.shorter) if row is not None],
        },
    }
    return json.dumps(found, indent=2) + "\n"
