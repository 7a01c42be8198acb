"""Where an estimate's run time comes from, as text for people or as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rich.text import Text

from memplan.explaining.names import ranges
from memplan.explaining.run_time import RunTimeExplanation, RunTimeUse, ScratchUse
from memplan.output.columns import Cell, Line, column_lines
from memplan.output.explain_words import plural, shape_text, tenths
from memplan.output.json import estimate_object, plain
from memplan.output.words import model_line, printable, settings_line, to_text, verdict_line


def render_run_time(
    x: RunTimeExplanation, *, top: int = 10, device: str = "", colour: bool, unicode: bool, width: int | None = None
) -> str:
    """For each device: which op of which layer its pool grows for, of what its scratch is made, and the ops after it.

    ``top``: lines of each list.  ``device``: only this device, if one is named.
    """
    estimate = x.estimate
    lines: list[Line] = [Text(model_line(estimate), "bold"), settings_line(estimate)]
    if estimate.refused is not None:
        lines += ["", Text(f"llama.cpp does not start with these settings: {estimate.refused.message}", "bold red")]
        return to_text(lines, colour, width)
    lines.append(Text(verdict_line(estimate), "bold green" if estimate.fits else "bold red"))
    for use in x.devices:
        if device in ("", use.device):
            lines += ["", *_device_lines(use, top, unicode)]
    return to_text(lines, colour, width)


def decides(use: RunTimeUse) -> str:
    """Which op the pool grows for, in one sentence."""
    if not use.modelled:
        return "what its kernels take at run time is not modelled"
    if not use.ops or not use.pool:
        return "no op takes scratch here"
    first = use.ops[0]
    return (
        f"{first.base} decides{_of_layers(first)}: {tenths(first.bytes)} MiB of scratch for"
        f" {first.tokens:,} tokens at once, with {first.filled:,} in the slot"
    )


def run_time_json(x: RunTimeExplanation, top: int = 100) -> str:
    """The explanation as one JSON object; sizes in bytes. ``top``: how many ops of each device."""
    found = {"estimate": estimate_object(x.estimate), "devices": [_device_object(use, top) for use in x.devices]}
    return json.dumps(found, indent=2) + "\n"


def _device_lines(use: RunTimeUse, top: int, unicode: bool) -> Iterator[Line]:
    if not use.modelled:
        yield Text(f"{use.device}: {decides(use)}", "bold")
        return
    workspace = f", cuBLAS's workspace of {tenths(use.workspace)}" if use.workspace else ""
    parts = f"a pool of {tenths(use.pool)}{workspace}"
    whose = f"{use.device}, what drafts" if use.drafts else use.device
    yield Text(f"{whose}: {tenths(use.bytes)} MiB at run time: {parts}", "bold")
    yield Text(printable(decides(use)), "yellow")
    if not use.ops or not use.pool:
        return
    first = use.ops[0]
    yield printable("it reads " + ", ".join(f"{s.name} [{s.type}, {shape_text(s.shape)}]" for s in first.sources))
    rows: list[list[Cell]] = [[(tenths(size), "yellow"), what] for what, size in first.pieces]
    yield from column_lines(["MiB", "scratch for"], rows, [True, False], unicode)
    yield "ops by what they hold, each alone"
    rows = [
        [
            (tenths(op.bytes), "yellow"),
            printable(op.base),
            op.op,
            str(op.count),
            ranges(op.layers) if op.layers else "",
            f"{op.tokens:,}",
            ", ".join(what for what, _ in op.pieces),
            "yes" if op.cublas else "",
        ]
        for op in use.ops[:top]
    ]
    heads = ["MiB", "op", "", "count", "layers", "tokens", "scratch for", "cuBLAS"]
    yield from column_lines(heads, rows, [True, False, False, True, False, True, False, False], unicode)


def _of_layers(op: ScratchUse) -> str:
    if not op.layers:
        return ""
    return f", in {plural('layer', len(op.layers))} {ranges(op.layers)}"


def _device_object(use: RunTimeUse, top: int) -> dict[str, Any]:
    return {
        "device": use.device,
        "drafts": use.drafts,
        "modelled": use.modelled,
        "bytes": use.bytes,
        "pool": use.pool,
        "workspace": use.workspace,
        "verdict": decides(use),
        "ops": [
            plain(op) | {"pieces": [{"what": what, "bytes": size} for what, size in op.pieces]} for op in use.ops[:top]
        ],
    }
