"""llama.cpp's own numbers beside memplan's: pure functions from data to text."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from memplan.diagnosing.measure import Measured
from memplan.explaining.run_time import RunTimeExplanation
from memplan.notes import mib
from memplan.output.json import plain
from memplan.result import Estimate

_MIB = 1 << 20
_PARTS = ("model", "context", "compute")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One device's share, in MiB as llama.cpp prints it; None where it says nothing."""

    name: str
    part: str
    measured: float
    predicted: float

    @property
    def agrees(self) -> bool:
        """Equal, as far as the digits tell."""
        return abs(self.measured - self.predicted) < 0.011


@dataclass(frozen=True, slots=True)
class Unaccounted:
    """What llama.cpp's breakdown calls unaccounted on one device, once slots are full; bytes.

    ``pool``, ``workspace``: by rule, of all contexts.  ``rest``: about what else there is beyond what
    ``--list-devices`` leaves free.
    """

    device: str
    pool: int
    workspace: int
    rest: int


@dataclass(frozen=True, slots=True)
class Verification:
    """What a program says, and memplan. ``refusal``: its words where it gives no figures, empty where it gives some."""

    measured: Measured
    estimate: Estimate
    rows: Sequence[Comparison]
    unaccounted: Sequence[Unaccounted]
    notes: Sequence[str]
    refusal: str = ""

    @property
    def agrees(self) -> bool:
        """Whether every figure is as predicted, and a refusal too."""
        return all(row.agrees for row in self.rows) and bool(self.refusal) == (self.estimate.refused is not None)


def unaccounted(x: RunTimeExplanation) -> tuple[Unaccounted, ...]:
    """The same of each device in use for whose kernels there is a rule."""
    return tuple(
        Unaccounted(d.name, sum(use.pool for use in uses), sum(use.workspace for use in uses), d.reserve)
        for d in x.estimate.devices
        if d.used and (uses := [use for use in x.devices if use.device == d.name and use.modelled])
    )


def compare(measured: Measured, estimate: Estimate) -> tuple[Comparison, ...]:
    """Every figure that the program gave beside memplan's."""
    rows = []
    for name, sizes in measured.buffers.items():
        for part, size in zip(_PARTS, sizes, strict=True):
            if measured.partial and part != "compute":
                continue
            exact = _predicted(estimate, name, part, measured.partial)
            rows.append(Comparison(name, part, size, exact if measured.partial else float(int(exact))))
    return tuple(rows)


def _predicted(estimate: Estimate, name: str, part: str, partial: bool) -> float:
    if name == "Host" and not partial:
        # a buffer of repacked weights is none of the host's for llama-fit-params (fit.cpp: ggml_backend_buft_is_host)
        repacked = estimate.buffers.get("CPU_REPACK")
        size = getattr(estimate.host, part) - (getattr(repacked, part) if repacked is not None else 0)
        return float(size) / _MIB
    use = estimate.buffers.get(name)
    return 0.0 if use is None else float(getattr(use, part)) / _MIB


def render_verification(x: Verification) -> str:
    """As a table, for people; ending in a newline."""
    measured, rows, estimate = x.measured, x.rows, x.estimate
    width = max([*(len(row.name) for row in rows), 4])
    notes = [f"- {note}" for note in x.notes]
    program = os.path.basename(measured.program)
    lines = [f"{program} {measured.version or '(of an unknown build)'} beside memplan for {estimate.llama}", ""]
    predicted = estimate.refused
    if predicted is not None:
        said = f"it does not start: {x.refusal}" if x.refusal else "it starts"
        lines += [f"{program}: {said}", f"memplan: it does not start ({predicted.kind}): {predicted.message}", ""]
        return "\n".join([*lines, "they agree" if x.agrees else "they differ", *notes]) + "\n"
    lines.append(f"{'MiB':{width}}  {'part':7}  {program:>16}  {'memplan':>12}")
    for row in rows:
        first, second = (f"{size:,.{2 * measured.partial}f}" for size in (row.measured, row.predicted))
        part = "weights" if row.part == "model" else row.part
        lines.append(f"{row.name:{width}}  {part:7}  {first:>16}  {second:>12}{'' if row.agrees else '  differs'}")
    differ = [row for row in rows if not row.agrees]
    lines += ["", f"they differ in {len(differ)} of {len(rows)} figures" if differ else "they agree in every figure"]
    if x.unaccounted:
        lines += [
            "",
            f"in neither, and unaccounted in llama.cpp's own breakdown, with {estimate.filled:,} tokens a slot:",
        ]
        lines += [f"{one.device:{width}}  {_parts_of(one)}" for one in x.unaccounted]
    return "\n".join([*lines, *notes]) + "\n"


def _parts_of(one: Unaccounted) -> str:
    workspace = f", {mib(one.workspace)} of cuBLAS's workspace" if one.workspace else ""
    rest = f"some {mib(one.rest)} of kernels' code, and the CUDA context if that is not gone from what is free"
    return f"{mib(one.pool)} of CUDA's pool{workspace}; the rest, {rest}"


def render_verification_json(x: Verification) -> str:
    """As one JSON object, sizes in MiB as llama.cpp prints them; ending in a newline."""
    refused = x.estimate.refused
    answer: dict[str, Any] = {
        "program": x.measured.program,
        "build": x.measured.version or None,
        "command": list(x.measured.command),
        "llama": x.estimate.llama,
        "exact": x.estimate.exact,
        "figures": [
            {
                "name": row.name,
                "part": row.part,
                "measured_mib": row.measured,
                "predicted_mib": row.predicted,
                "agrees": row.agrees,
            }
            for row in x.rows
        ],
        "unaccounted": [plain(one) for one in x.unaccounted],
        "refused": {"measured": x.refusal or None, "predicted": refused.kind if refused is not None else None},
        "agrees": x.agrees,
        "notes": list(x.notes),
    }
    return json.dumps(answer, indent=2) + "\n"
