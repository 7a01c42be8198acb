from __future__ import annotations

import pytest

from memplan.estimator import estimate
from memplan.llama.flags import parse_flags
from memplan.models.open import open_model
from memplan.rig import parse_gpus

COPIED = "weights on the host are copied"


def notes(flags: str, gpus: int = 1) -> str:
    rig = parse_gpus(["RTX PRO 6000"] * gpus)
    return "\n".join(estimate(open_model("deepseek-v4-flash"), parse_flags(flags.split()), rig).notes)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("-ot ffn_epxs=CPU", "-ot 'ffn_epxs=CPU' matches no tensor of this model"),
        ("-ot exps=CPU,blk.1.*exps=CUDA0", "-ot 'blk.1.*exps=CUDA0' has no effect: an override before it"),
        ("-cmoe -ot exps=CUDA0", "-ot 'exps=CUDA0' has no effect: an override before it takes all it matches"),
        ("-ncffn 3", "-ncffn matches no tensor of this model"),
        ("-ot a1=CPU,a2=CPU,a3=CPU,a4=CPU,a5=CPU", "2 more overrides match no tensor"),
    ],
)
def test_an_override_that_moves_nothing_is_said(flags: str, said: str) -> None:
    assert said in notes(f"-c 512 -np 1 {flags}")


@pytest.mark.parametrize("flags", ["-cmoe", "-ncmoe 99", "-ot exps=CPU", "-ot blk.1.*exps=CUDA0,exps=CPU"])
def test_others_are_not(flags: str) -> None:
    assert "-ot" not in notes(f"-c 512 -np 1 {flags}")
    assert "matches no" not in notes(f"-c 512 -np 1 {flags}")


@pytest.mark.parametrize("flags", ["-cmoe", "-ncmoe 1", "-ot blk.1.*exps=CPU", "-ngl 20", "-ngl 0"])
def test_weights_are_copied_for_prompts(flags: str) -> None:
    assert COPIED in notes(f"-c 512 -np 1 {flags}")


@pytest.mark.parametrize(
    "flags",
    [
        "-ot ffn_epxs=CPU",
        "-ot token_embd=CPU",
        "-ot exps=CUDA0",
        "-cmoe -ub 16",
        "-cmoe --no-op-offload",
        "-ngl 20 --no-op-offload",
        "-dev none",
    ],
)
def test_they_are_not(flags: str) -> None:
    assert COPIED not in notes(f"-c 512 -np 1 {flags}")
