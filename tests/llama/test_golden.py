from __future__ import annotations

import pytest

from memplan.llama.refusals import Refusal
from tests.llama.golden import Case, cases, replay

IN_THE_GRAPH = "override-to-unused-device"
"""The refusal that only the graph comes to; ``tests/test_golden.py`` has it."""

CASES = [
    c for name in ("ladder", "random", "placement") for c in cases(name) if c["truth"].get("error") != IN_THE_GRAPH
]


def column(case: Case, name: str) -> dict[str, int]:
    return {buft: use[name] for buft, use in case["truth"]["buffers"].items() if use[name]}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_weights_and_caches_lie_where_llama_cpp_puts_them(case: Case) -> None:
    found = replay(case)
    truth = case["truth"]
    if "error" in truth:
        assert isinstance(found, Refusal)
        assert (found.kind, found.outcome, found.message) == (truth["error"], truth["how"], truth["said"])
        assert found.fix
        return
    assert not isinstance(found, Refusal), found
    placement, params, memory = found
    assert dict(placement.model) == column(case, "model")
    assert dict(memory.context) == column(case, "context")
    assert (params.n_ctx, params.n_ctx_seq) == (truth["n_ctx"], truth["n_ctx_seq"])
    assert placement.pipeline_parallel == truth["pipeline_parallel"]


def test_the_golden_cases_hold_every_kind_of_refusal_that_is_decided_here() -> None:
    kinds = {c["truth"].get("error") for c in CASES}
    assert {"k-v-types-differ", "quantized-v-needs-flash-attention", "other"} <= kinds
