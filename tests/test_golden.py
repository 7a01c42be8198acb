"""llama.cpp's own answers, replayed in process: ``ladder`` and ``random`` are the common road, ``odd`` leads off it,
``releases`` is a spread over the older releases and a fork, with what people reported of them, and ``vulkan`` is of
Vulkan devices and their drivers; ``wide`` cases among them are odd ones that taught a rule.

The odd cases were drawn at random and asked of llama.cpp v0.5.0 and v0.4.0; their made-up models are described where
they are used. Some taught a rule: copies of K and V that are no longer views of one cache, splits with more than 30
inputs, models without a kind of layer, writes to a cache that its device cannot do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from memplan.estimator import answer
from memplan.gguf.header import Header
from memplan.llama.flags import parse_flags
from memplan.models.builtin import header_of
from memplan.models.catalogue import MODELS, PRO, deepseek4
from memplan.models.recipes import DEEPSEEK4
from memplan.question import Question
from memplan.result import Estimate
from tests.golden import GOLDEN, Case, builtin, parameters, rig

COLUMNS = ("model", "context", "compute")


def key(case: Case) -> tuple[str, str]:
    """Cases in this order use what the planner remembers of a model."""
    return json.dumps(case["model"]), case["release"]


CASES: list[Case] = sorted(
    (
        case
        for name in ("ladder", "random", "odd", "releases", "vulkan")
        for case in map(json.loads, (GOLDEN / f"{name}.jsonl").read_text().splitlines())
    ),
    key=key,
)
_UNFUSED = 20000
_SMALLER = [case for case in CASES if case["truth"].get("nodes", (0,))[0] < _UNFUSED]
_LARGER = [case for case in CASES if case["truth"].get("nodes", (0,))[0] >= _UNFUSED]
PLAIN = frozenset(case["id"] for case in (*_SMALLER[::20], *_LARGER[::40]))
"""Cases that are also planned tensor by tensor; graphs of 32,000 nodes take a second each."""


@cache
def header(model: str) -> Header:
    """A golden model as JSON: "flash-antirez-q2", or a made-up one's base, recipe and what differs from the base."""
    made_up = json.loads(model)
    if isinstance(made_up, str):
        return builtin(made_up)
    base = MODELS[made_up["base"]]
    pro = base.name.endswith("pro")
    keys = deepseek4((128, 128) if pro else (0, 0), {**(PRO if pro else {}), **made_up["keys"]})
    return header_of(replace(base, keys=keys), DEEPSEEK4[made_up["recipe"]], "made up")


def allocated(buffers: Mapping[str, Mapping[str, int]]) -> dict[str, tuple[int, ...]]:
    """Bytes by buffer type; llama.cpp lists a byte of compute buffer for a backend that got no node."""
    found = {name: tuple(use.get(c, 0) if use.get(c, 0) > 1 else 0 for c in COLUMNS) for name, use in buffers.items()}
    return {name: use for name, use in found.items() if any(use)}


def check(found: Estimate, truth: Mapping[str, Any]) -> None:
    assert found.exact
    if "error" in truth:
        assert found.refused is not None
        assert (found.refused.kind, found.refused.outcome) == (truth["error"], truth["how"])
        assert truth["said"] in found.refused.message or found.refused.message in truth["said"]
        assert found.refused.fix
        return
    assert found.refused is None
    uses = {name: {c: getattr(use, c) for c in COLUMNS} for name, use in found.buffers.items()}
    assert allocated(uses) == allocated(truth["buffers"])
    assert (found.n_ctx, found.n_ctx_seq) == (truth["n_ctx"], truth["n_ctx_seq"])
    assert (list(found.nodes), list(found.splits)) == (truth["nodes"], truth["splits"])
    assert sorted(found.disabled) == truth["disabled"]
    assert found.pipeline_parallel == truth["pipeline_parallel"]


def name(case: Case) -> str:
    return f"{case['release']}-{case['id']}"


@pytest.mark.parametrize("case", parameters("test_golden.py", CASES, name))
def test_every_number_is_llama_cpp_s_own(case: Case) -> None:
    flags = parse_flags(case["args"], case["app"])
    question = Question.of(header(json.dumps(case["model"])), flags, rig(case), case["release"], case["deny"])
    check(answer(question).estimate, case["truth"])
    if case["id"] in PLAIN:
        check(answer(question, plain=True).estimate, case["truth"])


def test_the_cases_hold_what_is_rare() -> None:
    odd = [case for case in CASES if case["id"].startswith("odd")]
    assert len(odd) > 100
    assert {len(case["gpus"]) for case in odd} >= {0, 1, 2, 3, 4, 5, 7, 9, 12, 15}
    assert {type_ for case in odd for type_ in case["args"]} >= {"f32", "bf16", "q4_1", "q5_0", "q5_1", "iq4_nl"}
    assert sum(len(case["deny"]) > 1 for case in odd) > 10
    errors = {case["truth"].get("error") for case in odd}
    assert errors == {None, "other", "override-to-unused-device"}
