from __future__ import annotations

import pytest

from memplan.errors import FlagError
from memplan.models.builtin import builtin_header
from memplan.models.open import open_model
from memplan.models.raw import header_file


def test_tensors_follow_the_hyper_parameter() -> None:
    whole, fewer = builtin_header("deepseek-v4-flash"), builtin_header("deepseek-v4-flash", ["expert_count=132"])
    assert fewer.metadata["deepseek4.expert_count"] == 132
    assert list(fewer.tensors) == list(whole.tensors)
    moved = {name.split(".", 2)[-1] for name, t in fewer.tensors.items() if t.shape != whole.tensors[name].shape}
    assert moved == {*(f"ffn_{part}_exps.weight" for part in ("gate", "up", "down")), "ffn_gate_inp.weight",
                     "exp_probs_b.bias"}  # fmt: skip
    experts = "blk.7.ffn_up_exps.weight"
    assert fewer.tensors[experts].nbytes * 256 == whole.tensors[experts].nbytes * 132
    assert fewer.name == "deepseek-v4-flash:antirez-q2 with expert_count=132"
    assert (
        header_file("deepseek-v4-flash", changes=["deepseek4.expert_count=132"]).end
        < header_file("deepseek-v4-flash").end
    )


def test_fewer_layers_have_the_first_values() -> None:
    header = builtin_header("deepseek-v4-flash", ["block_count=20", "swiglu_clamp_exp=7.5"])
    assert header.metadata["deepseek4.swiglu_clamp_exp"] == (7.5,) * 20
    assert not any(name.startswith("blk.20.") for name in header.tensors)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["expert_count"], "--set 'expert_count': must be KEY=VALUE, as in expert_count=132"),
        (["experts=3"], "no such hyper-parameter; did you mean expert_"),
        (["expert_count=x"], "--set expert_count 'x': must be a whole number"),
        (["expert_count=-1"], "must be 0 or more"),
        (["expert_count=1", "expert_count=2"], "expert_count is given twice"),
        (["expert_weights_norm=1"], "must be one of true, false"),
        (["block_count=44"], "deepseek-v4-flash has values of 43 layers alone"),
    ],
)
def test_what_cannot_be_changed(changes: list[str], said: str) -> None:
    with pytest.raises(FlagError) as raised:
        builtin_header("deepseek-v4-flash", changes)
    assert said in str(raised.value)


def test_no_layers_and_files() -> None:
    with pytest.raises(FlagError, match="block_count is 0"):
        builtin_header("deepseek-v4-flash", ["block_count=0"])
    with pytest.raises(FlagError, match="is for built-in models"):
        open_model("x.gguf", changes=["expert_count=132"])
    with pytest.raises(FlagError, match="is for built-in models"):
        header_file("x.gguf", changes=["expert_count=132"])


def test_a_value_that_llama_cpp_does_not_take_is_the_change_s_fault() -> None:
    with pytest.raises(FlagError, match=r"--set 'expert_count=9999': .* at most 1024; give another value"):
        builtin_header("deepseek-v4-flash", ["expert_count=9999"])
