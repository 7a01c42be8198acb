from __future__ import annotations

from dataclasses import replace

import pytest

from memplan.errors import BadTensorShape, MissingTensor
from memplan.gguf.header import Header, TensorInfo
from memplan.gguf.types import BY_NAME, F32
from memplan.llama.weights import INPUT, OUTPUT, ModelTensors, load_tensors
from memplan.models.builtin import builtin_header
from memplan.models.deepseek4.hparams import DeepSeek4HParams
from memplan.models.deepseek4.tensors import wanted
from memplan.models.registry import load_hparams
from memplan.releases import V0_5_0

FLASH = builtin_header("deepseek-v4-flash")
MTP = builtin_header("deepseek-v4-flash:mtp-q2")


def load(header: Header, load_mtp: bool = False) -> ModelTensors:
    hp = hparams(header)
    return load_tensors(header, hp, wanted(hp, header.tensors, load_mtp, V0_5_0))


def hparams(header: Header) -> DeepSeek4HParams:
    hp = load_hparams(header, (), V0_5_0)
    assert isinstance(hp, DeepSeek4HParams)
    return hp


def with_tensor(header: Header, name: str, shape: tuple[int, ...] | None, type: str = "f32") -> Header:
    tensors = dict(header.tensors)
    if shape is None:
        del tensors[name]
    else:
        tensors[name] = TensorInfo(name, shape, BY_NAME[type], 0)
    return replace(header, tensors=tensors)


def test_every_tensor_of_a_file_is_loaded() -> None:
    found = load(FLASH)
    assert found.refusal is None
    assert found.skipped == ()
    assert set(found.by_role()) == set(FLASH.tensors)
    assert sum(t.nbytes for t in found.tensors) == sum(t.nbytes for t in FLASH.tensors.values())


def test_layers_and_ops() -> None:
    by_name = load(FLASH).by_role()
    assert (by_name["token_embd.weight"].layer, by_name["token_embd.weight"].op) == (INPUT, "GET_ROWS")
    assert by_name["output_hc_fn.weight"].layer == OUTPUT
    assert (by_name["blk.7.ffn_up_exps.weight"].layer, by_name["blk.7.ffn_up_exps.weight"].op) == (7, "MUL_MAT_ID")
    assert by_name["blk.3.exp_probs_b.bias"].op == "ADD"


def test_the_first_output_projection_is_reshaped() -> None:
    assert FLASH.tensors["blk.0.attn_output_a.weight"].shape == (4096, 8192)
    assert load(FLASH).by_role()["blk.0.attn_output_a.weight"].ne == (4096, 1024, 8, 1)


def test_mtp_blocks_are_skipped_unless_asked_for() -> None:
    plain, mtp = load(MTP), load(MTP, load_mtp=True)
    assert plain.refusal is None
    assert mtp.refusal is None
    assert all(name.startswith("blk.43.") for name in plain.skipped)
    assert {t.name for t in mtp.tensors} - {t.name for t in plain.tensors} == set(plain.skipped)
    assert len(plain.skipped) > 20


@pytest.mark.parametrize(
    ("header", "name"),
    [(FLASH, "output.weight"), (FLASH, "blk.2.indexer.proj.weight"), (MTP, "blk.43.ffn_norm.weight")],
)
def test_a_missing_tensor_is_named(header: Header, name: str) -> None:
    with pytest.raises(MissingTensor, match=name):
        load(with_tensor(header, name, None))


@pytest.mark.parametrize(
    ("name", "shape", "type"),
    [
        ("token_embd.weight", (4096, 129279), "f16"),
        ("blk.0.attn_norm.weight", (4096, 1, 2), "f32"),
        ("blk.0.ffn_up_exps.weight", (4096, 2048, 255), "q8_0"),
        ("blk.0.attn_output_a.weight", (4096, 8191), "q8_0"),
    ],
)
def test_a_wrong_shape_is_named_with_the_right_one(name: str, shape: tuple[int, ...], type: str) -> None:
    with pytest.raises(BadTensorShape, match=f"{name} has shape .* imply") as caught:
        load(with_tensor(FLASH, name, shape, type))
    assert "\n" not in str(caught.value)


def test_trailing_ones_do_not_matter() -> None:
    assert load(with_tensor(FLASH, "blk.0.attn_norm.weight", (4096, 1, 1), "f32")).refusal is None


def test_a_reshaped_row_must_be_whole_blocks() -> None:
    hp = replace(hparams(FLASH), o_group_count=64)  # rows of 512, not of 4096
    name = "blk.0.attn_output_a.weight"
    header = with_tensor(FLASH, name, (4096, 8192), "q8_0")
    with pytest.raises(BadTensorShape, match="attn_output"):
        load_tensors(header, hp, wanted(hp, header.tensors, False, V0_5_0))


def test_a_tensor_that_nobody_asks_for_is_refused_as_llama_cpp_does() -> None:
    refusal = load(with_tensor(FLASH, "blk.0.attn_k.weight", (64,))).refusal
    assert refusal is not None
    assert (refusal.kind, refusal.outcome) == ("tensors-not-of-this-release", "refused")
    n = len(FLASH.tensors)
    assert refusal.message == f"wrong number of tensors; expected {n + 1}, got {n}"


def test_optional_tensors() -> None:
    header = with_tensor(FLASH, "blk.0.exp_probs_b_vl.bias", (256,))
    header = with_tensor(header, "blk.5.ffn_down_exps.scale", (256,))
    header = with_tensor(header, "blk.5.ffn_up_shexp.input_scale", (1,))
    found = load(header)
    assert found.refusal is None
    assert found.by_role()["blk.5.ffn_down_exps.scale"].type is F32
    # scales of a block that is skipped are not asked for
    mtp = with_tensor(MTP, "blk.43.nextn.eh_proj.scale", (1,))
    assert load(mtp).refusal is not None
    assert load(mtp, load_mtp=True).refusal is None


def test_scales_of_the_output_are_asked_for_beside_nvfp4_only() -> None:
    scaled = with_tensor(FLASH, "output.scale", (1,))
    assert load(scaled).refusal is not None
    assert load(with_tensor(scaled, "output.weight", (4096, 129280), "nvfp4")).refusal is None
