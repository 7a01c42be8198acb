from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan.backends.buffers import CPU
from memplan.ggml.backend import BufferType
from memplan.ggml.tensor import Tensor
from memplan.llama.allocation import buffer_bytes, buffer_chunks
from memplan.llama.batch import ContextParams
from memplan.llama.checks import check_context, flash_attn
from memplan.llama.flags import Flags
from memplan.llama.placement import Placement, place
from memplan.llama.refusals import Refusal
from memplan.models.deepseek4.memory import DeepSeek4Memory, compressed_size
from memplan.releases import V0_5_0
from tests.llama import golden
from tests.llama.golden import card, machine, model

TWO = machine(card(24268), card(24268))


def memory(flags: Flags, name: str = "flash-antirez-q2") -> tuple[Placement, DeepSeek4Memory]:
    hp, tensors = model(name)
    placement = place(tensors.tensors, hp.n_layer_all, flags, TWO)
    assert not isinstance(placement, Refusal)
    return placement, golden.memory(hp, flags, placement)


@settings(deadline=None, max_examples=50)
@given(
    st.integers(256, 2_000_000),
    st.integers(1, 2048),
    st.integers(1, 8),
    st.booleans(),
    st.booleans(),
    st.sampled_from([("f16", 2.0), ("f32", 4.0), ("q8_0", 34 / 32), ("q4_0", 18 / 32)]),
)
def test_sums_that_can_be_done_by_hand(
    n: int, ub: int, slots: int, unified: bool, full: bool, kind: tuple[str, float]
) -> None:
    name, width = kind
    flags = Flags(n_ctx=n, n_ubatch=ub, n_parallel=slots, kv_unified=unified, swa_full=full, type_k=name, type_v=name)
    flags = replace(flags, offload_kqv=False)
    hp, _ = model("flash-antirez-q2")
    ctx = ContextParams.of(flags, hp).n_ctx_seq
    raw = ctx if full else -(-min(ctx, 128 + min(ub, n)) // 256) * 256
    csa, hca = (math.ceil(math.ceil(ctx / r) / 256) * 256 for r in (4, 128))
    rows = 43 * raw * 512 + 21 * csa * (512 + 128) + 20 * hca * 512
    states = 2 * 4 * (8 * 1024 * 21 + 128 * 512 * 20 + 8 * 256 * 21)
    _, found = memory(flags)
    assert dict(found.context) == {"CPU": slots * (round(rows * width) + states)}


def test_shapes_and_names() -> None:
    flags = Flags(n_ctx=131072, n_parallel=3, kv_unified=False, n_rs_seq=2)
    _, found = memory(flags)
    assert found.tensor("cache_k", 0).ne == (512, 768, 3, 1)
    assert found.tensor("cache_k", 42).name == "cache_k_l42"
    assert found.tensor("cache_k@csa", 2).ne == (512, compressed_size(43776, 4), 3, 1)
    assert found.tensor("cache_k@lid", 2).ne == (128, compressed_size(43776, 4), 3, 1)
    assert found.tensor("cache_k@hca", 3).ne == (512, 512, 3, 1)
    assert found.tensor("dsv4_csa_state_kv", 2).ne == (1024, 8, 9, 1)
    assert found.tensor("dsv4_hca_state_score", 3).ne == (512, 128, 9, 1)
    assert found.tensor("dsv4_lid_state_score", 2).name == "dsv4_lid_state_score_l2"
    for role, il in (("cache_k@csa", 3), ("cache_k@hca", 2), ("cache_k", 43), ("cache_v", 0)):
        with pytest.raises(KeyError):
            found.tensor(role, il)


def test_each_layers_caches_lie_on_its_device_or_on_the_host() -> None:
    placement, found = memory(Flags(n_ctx=4096, n_parallel=1, n_gpu_layers=30))
    assert all(t.buft is placement.layers[t.layer].buft for t in found.keys("raw").tensors)
    assert all(t.buft is placement.layers[t.layer].buft for t in found.state("lid").tensors)
    assert set(found.context) == {"CPU", "CUDA0", "CUDA1"}
    _, host = memory(Flags(n_ctx=4096, n_parallel=1, offload_kqv=False))
    assert set(host.context) == {"CPU"}


def test_the_raw_cache_serves_mtp_blocks_and_the_others_do_not() -> None:
    _, plain = memory(Flags(n_ctx=4096))
    _, mtp = memory(Flags(n_ctx=4096), "flash-mtp-q2")
    assert len(mtp.keys("raw").tensors) == len(plain.keys("raw").tensors) + 1
    assert len(mtp.keys("csa").tensors) == len(plain.keys("csa").tensors)
    assert len(mtp.state("csa").tensors) == len(plain.state("csa").tensors)


def test_indexer_keys_are_always_rotated_and_others_when_quantised() -> None:
    _, plain = memory(Flags(n_ctx=4096))
    _, quantised = memory(Flags(n_ctx=4096, type_k="q8_0", type_v="q8_0"))
    assert [plain.keys(name).k_rot for name in ("raw", "csa", "lid")] == [0, 0, 128]
    assert [quantised.keys(name).k_rot for name in ("raw", "hca", "lid")] == [512, 512, 128]


@pytest.mark.parametrize(
    ("flags", "kind", "said"),
    [
        (Flags(type_k="q8_0"), "k-v-types-differ", r"K (q8_0) and V (f16)"),
        (Flags(type_k="q8_0", flash_attn="off"), "k-v-types-differ", "different K"),
        (Flags(type_k="q8_0", type_v="q8_0", flash_attn="off"), "quantized-v-needs-flash-attention", "flash_attn"),
        (Flags(type_k="q6_K", type_v="q6_K"), None, ""),
        (Flags(n_parallel=257), "other", "n_seq_max must be <= 256"),
        (Flags(n_parallel=64, n_batch=32), "other", "n_outputs_max"),
        (Flags(app="cli", n_parallel=64, n_batch=32), "other", "n_outputs_max"),
        (Flags(n_batch=0, n_ubatch=0), "other", "cannot both be zero"),
        (Flags(), None, ""),
        (Flags(type_k="q8_0", type_v="q8_0"), None, ""),
    ],
)
def test_contexts_that_are_refused(flags: Flags, kind: str | None, said: str) -> None:
    refusal = check_context(model("flash-antirez-q2")[0], flags, V0_5_0, one_cache_type=True)
    assert (refusal.kind if refusal else None) == kind
    if refusal:
        assert said in refusal.message
        assert refusal.fix


def test_a_block_that_does_not_divide_the_head() -> None:
    hp = replace(model("flash-antirez-q2")[0], n_embd_head_k_swa=48)
    refusal = check_context(hp, Flags(type_k="q8_0", type_v="q8_0"), V0_5_0)
    assert refusal is not None
    assert refusal.message == "K cache type q8_0 with block size 32 does not divide n_embd_head_k=48"
    hp = replace(hp, n_ctx_train=0)
    refusal = check_context(hp, Flags(), V0_5_0)
    assert refusal is not None
    assert "n_ctx_train" in refusal.message


def test_a_quantised_cache_turns_flash_attention_on() -> None:
    assert flash_attn(Flags(), V0_5_0) == "auto"
    assert flash_attn(Flags(type_k="q8_0", type_v="q8_0"), V0_5_0) == "on"
    assert flash_attn(Flags(flash_attn="off"), V0_5_0) == "off"


class _Small(BufferType):
    name = "small"
    alignment = 32
    max_size = 100

    def alloc_size(self, t: Tensor) -> int:
        return t.nbytes


def test_buffers_that_are_limited_in_size() -> None:
    assert buffer_chunks(_Small(), [40, 20, 33, 200, 1]) == [96, 64, 224, 32]
    assert buffer_bytes(_Small(), [40, 20, 33, 200, 1]) == 416
    assert buffer_chunks(CPU, [1, 2, 3]) == [96]
    assert buffer_bytes(CPU, []) == 0
