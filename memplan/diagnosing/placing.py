"""The placement that ``memplan plan`` finds for a load that did not fit, with all its other flags kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from memplan.diagnosing.result import Diagnosis
from memplan.errors import MemplanError
from memplan.llama.flag_fields import PLACEMENT
from memplan.planning.plan import Plan, make_plan
from memplan.planning.problem import Problem

_CAUSES: Final = ("too-little-memory", "one-gpu-short", "drafter", "host-memory")
"""Causes of failures for which another placement may be what is wanted."""


def with_placement(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis of a load for which there was no room, with a placement that has; as it is for any other."""
    question = diagnosis.question
    if question is None or not question.rig.gpus or diagnosis.assumed or diagnosis.cause.kind not in _CAUSES:
        return diagnosis
    try:
        asked = question.with_(flags=question.flags.without(PLACEMENT), loaded=False)
        plan = make_plan(Problem.of(asked), changes=False)
    except MemplanError:
        return diagnosis
    return replace(diagnosis, placement=(*plan.fixed, *plan.args)) if isinstance(plan, Plan) else diagnosis
