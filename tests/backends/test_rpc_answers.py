"""What llama.cpp's own RPC client planned with servers that have CUDA devices, to the byte."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from memplan.backends.devices import CUDA, RPC, Gpu, Rig
from memplan.estimator import estimate
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parent.parent / "data" / "golden" / "rpc.jsonl"
CASES: list[dict[str, Any]] = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
MODEL = builtin_header("deepseek-v4-flash:antirez-q2")
MIB = 1 << 20
PARTS = ("model", "context", "compute")


def gpu(given: Mapping[str, Any]) -> Gpu:
    major, minor = map(int, given["cc"].split("."))
    endpoint = given.get("rpc", "")
    sizes = (given["total_mib"] * MIB, given["free_mib"] * MIB)
    return Gpu(given["name"], *sizes, (major, minor), RPC if endpoint else CUDA, endpoint=endpoint)


def taken(buffers: Mapping[str, Mapping[str, int]]) -> dict[str, tuple[int, ...]]:
    found = {name: tuple(use[part] if use[part] > 1 else 0 for part in PARTS) for name, use in buffers.items()}
    return {name: use for name, use in found.items() if any(use)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["id"]))
def test_every_number_is_the_client_s_own(case: Mapping[str, Any]) -> None:
    truth = case["truth"]
    rig = Rig(tuple(map(gpu, case["gpus"])))
    found = estimate(MODEL, parse_flags(case["args"], case["app"]), rig, case["release"])
    uses = {name: {part: getattr(use, part) for part in PARTS} for name, use in found.buffers.items()}
    assert taken(uses) == taken(truth["buffers"])
    assert (found.n_ctx, found.n_ctx_seq) == (truth["n_ctx"], truth["n_ctx_seq"])
    assert (list(found.nodes), list(found.splits)) == (truth["nodes"], truth["splits"])
    assert found.pipeline_parallel == truth["pipeline_parallel"]


def test_the_cases_are_of_all_kinds() -> None:
    servers = [{g["rpc"] for g in case["gpus"] if "rpc" in g} for case in CASES]
    assert {len(names) for names in servers} == {1, 2, 3}
    assert {case["release"] for case in CASES} == {"b9842", "b10068", "b10361", "v0.4.0", "v0.5.0"}
    assert any("rpc" not in g for case in CASES for g in case["gpus"])
    assert len({g["cc"] for case in CASES for g in case["gpus"] if "rpc" in g}) == 4
