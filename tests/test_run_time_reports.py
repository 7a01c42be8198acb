"""Public reports of servers that start and die in a long prompt, and what memplan says of them."""

from __future__ import annotations

import pytest

from memplan.estimator import answer
from memplan.explaining.run_time import explain_run_time
from memplan.full_estimate import short_at
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.question import KERNELS, Question
from memplan.rig import parse_gpus

MIB = 1 << 20
MB = 1_000_000


def question(model: str, args: str, gpu: str, release: str, filled: int | None = None) -> Question:
    flags = parse_flags(args.split())
    return Question.of(builtin_header(f"deepseek-v4-flash:{model}"), flags, parse_gpus([gpu]), release, filled=filled)


def test_out_of_memory_after_57000_tokens() -> None:
    """R32: RTX PRO 6000, MXFP4, early July's build, ``--fit`` with its margin of 1,024 MiB."""
    asked = question("mxfp4", "-np 1 -c 262144", "RTX PRO 6000", "b9842")
    layers = "|".join(map(str, range(22, 44)))
    patterns = [r"blk\.21.ffn_(gate|gate_up|down).*=CPU", rf"blk\.({layers}).ffn_(up|down|gate_up|gate)_(ch|)exps=CPU"]
    served = asked.with_words("-ngl", "44", "-ot", ",".join(patterns))  # as common/fit.cpp places them with this margin
    full = answer(served)
    assert full.estimate.starts and not full.estimate.fits
    (then,) = answer(served.with_(filled=57344)).estimate.devices
    assert then.run_time == 906 * MIB
    # the code of kernels takes what is left, and a little more
    assert 0 < then.left < KERNELS
    found = short_at(full)
    assert found is not None and 57344 < found < 80_000  # without that code


@pytest.mark.parametrize("ubatch", [1024, 2048])
def test_a_top_k_that_takes_300_to_450_mb(ubatch: int) -> None:
    """R33: 4x V100-16GB, a context of a million, a prompt of 55,000 tokens: a top-k of the prefill dies."""
    flags = f"-np 1 -c 1048576 -ncmoe 25 -ub {ubatch}"
    for use in explain_run_time(question("antirez-q2", flags, "4*V100:16384:15900:7.0", "v0.5.0", 55000)).devices:
        first = use.ops[0]
        assert (first.op, first.base) == ("TOP_K", "TOP_K of lid_score_masked")
        assert 300 * MB < first.bytes < 450 * MB
