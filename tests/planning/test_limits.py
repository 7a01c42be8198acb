"""What limits a plan other than the first thing that comes to mind: the host, few layers on GPUs, slots' contexts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memplan.cli import main
from memplan.estimator import answer
from memplan.output.plan import advice_text, no_plan_text
from memplan.planning import probing
from memplan.planning.advice import advise
from memplan.planning.plan import NoPlan, Plan, make_plan
from memplan.planning.probing import Change, Prober
from memplan.planning.problem import Problem, leaves_margins
from memplan.planning.search import Search
from memplan.result import Estimate
from tests.planning.rigs import MIB, problem

pytestmark = pytest.mark.slow


def fresh(of: Problem, args: tuple[str, ...]) -> Estimate:
    return answer(of.question.with_words(*args)).estimate


def fits(of: Problem, args: tuple[str, ...]) -> bool:
    return leaves_margins(fresh(of, args), of.margins)


def plan(of: Problem, *search: str) -> Plan:
    found = make_plan(of, search)
    assert isinstance(found, Plan)
    assert fits(of, found.args)
    return found


def value(args: tuple[str, ...], flag: str) -> int:
    return int(args[args.index(flag) + 1])


@pytest.mark.thorough
def test_what_changes_where_the_host_is_short() -> None:
    of = problem("-c 1048576 -np 1", ["RTX 3090"], host=65536)
    nothing = make_plan(of)
    assert isinstance(nothing, NoPlan)
    assert "the host is" in nothing.why and "CUDA0" not in nothing.why
    assert all(fits(of, change.args) for change in nothing.nearest)
    with_copies = [change for change in nothing.nearest if "--no-op-offload" not in change.args]
    contexts = [value(change.args, "-c") for change in with_copies if "-c" in change.args]
    assert max(contexts) >= 618496
    assert any("-ctk" in change.args for change in nothing.nearest)


@pytest.mark.thorough
def test_the_largest_context_that_the_host_has_room_for() -> None:
    of = problem("-c 262144 -np 1", ["2*RTX 3090"], host=40000)
    found = plan(of, "c")
    assert found.estimate.n_ctx >= 196608
    assert "--no-op-offload" not in found.args


@pytest.mark.thorough
def test_where_no_single_change_is_enough_several_are() -> None:
    of = problem("-c 32768 -np 1", ["RTX 3090"], host=60000)
    nothing = make_plan(of)
    assert isinstance(nothing, NoPlan)
    (change,) = nothing.nearest
    assert change.change.startswith("-ub 32") and "-c" in change.args
    assert fits(of, change.args)


def test_a_host_without_a_gpu() -> None:
    of = problem("-c 1048576 -np 1", (), host=90000)
    nothing = make_plan(of)
    assert isinstance(nothing, NoPlan)
    assert all(fits(of, change.args) for change in nothing.nearest)
    assert any("-c" in change.args for change in nothing.nearest)


@pytest.mark.parametrize(
    ("flags", "gpus", "margin", "layers"),
    [
        ("-c 65536 -np 1", ["RTX 3060:2000:1500"], 768, 1),
        ("-c 1048576 -np 1 -ub 8192 -b 8192", ["RTX 3090"], 1024, 2),
        ("-c 65536 -np 1", ["2*RTX 3090"], 23200, 3),
    ],
)
def test_few_layers_are_on_gpus_where_more_do_not_fit(flags: str, gpus: list[str], margin: int, layers: int) -> None:
    found = plan(problem(flags, gpus, margin=margin))
    assert value(found.args, "-ngl") >= layers
    assert "--no-op-offload" in found.args


def test_margins_that_would_do_are_the_best_placement_s() -> None:
    of = problem("-c 65536 -np 1", ["RTX 3060:2000:1500"], margin=900)
    nothing = make_plan(of)
    assert isinstance(nothing, NoPlan)
    assert "with --margin 883: -ngl 1 --no-op-offload" in nothing.why
    plan(replace(of, margins=(883 * MIB,)))
    on_host = [change for change in nothing.nearest if change.host_layers]
    assert on_host and f"fits with {on_host[0].host_layers} layers on the host" in no_plan_text(nothing, 200)


@pytest.mark.thorough
def test_what_fits_as_given_is_not_lowered() -> None:
    of = problem("-c 1048576 -np 1 -ub 4096 -b 4096", ["RTX 3090"])
    assert plan(of, "c").args == plan(of).args


def test_slots_keep_their_context() -> None:
    of = problem("-c 16384 -np 1 -ub 512", ["RTX PRO 6000"])
    found = plan(of, "np")
    slots = value(found.args, "-np")
    assert slots > 1
    assert found.estimate.n_ctx_seq == 16384
    assert found.estimate.n_ctx == 16384 * slots
    shared = plan(problem("-c 16384 -ub 512", ["RTX PRO 6000"]), "np")
    assert value(shared.args, "-np") > 4
    assert shared.estimate.n_ctx_seq == 16384


def test_fewer_slots_keep_their_context() -> None:
    of = problem("-c 4194304 -np 8 -ub 512 -ngl 99", ["RTX 3090"])
    found = plan(of, "np")
    assert value(found.args, "-np") < 8
    assert found.estimate.n_ctx_seq >= 524288


@pytest.mark.parametrize("flags", ["-c 65536 -np 1 -cmoe", "-c 65536 -np 1"])
def test_estimate_offers_layers_on_the_host(flags: str) -> None:
    of = problem(flags, ["RTX 4060"], margin=0)
    _, placed = advise(of, fresh(of, ()))
    assert isinstance(placed, Plan)
    assert placed.shares[-1].layers is not None
    assert fits(of, placed.args)


def test_estimate_offers_a_placement_without_what_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    of = problem("-c 32768 -np 1 -ncmoe 38", ["RTX 3090"], margin=0, host=65536)
    advice, placed = advise(of, fresh(of, ()))
    assert isinstance(placed, Change)
    assert placed.drop == ("-ncmoe",)
    assert fits(of.with_flags(of.flags.without({"-ncmoe"})), placed.args)
    assert "- without -ncmoe, another placement; add: -ngl 99" in advice_text(advice, placed.args, 200, placed.drop)
    main(["estimate", "deepseek-v4-flash", "--gpu", "RTX 3090", "--host-mib", "65536", *of.flags.words()])
    assert "without -ncmoe, another placement" in capsys.readouterr().out


def test_more_layers_on_gpus_may_fit_where_fewer_do_not() -> None:
    of = problem("-c 87040 -np 1 -ub 32768 -b 32768 -cmoe", ["2*RTX 3090"], host=90000)
    assert not fits(of, ("-ngl", "1", "-ts", "0,1"))
    found = Search(of).find(partial=True, effort="any")
    assert found is not None and fits(of, found.args)
    assert value(found.args, "-ngl") > 1


def test_variants_are_tried_until_so_many_estimates_were_made(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = Prober(problem("-c 65536 -np 1 -cmoe", ["2*RTX 3090"]))
    assert probe.fits(("-c", "4096")) and probe.estimates
    monkeypatch.setattr(probing, "MOST_ESTIMATES", probe.estimates)
    made = probe.estimates
    assert not probe.fits(("-c", "8192")) and probe.estimates == made
    assert probe.change(("-c", "8192"), 0.5) is not None  # what was found to fit is proposed all the same
