"""llama.cpp's own --fit, replayed, against what llama.cpp v0.5.0 answered."""

from __future__ import annotations

from functools import cache

import pytest

from memplan.estimator import answer
from memplan.planning.fit_floor import no_less_than_fit
from memplan.planning.layer_costs import LayerCosts
from memplan.planning.llama_fit import FitAnswer, replay_fit
from memplan.planning.plan import Plan, make_plan
from memplan.planning.problem import Problem, gpu_weights, leaves_margins
from memplan.planning.search import Search
from tests.planning.rigs import MIB, asked, problem, questions

RECORDED = [q for q in questions() if q["fit"].get("ot") and len(q["gpus"]) < 4][::2]

SMALL = {
    "RTX 2060, 131072 tokens": (
        problem("-c 131072 -ub 1024 -np 1", ["RTX 2060:5926:5226:7.5"], margin=0),
        (10, 3897029120),
    ),
    "RTX 3080, an MTP block": (
        problem(
            "-c 524288 -ub 2048 -np 4 -ctk q8_0 -ctv q8_0", ["RTX 3080:10240:8740"], model="flash-mtp-q2", margin=2048
        ),
        (22, 3912626432),
    ),
    "two cards, a million tokens": (
        problem("-c 1048576 -ub 128 -np 2", ["RTX 2060:5926:5726:7.5", "RTX 3080:10240:10040"], margin=0),
        (36, 8251836928),
    ),
    "a shared expert moved by luck": (
        problem("-c 262144 -ub 256 -np 1", ["T4:14912:14612"], margin=2048),
        (44, 10084897792),
    ),
}
"""Rigs where --fit gives up attention, or a shared expert, for an expert tensor more; what llama.cpp v0.5.0 answered:
layers on GPUs, and bytes of weights there."""


@cache
def recorded(index: int) -> tuple[Search, FitAnswer]:
    """What is replayed of a recorded question, once."""
    return replayed(asked(RECORDED[index]))


def replay_costs(of: Problem) -> LayerCosts:
    costs = Search(of).costs()
    assert costs is not None
    return costs


def replayed(of: Problem) -> tuple[Search, FitAnswer]:
    search = Search(of)
    costs = search.costs()
    assert costs is not None
    answer = replay_fit(search, costs)
    assert answer is not None
    return search, answer


@pytest.mark.parametrize("index", range(len(RECORDED)), ids=[q["id"] for q in RECORDED])
def test_replay_is_what_llama_cpp_answered(index: int) -> None:
    _, answer = recorded(index)
    assert answer.layers == RECORDED[index]["fit"]["ngl"]
    assert answer.weights == RECORDED[index]["fit"]["gpu_model_bytes"]


@pytest.mark.parametrize("index", range(len(RECORDED)), ids=[q["id"] for q in RECORDED])
def test_a_replay_is_given_up_only_where_it_cannot_win(index: int) -> None:
    search, answer = recorded(index)
    costs = search.costs()
    assert costs is not None
    count = search.estimates
    again = replay_fit(search, costs, beat=answer.weights - 1)
    assert again is not None
    assert again.args == answer.args
    assert search.estimates == count
    assert replay_fit(search, costs, beat=answer.weights + (8 << 30)) is None


def test_experts_that_a_shared_one_makes_room_for() -> None:
    """No expert has room, but one that a shared expert makes way for: so --fit has more, and the plan takes that."""
    of = problem("-c 32768 -np 4", ["RTX 3060"])
    plan = make_plan(of)
    assert isinstance(plan, Plan)
    assert ".ffn_(gate|gate_up|down).*=CPU" in plan.args[-1]
    assert leaves_margins(plan.estimate, of.margins)
    smallest = min(e.size for layer in replay_costs(of).experts for e in layer)
    assert plan.estimate.devices[0].left - of.margins[0] < smallest


@pytest.mark.parametrize("name", SMALL)
def test_no_fewer_bytes_than_fit_on_small_cards(name: str) -> None:
    of, (layers, weights) = SMALL[name]
    search, fit = replayed(of)
    assert (fit.layers, fit.weights) == (layers, weights)
    assert search.refused is None
    plan = make_plan(of)
    assert isinstance(plan, Plan)
    assert gpu_weights(plan.estimate) >= weights
    again = answer(of.question.with_words(*plan.args)).estimate
    assert leaves_margins(again, of.margins)
    assert again.buffers == plan.estimate.buffers


def test_layers_that_fit_are_not_put_on_the_host_without_a_word() -> None:
    plan = make_plan(SMALL["RTX 2060, 131072 tokens"][0])
    assert isinstance(plan, Plan)
    assert plan.args[:2] == ("-ngl", "11")
    assert any(note.startswith("faster") and "--fit" in note and "-ngl 19" in note for note in plan.notes)


def test_what_stops_fit_is_not_replayed() -> None:
    for flags in ("-c 131072 -np 1 -ngl 20", "-c 131072 -np 1 -ncmoe 4", "-np 1"):
        search = Search(problem(flags, ["RTX 3060"]))
        costs = search.costs()
        assert costs is not None
        assert replay_fit(search, costs) is None


def test_a_gpu_with_no_room_for_a_buffer_gives_up_at_once() -> None:
    search = Search(problem("-c 524288 -np 2 -ub 1024", ["RTX 2060:5926:100:7.5"]))
    assert no_less_than_fit(search, None) is None
    assert search.estimates < 8


@pytest.mark.parametrize(
    ("flags", "gpus", "margin", "fit"),
    [
        # what llama.cpp's own --fit puts on the GPU
        ("-c 16384 -ub 1024 -np 1 -fa on", ["RTX 3060:12288:11588"], 2048, 8290),
        # and what its replay in full does: GPUs' ranges are a layer off from what the patterns mean
        ("-c 524288 -ub 512 -np 1 -fa on", ["RTX 2060:5926:5626:7.5", "RTX 5060 Ti:16311:15611"], 1024, None),
    ],
)
def test_layers_of_mtp_move_what_fit_places(flags: str, gpus: list[str], margin: int, fit: int | None) -> None:
    """``--fit`` does not count them, llama.cpp does; so the first layer that it counts is on the host."""
    of = problem(flags, gpus, "flash-mtp-q2", margin=margin)
    if fit is None:
        search = Search(of)
        costs = search.costs()
        assert costs is not None
        full = replay_fit(search, costs)
        assert full is not None and leaves_margins(full.estimate, of.margins)
        fit = full.weights // MIB
    plan = make_plan(of)
    assert isinstance(plan, Plan)
    assert gpu_weights(plan.estimate) >= fit * MIB
