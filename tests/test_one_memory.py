"""Machines whose GPU and host have one memory: the name's size is the machine's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memplan.estimator import answer, estimate
from memplan.full_estimate import short_at
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.output.words import verdict_line
from memplan.planning.api import plan
from memplan.planning.plan import NoPlan
from memplan.question import Question
from memplan.rig import parse_gpus
from memplan.rig_file import parse_rig

MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("spec", "total"),
    [("M4 Max 64GB", 64 * GIB), ("M2 Ultra", 192 * GIB), ("Strix Halo", 128 * GIB), ("GB10", 122572 << 20)],
)
def test_the_host_is_as_large_as_the_name_says(spec: str, total: int) -> None:
    rig = parse_gpus([spec])
    assert rig.unified
    assert rig.host_total == total
    assert parse_rig(f'[[gpus]]\nname = "{spec}"', json=False).host_total == total


@pytest.mark.parametrize("specs", [["RTX 3090"], ["Strix Halo", "RTX 3090"], ["780M:16384"]])
def test_where_no_name_says_so_it_is_not_known(specs: list[str]) -> None:
    assert parse_gpus(specs).host_total is None


def test_what_is_on_both_sides_comes_out_of_one_pool() -> None:
    flags = parse_flags(["-c", "8192", "-np", "1", "-ngl", "20"])
    for spec, recipe in (("Strix Halo", "mxfp4"), ("GB10", "mxfp4"), ("M4 Max 64GB", "antirez-q2")):
        found = estimate(builtin_header(f"deepseek-v4-flash:{recipe}"), flags, parse_gpus([spec]))
        assert found.host_lacks > 0
        assert not found.fits


def test_no_plan_takes_more_than_there_is() -> None:
    found = plan(builtin_header("deepseek-v4-flash"), ["-c", "8192", "-np", "1"], parse_gpus(["M4 Max 64GB"]))
    assert isinstance(found, NoPlan)


def test_what_kernels_take_comes_out_of_it_too() -> None:
    flags, rig = parse_flags(["-c", "32768", "-np", "1"]), parse_gpus(["GB10"])
    found = estimate(builtin_header("qwen3-30b-a3b"), flags, rig)
    (gpu,) = found.devices
    assert found.fits and gpu.run_time == 42 * MIB
    assert found.host_most is not None and found.server.most is not None
    assert found.host_most == found.host_least + found.server.most - found.server.outputs + gpu.run_time
    small = replace(rig, host_total=found.host.used + gpu.allocated + 10 * MIB)
    asked = answer(Question.of(builtin_header("qwen3-30b-a3b"), flags, small, "v0.5.0"))
    assert asked.estimate.starts and not asked.estimate.fits and asked.estimate.host_lacks == 32 * MIB
    since = short_at(asked)
    assert since is not None and since < 32768
    said = verdict_line(replace(asked.estimate, short_at=since))
    assert said.startswith(
        "starts, and is 32 MiB short of the one memory of GPUs and host once a slot holds 32,768 tokens"
    )
    assert said.endswith(f"(from {since:,} tokens on)")
