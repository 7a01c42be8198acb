"""Margins for llama.cpp's own ``--fit`` as flags, keys of a preset or JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from memplan.output.plan import no_plan_text, plan_object

if TYPE_CHECKING:
    from memplan.planning.fit import FitPreset


def fit_text(preset: FitPreset) -> str:
    """Flags for ``--fit`` in one line, to paste."""
    return " ".join(preset.args) + "\n"


def fit_remarks(preset: FitPreset) -> list[str]:
    """What the targets are for, and what speaks for and against ``--fit``."""
    return [f"--fit-target: {'; '.join(preset.reasons)}", *preset.warnings, *_inexact(preset)]


def fit_ini(preset: FitPreset) -> str:
    """The same as keys of a preset."""
    comments = [f"fit-target: {'; '.join(preset.reasons)}", *preset.warnings, *_inexact(preset)]
    pairs = zip(preset.args[::2], preset.args[1::2], strict=True)
    lines = [*(f"; {line.replace(';', ',')}" for line in comments), *(f"{flag[2:]} = {value}" for flag, value in pairs)]
    return "\n".join(lines) + "\n"


def fit_json(preset: FitPreset) -> str:
    """The same as a JSON object, with the plan to use in its place; ``args`` is None when nothing fits."""
    from memplan.planning.plan import Plan

    found = {
        "args": list(preset.args) if isinstance(preset.plan, Plan) else None,
        "fit_target_mib": list(preset.targets),
        "fit_ctx": preset.fit_ctx,
        "reasons": list(preset.reasons),
        "exact": not preset.approximate,
        "warnings": [*preset.warnings, *_inexact(preset)],
        "plan": plan_object(preset.plan),
    }
    return json.dumps(found, indent=2) + "\n"


def _inexact(preset: FitPreset) -> list[str]:
    from memplan.output.words import printable

    return [printable(f"not exact: {preset.approximate}")] if preset.approximate else []


def no_fit_text(preset: FitPreset, width: int = 80) -> str:
    """Why no flags are written, and what would fit."""
    from memplan.planning.plan import Plan

    targets = f"with --fit-target {','.join(map(str, preset.targets))} ({'; '.join(preset.reasons)}):\n"
    return targets + ("" if isinstance(preset.plan, Plan) else no_plan_text(preset.plan, width))
