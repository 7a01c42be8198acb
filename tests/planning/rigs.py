"""Layer costs made up for tests, and settings of real models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memplan.backends.devices import Rig
from memplan.llama.flags import parse_flags
from memplan.planning.layer_costs import Expert, LayerCosts
from memplan.planning.problem import Problem
from memplan.planning.speed import Bandwidths, find_bandwidths
from memplan.question import Question
from memplan.rig import parse_gpus
from tests.golden import builtin, rig

MIB = 1 << 20
KINDS = ("down", "gate", "up")
PLANS = Path(__file__).parent.parent / "data" / "golden" / "plans.jsonl"


def problem(
    flags: str = "-c 65536 -np 1",
    gpus: Sequence[str] = ("2*RTX 3090",),
    model: str = "flash-antirez-q2",
    margin: int = 1024,
    host: int | None = None,
    release: str = "latest",
    **others: Any,
) -> Problem:
    """A problem; ``margin`` and ``host`` in MiB. No run time is counted, as ``--fit`` counts none, unless asked for."""
    asked = Rig(parse_gpus(gpus).gpus, None if host is None else host * MIB)
    margins = (margin * MIB,) * len(asked.gpus)
    question = Question.of(builtin(model), parse_flags(flags.split()), asked, release, **{"filled": 0, **others})
    return Problem(question, margins, find_bandwidths(asked.gpus))


def questions() -> list[dict[str, Any]]:
    """The recorded placement questions, with the answer of llama.cpp's own --fit."""
    return [json.loads(line) for line in PLANS.read_text().splitlines()]


def asked(question: dict[str, Any]) -> Problem:
    """A recorded question as a problem."""
    gpus = rig(question)
    margins = (question["margin_mib"] * MIB,) * len(gpus.gpus)
    asked = Question.of(builtin(question["model"]), parse_flags(question["args"]), gpus, question["release"], filled=0)
    return Problem(asked, margins, find_bandwidths(gpus.gpus))


def made_up(dense: Sequence[int], experts: Sequence[Sequence[int]], devices: int = 2) -> LayerCosts:
    """Costs whose item i takes ``dense[i]`` MiB, and its experts ``experts[i]`` MiB each."""
    layers = []
    for il, sizes in enumerate(experts):
        named = zip(KINDS, sizes, strict=False)
        layers.append(
            tuple(Expert(il, kind, (f"blk.{il}.ffn_{kind}_exps.weight",), mib * MIB, mib * MIB) for kind, mib in named)
        )
    return LayerCosts(
        devices=tuple(range(devices)),
        names=tuple(f"CUDA{d}" for d in range(devices)),
        n_items=len(dense),
        dense=tuple(mib * MIB for mib in dense),
        read=tuple(mib * MIB for mib in dense),
        experts=tuple(layers),
        pinned=(0,) * devices,
        pinned_read={},
        used_share=6 / 256,
        fixed_homes=None,
        first=None,
        all_names=tuple(name for layer in layers for e in layer for name in e.names),
    )


def speeds(*gpus: float) -> Bandwidths:
    """Bandwidths in GB/s, the host's 64."""
    return Bandwidths(gpus, 64.0)
