"""Files that llama.cpp refuses or dies of, in its own words; each was tried on it."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest

import memplan
from memplan.gguf.header import Header
from memplan.models.builtin import header_of
from memplan.models.catalogue import MODELS

RIG = memplan.parse_gpus(["H200"])


def changed(name: str, types: dict[str, str] | None = None, **keys: Any) -> Header:
    """A built-in model with other hyper-parameters, or keys of other GGUF types (``__`` is a dot)."""
    model = MODELS[name]
    said = {key.replace("__", "."): value for key, value in keys.items()}
    header = header_of(replace(model, keys={**model.keys, **said}), model.recipes[model.default], name)
    return replace(header, value_types={**header.value_types, **(types or {})})


ABORTS: list[tuple[str, dict[str, Any], str]] = [
    ("qwen3.6-27b", {"attention__value_length": 85}, "n_embd_head == hparams.n_embd_head_k()"),
    ("qwen3-30b-a3b", {"attention__value_length": 64}, "n_embd_head == hparams.n_embd_head_k()"),
    ("qwen3-30b-a3b", {"rope__dimension_count": 64}, "n_embd_head == n_rot"),
    ("minimax-m3", {"attention__value_length": 64}, "n_embd_head == hparams.n_embd_head_k()"),
    ("nemotron-3-nano-30b-a3b", {"attention__value_length": 64}, "n_embd_head == hparams.n_embd_head_k()"),
    ("qwen3.6-27b", {"ssm__group_count": 9}, "H_v % H_k == 0"),
    ("deepseek-v3.2", {"attention__indexer__key_length": 0}, "hparams.n_rot() <= n_embd_indexer_head"),
    ("glm-5.2", {"attention__indexer__key_length": 32}, "hparams.n_rot() <= n_embd_indexer_head"),
]


@pytest.mark.parametrize(("name", "keys", "said"), ABORTS, ids=range(len(ABORTS)))
def test_shapes_that_a_graph_aborts_of(name: str, keys: dict[str, Any], said: str) -> None:
    flags = memplan.parse_flags(["-c", "4096", "-np", "1"])
    refused = memplan.estimate(changed(name, **keys), flags, RIG).refused
    assert refused is not None and refused.message == f"GGML_ASSERT({said}) failed"


ERRORS: list[tuple[str, dict[str, Any], dict[str, str], str, str]] = [
    ("qwen3.6-35b-a3b", {"expert_count": 768}, {}, "b10361", "expert_count is 768; llama.cpp b10361 takes at most 512"),
    ("qwen3.6-27b", {"rope__dimension_sections": (11, 11, 10, 0, 0)}, {}, "v0.5.0", "expected 4 elements, found 5"),
    ("qwen3-8b", {"rope__freq_base": 10}, {}, "v0.5.0", "rope.freq_base: stored as u32, and llama.cpp takes f32"),
    (
        "gemma-3-12b",
        {"rope__freq_base_swa": 1.0},
        {"gemma3.rope.freq_base_swa": "f64"},
        "v0.5.0",
        "f64, and llama.cpp takes f32",
    ),
    ("gemma-3-12b", {"attention__sliding_window": 2**32 - 1}, {}, "v0.5.0", "4294967295 is more than 2147483647"),
    ("glm-4.5-air", {"expert_used_count": (8,) * 47}, {}, "b9842", "expert_used_count: expected an unsigned 32-bit"),
    ("deepseek-v3.2", {"expert_gating_func": 0}, {}, "v0.5.0", "expert_gating_func is 0"),
]


@pytest.mark.parametrize(("name", "keys", "types", "release", "said"), ERRORS, ids=range(len(ERRORS)))
def test_metadata_that_is_not_taken(
    name: str, keys: dict[str, Any], types: dict[str, str], release: str, said: str
) -> None:
    with pytest.raises(memplan.ModelError, match=said):
        memplan.estimate(changed(name, types, **keys), memplan.parse_flags(["-np", "1"]), RIG, release)


@pytest.mark.parametrize(
    ("words", "release", "starts"),
    [
        ("-np 3", "v0.5.0", False),
        ("-np 3", "v0.4.0", True),
        ("-np 3 -kvu", "v0.5.0", True),
        ("-np 3 -ub 510", "v0.5.0", True),
        ("-np 4", "v0.5.0", True),
    ],
)
def test_kimi_linear_reserves_for_one_sequence_last(words: str, release: str, starts: bool) -> None:
    flags = memplan.parse_flags(["-c", "16384", *words.split()])
    refused = memplan.estimate(changed("kimi-linear-48b-a3b"), flags, RIG, release).refused
    assert (refused is None) is starts
    assert refused is None or refused.message == "GGML_ASSERT(ggml_can_repeat(b, a)) failed"


def test_weights_that_may_be_missing_and_are_used() -> None:
    flags = memplan.parse_flags(["-c", "4096", "-np", "1"])
    header = changed("glm-5", block_count=6)

    def without(name: str) -> memplan.Estimate:
        kept = {key: t for key, t in header.tensors.items() if not key.endswith(name)}
        return memplan.estimate(replace(header, tensors=kept), flags, RIG)

    assert without("indexer.k_norm.bias").refused is None
    refused = without("indexer.proj.weight").refused
    assert refused is not None and refused.message.startswith("Segmentation fault (the file has no blk.0.indexer.proj")


def test_heads_of_no_elements() -> None:
    flags = memplan.parse_flags(["-c", "4096", "-np", "1", "-ctk", "q8_0"])
    refused = memplan.estimate(changed("phi-4", attention__head_count=0), flags, RIG).refused
    assert refused is not None and refused.message == "GGML_ASSERT(ggml_can_mul_mat(a, b)) failed"


def test_a_header_stays_as_it_was_read() -> None:
    header = memplan.read_model("qwen3-8b")
    with pytest.raises(TypeError):
        header.metadata["qwen3.block_count"] = 1  # type: ignore[index]
    assert pickle.loads(pickle.dumps(header)) == header == copy.deepcopy(header)


def test_older_builds_divide_by_a_tensors_sizes() -> None:
    empty, flags = changed("qwen3-8b", vocab_size=0), memplan.parse_flags(["-c", "4096", "-np", "1"])
    refused = memplan.estimate(empty, flags, RIG, "b9842").refused
    assert refused is not None and refused.message == "Floating point exception"
    assert memplan.estimate(empty, flags, RIG, "v0.5.0").refused is None


def test_blocks_that_do_not_divide_a_cache() -> None:
    # llama.cpp pads as if blocks were powers of two; these are its own numbers
    flags = memplan.parse_flags(["-c", "4096", "-b", "2048", "-ub", "512", "-np", "1"])
    for block, compute in ((127, 156295296), (129, 156291200)):
        found = memplan.estimate(changed("minimax-m3", block_count=5, attention__indexer__block_size=block), flags, RIG)
        assert found.buffers["CUDA0"].compute == compute


def test_a_state_space_has_groups() -> None:
    with pytest.raises(memplan.BadHyperParameter, match=r"ssm\.group_count must not be zero"):
        changed("nemotron-3-nano-30b-a3b", ssm__group_count=0)
