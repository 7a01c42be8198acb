"""Feed-forward parts that lack weights, or do not use those they have: llama.cpp v0.5.0's own figures."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

import memplan
from memplan.models.builtin import header_of
from memplan.models.catalogue import MODELS

STEP, KIMI, ERNIE = "step-3.5-flash", "kimi-linear-48b-a3b", "ernie-4.5-21b-a3b"
CASES: list[tuple[str, str, dict[str, Any], int, tuple[int, int, int]]] = [
    (STEP, r"ffn_gate\.", {}, 3329, (118202349056, 541065216, 225777792)),
    (STEP, "_shexp", {}, 3200, (117882924032, 541065216, 225777792)),
    (STEP, r"ffn_(gate|up|down)\.", {}, 3323, (118010951168, 541065216, 225777792)),
    (KIMI, "_shexp", {}, 3053, (29372726656, 110952448, 133751040)),
    (ERNIE, "none", {"interleave_moe_layer_step": 2}, 1255, (13243429632, 469762048, 99625088)),
    (ERNIE, "none", {"interleave_moe_layer_step": 3}, 1090, (13243429632, 469762048, 99625088)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "absent", "keys", "nodes", "gpu"), CASES, ids=range(len(CASES)))
def test_as_llama_cpp(name: str, absent: str, keys: dict[str, Any], nodes: int, gpu: tuple[int, int, int]) -> None:
    model = MODELS[name]
    header = header_of(replace(model, keys={**model.keys, **keys}), model.recipes[model.default], name)
    header = replace(header, tensors={n: t for n, t in header.tensors.items() if not re.search(absent, n)})
    found = memplan.estimate(
        header, memplan.parse_flags(["-c", "8192", "-np", "1"]), memplan.parse_gpus(["RTX 3090"]), "v0.5.0"
    )
    assert found.exact and found.nodes == (nodes, nodes)
    used = found.buffers["CUDA0"]
    assert (used.model, used.context, used.compute) == gpu
