from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from memplan.cli import main
from memplan.estimator import answer
from memplan.output.plan import advice_text
from memplan.planning import advice as advice_module
from memplan.planning import problem as problem_module
from memplan.planning.advice import advise
from memplan.planning.fit import fit_preset, survives
from memplan.planning.plan import NoPlan, Plan
from memplan.planning.problem import Problem
from memplan.result import Estimate
from tests.planning.rigs import problem

pytestmark = pytest.mark.slow


def estimate(of: Problem) -> Estimate:
    return answer(of.question).estimate


@pytest.mark.parametrize(
    ("flags", "gpus", "best"),
    [
        ("-c 131072 -np 1 -ub 4096 -b 4096", ["RTX PRO 6000:97886:84000"], "-ub"),
        ("-c 1048576 -np 4 -kvu -ub 512 -cmoe", ["RTX 5090"], "-np"),
        ("-c 262144 -np 1 -ub 2048", ["2*RTX A6000:46000:45800"], "-ot"),
        ("-c 65536 -np 1 -cmoe -ub 512", ["RTX 3060:12288:9200"], "--no-op-offload"),
    ],
)
def test_the_best_single_flag_makes_it_fit(flags: str, gpus: list[str], best: str) -> None:
    of = problem(flags, gpus)
    found = estimate(of)
    assert not found.fits
    advice, _ = advise(of, found)
    assert advice is not None
    assert advice.args[0] == best
    changed = estimate(of.with_words(*advice.args))
    assert changed.fits
    assert changed.buffers == advice.estimate.buffers
    assert advice.freed > 0


@pytest.mark.thorough
def test_slots_that_nobody_asked_for_are_the_first_to_go() -> None:
    """R31: unified slots multiply the compute buffers of lid-cuda, so a small ubatch is no cure."""
    of = problem("-c 262144 -ub 2048", ["2*RTX PRO 6000"])
    of = replace(of, question=of.question.with_release("lid-cuda"))
    advice, _ = advise(of, estimate(of))
    assert advice is not None and advice.also is not None
    assert (advice.args, advice.also[0]) == (("-np", "1"), ("-np", "4"))
    for words, found in ((advice.args, advice.estimate), advice.also):
        changed = estimate(of.with_words(*words))
        assert changed.fits and changed.buffers == found.buffers
    assert advice.also[1].n_ctx_seq == 65536
    assert advice.freed > 400 << 30
    text = advice_text(advice, None)
    assert "-np 1 frees 420.7 GiB on CUDA1 and fits; so does -np 4, with 65,536 tokens for" in text


def test_where_no_flag_helps_another_placement_does() -> None:
    of = problem("-c 131072 -np 1", ["RTX 3090"])
    advice, placed = advise(of, estimate(of))
    assert advice is None
    assert isinstance(placed, Plan)
    fits = estimate(of.with_words(*placed.args))
    assert fits.fits
    # as does --fit with a margin for kernels, unless it would give up
    (target,) = survives(of, placed)
    assert target == 300 + (fits.devices[0].run_time >> 20)
    assert f"with --fit-target {target} (memplan preset --fit)" in advice_text(
        None, placed.args, 200, targets=(target,)
    )
    assert survives(of.with_words("-ncmoe", "3"), placed) == ()


@pytest.mark.parametrize("flags", ["-c 65536 -np 1", "-c 65536 -np 1 -ngl 99 -ts 1,1", "-c 65536 --fit-target 2048"])
def test_the_placement_is_the_plan_and_repeats_nothing(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = ("deepseek-v4-flash", "--gpu", "2*RTX 3090", *flags.split())
    main(["estimate", *line])
    advised = capsys.readouterr().out.split("another placement")[1].split("add:")[1].split("- memplan plan")[0]
    main(["plan", *line])
    planned = capsys.readouterr().out.splitlines()[0]
    assert " ".join(advised.split()) == planned.removeprefix("add: ")
    assert not {word for word in shlex.split(advised) if word.startswith("-")} & set(flags.split())


def test_margins_for_fit() -> None:
    preset = fit_preset(problem("-c 65536 -np 1", ["2*RTX 3090"], margin=0), growth=300)
    assert preset.targets == (300 + 300, 300 + 300)
    assert preset.args[:4] == ("--fit", "on", "--fit-target", f"{preset.targets[0]},{preset.targets[1]}")
    assert preset.args[-2:] == ("--fit-ctx", "65536")
    assert not isinstance(preset.plan, NoPlan)
    used = zip(preset.plan.estimate.devices, preset.targets, strict=True)
    assert all(device.left >= (target - 300) << 20 for device, target in used)


@pytest.mark.parametrize(
    ("flags", "gpus", "word"),
    [
        ("-c 65536 -np 1 -cmoe", ["RTX 3090"], "stops at once because -cmoe"),
        ("-c 65536 -np 1", ["RTX 5090", "RTX 3060"], "mixed cards"),
        ("-c 65536 -np 1 -ctk q8_0", ["RTX 3060"], "would fail"),
    ],
)
def test_when_fit_is_not_to_be_used(flags: str, gpus: list[str], word: str) -> None:
    assert word in " ".join(fit_preset(problem(flags, gpus, margin=0)).warnings)


def test_when_all_fits_nothing_speaks_against_fit() -> None:
    assert fit_preset(problem("-c 65536 -np 1", ["RTX PRO 6000"], margin=0)).warnings == ()


def test_an_advice_says_what_it_needs_of_a_host_that_is_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["estimate", "gpt-oss-120b", "--gpu", "RTX 4090", "-c", "2147483647"]
    main(line)
    said = " ".join(capsys.readouterr().out.split())
    assert "with all of it kept, another placement, for which the host needs 77," in said
    assert "MiB (not checked); add: -ngl 1" in said


def test_a_model_of_more_layers_than_are_planned_gets_its_estimate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problem_module, "MOST_LAYERS", 35)
    words = ["qwen3-8b", "--gpu", "RTX 3060", "-c", "131072", "-np", "1"]
    assert main(["estimate", *words]) == 0
    assert capsys.readouterr().out.endswith("\n\n36 layers: what would fit is looked for up to 35\n")
    monkeypatch.setattr(advice_module, "MOST_NODES", 1000)
    monkeypatch.setattr(problem_module, "MOST_LAYERS", 36)
    assert main(["estimate", *words]) == 0
    assert capsys.readouterr().out.endswith(" nodes: what would fit is looked for up to 1,000\n")
    monkeypatch.setattr(problem_module, "MOST_LAYERS", 35)
    assert main(["plan", *words]) == 2
    assert capsys.readouterr().err == "memplan: error: 36 layers: what would fit is looked for up to 35\n"
