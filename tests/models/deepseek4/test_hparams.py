from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from memplan.errors import BadHyperParameter, MemplanError, MissingKey, UnsupportedArchitecture
from memplan.gguf.header import Header, SkippedArray, Value
from memplan.models import registry
from memplan.models.builtin import builtin_header
from memplan.models.deepseek4.hparams import DeepSeek4HParams
from memplan.releases import V0_5_0

FLASH = builtin_header("deepseek-v4-flash")
A = "deepseek4."
REQUIRED = (
    "block_count",
    "context_length",
    "embedding_length",
    "attention.layer_norm_rms_epsilon",
    "attention.q_lora_rank",
    "attention.sliding_window",
    "expert_feed_forward_length",
    "expert_shared_count",
    "expert_weights_scale",
    "expert_weights_norm",
    "swiglu_clamp_exp",
    "attention.indexer.head_count",
    "attention.indexer.key_length",
    "attention.indexer.top_k",
    "attention.output_group_count",
    "attention.output_lora_rank",
    "attention.compress_rope_freq_base",
    "attention.compress_ratios",
    "hyper_connection.count",
    "hyper_connection.sinkhorn_iterations",
    "hyper_connection.epsilon",
    "hash_layer_count",
    "expert_gating_func",
)


def load_hparams(header: Header, kv_overrides: Sequence[tuple[str, int | float | bool | str]] = ()) -> DeepSeek4HParams:
    hp = registry.load_hparams(header, kv_overrides, V0_5_0)
    assert isinstance(hp, DeepSeek4HParams)
    return hp


def changed(**values: Value | None) -> Header:
    """Flash's header with keys replaced (dots written as double underscores), or left out when None."""
    metadata, types = dict(FLASH.metadata), dict(FLASH.value_types)
    for name, value in values.items():
        key = name.replace("__", ".")
        types.pop(key, None)
        if value is None:
            metadata.pop(key)
        else:
            metadata[key] = value
    return replace(FLASH, metadata=metadata, value_types=types)


def with_key(key: str, value: Value | None) -> Header:
    return changed(**{(A + key).replace(".", "__"): value})


def test_flash() -> None:
    hp = load_hparams(FLASH)
    assert (hp.n_layer, hp.n_layer_all, hp.n_layer_nextn) == (43, 43, 0)
    assert (hp.n_embd, hp.n_head[0], hp.n_head_kv[0], hp.n_embd_head_k(), hp.n_rot()) == (4096, 64, 1, 512, 64)
    assert hp.compress_ratios[:5] == (0, 0, 4, 128, 4)
    assert len(hp.compress_ratios) == 43
    assert (hp.n_vocab, hp.n_ctx_train, hp.n_embd_out) == (129280, 1048576, 4 * 4096)
    assert hp.rope_scaling == "yarn"
    assert hp.swiglu_clamp_exp == (10.0,) * 43


def test_mtp_blocks_are_counted_apart_when_the_file_has_them() -> None:
    header = builtin_header("deepseek-v4-flash:mtp-q2")
    hp = load_hparams(header)
    assert (hp.n_layer_all, hp.n_layer_nextn, hp.n_layer) == (44, 1, 43)
    tensors = {n: t for n, t in header.tensors.items() if "eh_proj" not in n}
    assert load_hparams(replace(header, tensors=tensors)).n_layer_nextn == 0


@pytest.mark.parametrize("key", REQUIRED)
def test_a_required_key_that_is_missing_is_named(key: str) -> None:
    with pytest.raises(MissingKey, match=A + key):
        load_hparams(with_key(key, None))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("block_count", 0, "block_count is 0"),
        ("block_count", 513, "1 to 512"),
        ("block_count", 44, "shorter than block_count|expected 44 elements"),
        ("block_count", "43", "unsigned 32-bit"),
        ("block_count", True, "unsigned 32-bit"),
        ("embedding_length", -1, "unsigned 32-bit"),
        ("embedding_length", 1 << 32, "unsigned 32-bit"),
        ("embedding_length", 0, "must not be zero"),
        ("nextn_predict_layers", 43, "at least one"),
        ("attention.head_count", 0, "must not be zero"),
        ("attention.head_count", (64,) * 42, "expected 43 elements"),
        ("attention.head_count", (64,) * 42 + (32,), "differ from block to block"),
        ("expert_count", 0, "there are no experts"),
        ("expert_count", 1025, "at most 1024"),
        ("expert_used_count", 0, "0 of 256"),
        ("expert_group_count", 256, "expert_group_count"),
        ("expert_group_count", 3, "do not divide"),
        ("expert_group_count", 8, "expert_group_used_count"),
        ("expert_gating_func", 2, "sqrtsoftplus"),
        ("expert_weights_norm", 1, "true or false"),
        ("expert_weights_scale", 1, "a float"),
        ("hyper_connection.count", 0, "zero"),
        ("attention.output_group_count", 0, "zero"),
        ("attention.compress_ratios", (0,) * 42, "shorter than block_count"),
        ("attention.compress_ratios", (0,) * 42 + (8,), "ratio '8' of block 42"),
        ("attention.compress_ratios", (0,) * 513, "more than the 512"),
        ("attention.compress_ratios", 4, "an array"),
        ("attention.compress_ratios", SkippedArray("i32", 100000), "100000 elements"),
        ("swiglu_clamp_exp", (10.0,) * 42, "expected 43"),
        ("rope.scaling.type", "ntk", "none of"),
        ("rope.scaling.type", 3, "expected text"),
    ],
)
def test_what_llama_cpp_would_not_load_is_refused_in_one_line(key: str, value: Value, said: str) -> None:
    with pytest.raises(BadHyperParameter, match=said) as caught:
        load_hparams(with_key(key, value))
    assert "\n" not in str(caught.value)
    assert "metadata" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "type"),
    [("block_count", "u64"), ("expert_weights_scale", "f64"), ("attention.compress_ratios", "arr[i64]")],
)
def test_one_gguf_type_a_key(key: str, type: str) -> None:
    types = {**FLASH.value_types, A + key: type}
    with pytest.raises(BadHyperParameter, match=rf"{key}: stored as {re.escape(type)}"):
        load_hparams(replace(FLASH, value_types=types))


@pytest.mark.parametrize(("arch", "error"), [("bloom", UnsupportedArchitecture), (None, MissingKey), (7, MemplanError)])
def test_other_architectures(arch: Value | None, error: type[MemplanError]) -> None:
    with pytest.raises(error):
        load_hparams(changed(general__architecture=arch))


@pytest.mark.parametrize(
    ("model", "tokens", "n_vocab"),
    [("gpt2", SkippedArray("str", 129280), 129280), ("gpt2", ("a", "b"), 2), ("llama", ("a",), 1)],
)
def test_vocabulary_is_the_token_list(model: str, tokens: Value, n_vocab: int) -> None:
    header = changed(tokenizer__ggml__model=model, tokenizer__ggml__tokens=tokens, tokenizer__ggml__merges=("a b",))
    assert load_hparams(header).n_vocab == n_vocab


def test_no_tokenizer_and_no_size_is_an_empty_vocabulary() -> None:
    assert load_hparams(with_key("vocab_size", None)).n_vocab == 0


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"tokenizer__ggml__model": None}, MissingKey),
        ({"tokenizer__ggml__model": "magic"}, BadHyperParameter),
        ({"tokenizer__ggml__model": "gpt2"}, MissingKey),
        ({"tokenizer__ggml__model": "llama"}, MissingKey),
        ({"tokenizer__ggml__model": "llama", "tokenizer__ggml__tokens": 3}, BadHyperParameter),
    ],
)
def test_a_vocabulary_that_cannot_be_counted(values: dict[str, Value | None], error: type[MemplanError]) -> None:
    with pytest.raises(error, match=r"tokenizer\.ggml"):
        load_hparams(changed(**values))


def test_overrides_replace_scalars_of_the_right_type_and_the_first_one_holds() -> None:
    def swa(*overrides: tuple[str, int | float | bool | str]) -> int:
        return load_hparams(FLASH, overrides).n_swa

    key = A + "attention.sliding_window"
    assert swa((key, 64)) == 64
    assert swa((key, 64), (key, 32)) == 64
    assert swa((key, "64")) == 128
    assert swa((key, True)) == 128
    # an array cannot be overridden, and a key that is looked up as one must be in the file
    assert load_hparams(FLASH, [(A + "swiglu_clamp_exp", 1.0)]).swiglu_clamp_exp == (10.0,) * 43
    assert load_hparams(FLASH, [(A + "attention.head_count", 32)]).n_head[0] == 32
