from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from memplan import estimator
from memplan.errors import FlagError
from memplan.estimator import model_of, workshop_of
from memplan.llama.placement import Placement, place
from memplan.models.builtin import builtin_header
from memplan.planning.api import plan
from memplan.planning.layer_costs import LayerCosts, layer_costs_of
from memplan.planning.layout import Layout
from memplan.planning.plan import NoPlan, Plan, make_plan, token_ms
from memplan.planning.problem import Candidate, Problem, leaves_margins
from memplan.planning.search import Search
from memplan.releases import RELEASES
from memplan.result import Estimate
from memplan.rig import parse_gpus
from tests.planning.rigs import MIB, asked, problem, questions

pytestmark = pytest.mark.slow

QUESTIONS = questions()


@cache
def answer(number: int) -> Plan:
    plan = make_plan(asked(QUESTIONS[number]))
    assert isinstance(plan, Plan)
    return plan


def fresh(of: Problem, args: tuple[str, ...], drop: tuple[str, ...] = ()) -> Estimate:
    """The estimate of the user's flags and ``args``, read anew."""
    assert not drop
    return estimator.answer(of.question.with_words(*args)).estimate


def placement(of: Problem, args: tuple[str, ...]) -> Placement:
    question = of.question.with_words(*args)
    model, machine = model_of(question), workshop_of(question).machine
    found = place(model.tensors.tensors, model.hparams.n_layer_all, question.flags, machine)
    assert isinstance(found, Placement)
    return found


def gpu_weights(estimate: Estimate) -> int:
    return sum(device.model for device in estimate.devices)


@pytest.mark.parametrize("number", range(len(QUESTIONS)), ids=[q["id"] for q in QUESTIONS])
def test_recorded_questions(number: int) -> None:
    """A plan's tokens take no longer than those of ``--fit``; nor has it fewer bytes of experts on GPUs, unless
    ``--fit`` has layers' attention and caches on the host for them."""
    question, plan = QUESTIONS[number], answer(number)
    of, fit = asked(question), question["fit"]
    check(of, plan)
    if "ngl" not in fit:
        return
    search = Search(of)
    costs = search.costs()
    assert costs is not None
    words = fit_words(fit, len(of.rig.gpus))
    layout, estimate = layout_of(of, costs, words), fresh(of, words)
    assert gpu_weights(estimate) == fit["gpu_model_bytes"]
    assert plan.token_ms <= token_ms(search, costs, Candidate(layout, words, estimate, 0.0))
    if layout.first <= (plan.shares[-1].layers or (0, 0))[1]:
        assert gpu_weights(plan.estimate) >= fit["gpu_model_bytes"]


def fit_words(fit: dict[str, Any], gpus: int) -> tuple[str, ...]:
    """What ``--fit`` answered, as flags."""
    split = ("-ts", ",".join(fit["ts"].split(",")[:gpus])) if fit.get("ts") else ()
    return ("-ngl", str(fit["ngl"]), *split, *(("-ot", fit["ot"]) if fit.get("ot") else ()))


def layout_of(of: Problem, costs: LayerCosts, words: tuple[str, ...]) -> Layout:
    """Where flags place layers and experts, as a plan has it."""
    placed = placement(of, words)
    numbers = {name: d for d, name in enumerate(costs.names)}
    homes = [numbers.get(buft.name, -1) for buft in (*placed.layers, placed.output)]
    first = sum(home < 0 for home in homes)
    ends = tuple(first + sum(0 <= home <= d for home in homes) for d in range(len(costs.names)))
    where = {e.names[0]: numbers.get(placed.tensors[e.names[0]].name, -1) for layer in costs.experts for e in layer}
    elsewhere = {name: d for name, d in where.items() if d != homes[int(name.split(".")[1])]}
    host = frozenset(name for name, d in elsewhere.items() if d < 0)
    return Layout(first, ends, host, {name: d for name, d in elsewhere.items() if d >= 0})


def test_more_weights_on_gpus_than_by_fit() -> None:
    gains = [
        gpu_weights(answer(i).estimate) / q["fit"]["gpu_model_bytes"]
        for i, q in enumerate(QUESTIONS)
        if "gpu_model_bytes" in q["fit"]
    ]
    assert sum(gains) / len(gains) > 1.02


def check(of: Problem, plan: Plan) -> None:
    """A plan's estimate is a fresh one's and leaves the margins; its flags place what it says; no weight is lost."""
    estimate = fresh(of, plan.args)
    assert (estimate.buffers, estimate.splits) == (plan.estimate.buffers, plan.estimate.splits)
    assert leaves_margins(estimate, of.margins)
    placed = placement(of, plan.args)
    experts: dict[str, int] = {}
    for name, buft in placed.tensors.items():
        if "_exps." in name:
            where = buft.name if buft.name in {d.name for d in placed.devices} else "host"
            experts[where] = experts.get(where, 0) + 1
    user = of.flags.overrides
    if not user:
        assert {share.device: share.experts for share in plan.shares if share.experts} == experts
    for share in plan.shares[:-1]:
        held = [il for il, device in enumerate(placed.layers) if device.name == share.device]
        assert held == (list(range(*share.layers)) if share.layers else [])
        assert share.output == (placed.output.name == share.device)
    assert sum(placed.model.values()) == sum(use.model for use in estimate.buffers.values())
    everywhere = placement(of, ("-ngl", "0"))
    assert abs(sum(everywhere.model.values()) - sum(placed.model.values())) < MIB


def case(flags: str, *gpus: str, **others: Any) -> Problem:
    return problem(flags, gpus, **others)


FITTING = {
    "-ts that leaves room elsewhere": case("-c 65536 -np 1 -ts 1,3", "2*RTX 3090"),
    "-ncmoe that is too small": case("-c 65536 -np 1 -ncmoe 3", "2*RTX 3090"),
    "-ot kept": case(r"-c 65536 -np 1 -ot blk\.([0-5])\..*exps=CUDA1", "2*RTX 3090"),
    "-ngl kept": case("-c 65536 -np 1 -ngl 20", "2*RTX 3090"),
    "one GPU of two": case("-c 65536 -np 1 -sm none -mg 1", "2*RTX 3090"),
    "GPUs in another order": case("-c 65536 -np 1 -dev CUDA1,CUDA0", "RTX 3060", "RTX 3090"),
    "a first GPU that can hold nothing": case("-c 65536 -np 1", "RTX 3090::700", "2*RTX 3090"),
    "attention that does not all fit": case("-c 65536 -np 1", "RTX 3070"),
    "copies of inputs that do not fit": case("-c 524288 -np 1 -ub 2048", "2*RTX A6000"),
    "Pro on small cards": case("-c 65536 -np 1", "RTX 3090", "2*RTX 3060", model="pro-mxfp4"),
    "four slots": case("-c 131072 -ub 1024", "2*RTX 3090"),
    "an older release": case("-c 65536 -np 1", "2*RTX 3090", release="v0.4.0"),
    "caches on the host": case("-c 65536 -np 1 -nkvo", "RTX 3090"),
}


@pytest.mark.parametrize("name", FITTING)
def test_plans_with_what_the_user_fixed(name: str) -> None:
    of = FITTING[name]
    plan = make_plan(of)
    assert isinstance(plan, Plan)
    check(of, plan)
    given = {word for word in of.flags.words() if word.startswith("-")}
    assert not given & (set(plan.args) - {"-ot"})


def test_fourteen_unequal_gpus() -> None:
    cards = ["RTX 3090", "RTX 3060", "RTX 4060 Ti", "P40", "RTX 3070", "RTX 3060", "T4"] * 2
    of = problem("-c 65536 -np 1 -ub 512", cards, "flash-mxfp4")
    plan = make_plan(of)
    assert isinstance(plan, Plan)
    check(of, plan)


def test_sixteen_gpus_are_one_too_many() -> None:
    of = problem("-c 65536 -np 1", ["7*RTX 3060", "RTX 3070", "8*RTX 3060"])
    plan = make_plan(of)
    assert isinstance(plan, Plan)
    assert plan.args[0] == "-dev"
    assert "CUDA7" not in plan.args[1].split(",")
    assert any("CUDA7 is left out" in note for note in plan.notes)
    assert leaves_margins(fresh(of, plan.args), of.margins)


def test_no_gpu() -> None:
    plan = make_plan(problem("-c 65536 -np 1", ()))
    assert isinstance(plan, Plan)
    assert plan.args == ()


def test_pipeline_parallelism_is_turned_off_where_its_copies_do_not_fit() -> None:
    plan = make_plan(FITTING["copies of inputs that do not fit"])
    assert isinstance(plan, Plan)
    assert not plan.estimate.pipeline_parallel
    assert plan.args[plan.args.index("-ot") + 1].startswith("output_norm=")


def test_what_goes_where_is_told() -> None:
    plan = make_plan(problem())
    assert isinstance(plan, Plan)
    text = " ".join(plan.notes)
    assert "of experts are on GPUs" in text
    assert any("copied to the GPUs: CUDA0's compute buffer" in note for note in plan.estimate.notes)
    assert 10 < plan.token_ms < 100
    assert any("DDR5" in assumed for assumed in plan.assumed)


NOT_FITTING = {
    "a context too large": case("-c 1048576 -np 8 -kvu -ub 512 -ngl 99", "RTX 3090"),
    "what the user placed": case("-c 65536 -np 1 -ot exps=CUDA0", "2*RTX 3090"),
    "split rows": case("-c 65536 -np 1 -sm row", "2*RTX 3090"),
}


@cache
def no_plan(name: str) -> NoPlan:
    plan = make_plan(NOT_FITTING[name])
    assert isinstance(plan, NoPlan)
    return plan


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.thorough if "too large" in name else ()) for name in NOT_FITTING],
)
def test_the_nearest_changes_fit(name: str) -> None:
    of, plan = NOT_FITTING[name], no_plan(name)
    assert plan.why
    assert plan.nearest
    for change in plan.nearest:
        if not change.drop:
            assert leaves_margins(fresh(of, change.args), of.margins), change.change


def test_the_nearest_context_is_the_largest() -> None:
    of, plan = NOT_FITTING["a context too large"], no_plan("a context too large")
    change = next(change for change in plan.nearest if change.args[0] == "-c")
    larger = of.with_words("-c", str(int(change.args[1]) + 1024))
    assert Search(larger).find(copies=True) is None


def test_layers_go_to_the_host_where_a_context_is_too_large_for_all() -> None:
    of = problem("-c 1048576 -np 8 -kvu -ub 512", ["RTX 3090"])
    plan = make_plan(of)
    assert isinstance(plan, Plan)
    check(of, plan)
    assert plan.args[0] == "-ngl"
    assert "with these settings the GPUs cannot hold the attention of every layer" in plan.notes[0]
    for change in plan.nearest:
        estimate = fresh(of, change.args)
        assert change.args[change.args.index("-ngl") + 1] == "99"
        assert leaves_margins(estimate, of.margins)
    assert [change.args[0] for change in plan.nearest] == ["-c"]


def test_copies_of_inputs_do_not_hide_a_placement() -> None:
    """Everything on GPUs, which keeps four copies of each input, is no measure of what fits."""
    of = problem("-c 362496 -np 8 -kvu -ub 2048", ["4*RTX 3060"])
    plan = make_plan(of)
    assert isinstance(plan, Plan)
    assert plan.args[:2] == ("-ngl", "99")
    assert "--no-op-offload" not in plan.args
    assert leaves_margins(fresh(of, plan.args), of.margins)


def test_sixteen_gpus_of_which_nothing_fits() -> None:
    of = problem("-c 65536 -np 1", ["16*x:2000:1100:8.6"])
    plan = make_plan(of)
    assert isinstance(plan, NoPlan)
    assert not any("-dev" in change.drop for change in plan.nearest)
    refused = make_plan(of.with_words("-dev", ",".join(f"CUDA{i}" for i in range(16))))
    assert isinstance(refused, NoPlan)
    assert refused.refused is not None


@pytest.mark.thorough
def test_a_host_that_is_too_small() -> None:
    plan = make_plan(problem("-c 65536 -np 1", ["RTX 3090"], host=60000))
    assert isinstance(plan, NoPlan)
    assert "the host is" in plan.why


def test_a_host_alone_that_is_too_small() -> None:
    plan = make_plan(problem("-c 65536 -np 1", [], host=83000))
    assert isinstance(plan, NoPlan)
    assert re.search(r"nothing fits; the host is [0-9]{3} MiB short", plan.why)


def test_experts_that_flags_place_are_not_the_plans_to_count() -> None:
    plan = make_plan(problem("-c 65536 -np 1 -ncmoe 30", ["2*RTX 3090"]))
    assert isinstance(plan, Plan)
    assert "every expert that your flags do not place is on a GPU" in plan.notes


def test_names_to_search_for_are_looked_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("memplan.planning.plan.widen", lambda *_: pytest.fail("searched"))
    with pytest.raises(FlagError, match="must be c, ub, np or cache"):
        make_plan(problem("-c 65536 -np 1", ["2*RTX 3090"]), ["c", "x"])


@pytest.mark.parametrize("name", ["c", "ub", "np", "cache"])
def test_settings_that_may_be_chosen_cost_no_expert_its_place(name: str) -> None:
    of = problem("-c 16384 -np 1 -ub 512 -ctk q8_0 -ctv q8_0", ["RTX PRO 6000"])
    plan, base = make_plan(of, [name]), make_plan(of)
    assert isinstance(plan, Plan)
    assert isinstance(base, Plan)
    assert gpu_weights(plan.estimate) >= gpu_weights(base.estimate)
    flag = {"c": "-c", "ub": "-ub", "np": "-np", "cache": "-ctk"}[name]
    assert plan.args[0] == flag
    assert leaves_margins(fresh(of, plan.args), of.margins)


def test_settings_that_may_be_chosen_are_lowered_where_they_must_be() -> None:
    of = NOT_FITTING["a context too large"]
    plan = make_plan(of, ["np"])
    assert isinstance(plan, Plan)
    assert plan.args[:2] == ("-np", "1")
    assert leaves_margins(fresh(of, plan.args), of.margins)


@pytest.mark.thorough
def test_how_much_is_missing_and_what_would_do_is_said() -> None:
    of = problem("-c 65536 -np 1", ["RTX 3060:12288:1500"])
    plan = make_plan(of)
    assert isinstance(plan, NoPlan)
    assert "CUDA0 is 395 MiB short of its margin; it would fit with --margin 629: -ngl 0" in plan.why
    assert [change.args for change in plan.nearest] == [("-ngl", "0", "--no-op-offload")]
    smaller = make_plan(replace(of, margins=(629 * MIB,)))
    assert isinstance(smaller, Plan)
    both = make_plan(problem("-c 65536 -np 1 -ngl 99", ["RTX 3090:24268:23000"], host=60000))
    assert isinstance(both, NoPlan)
    assert "the host is" in both.why


@pytest.mark.parametrize("release", [r.name for r in RELEASES])
def test_layer_costs_are_those_of_the_release(release: str) -> None:
    """Of every release's own caches, states and tensors: what one GPU with everything holds, to the byte."""
    of = problem(DRAFTING, ["H200:400000"], release=release)
    costs = layer_costs_of(of.question)
    assert isinstance(costs, LayerCosts)
    everything = fresh(of, ()).devices[0]
    assert (
        sum(costs.dense) + sum(e.size for layer in costs.experts for e in layer)
        == everything.model + everything.context
    )


DRAFTING = "-c 32768 -np 8 --spec-type draft-eagle3 --spec-draft-n-max 16"
"""Of a release from b10361 on compressor states have a snapshot for each drafted token."""


def test_a_plan_for_an_older_release_fills_what_its_smaller_states_leave() -> None:
    of = problem(DRAFTING, release="b10068")
    plan = make_plan(of)
    assert isinstance(plan, Plan)
    check(of, plan)
    assert sum(share.expert_bytes for share in plan.shares[:-1]) == 36576 * MIB
    assert plan.estimate.llama == "b10068"


def test_a_margin_of_more_than_is_free() -> None:
    found = plan(builtin_header("gpt-oss-20b"), [], parse_gpus(["RTX 4090:24210:23810"]), margin_mib=30000)
    assert isinstance(found, NoPlan)
    assert found.why == "nothing fits: a margin of 30,000 MiB is more than CUDA0 has free, 23,810 MiB"
    assert not found.nearest
