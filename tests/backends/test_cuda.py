from __future__ import annotations

import pytest

from memplan.backends.buffers import CPU, CUDA_HOST
from memplan.ggml import ops
from memplan.ggml.backend import Buffer
from memplan.ggml.tensor import Tensor, new_tensor
from memplan.gguf.types import BF16, BY_NAME, F16, F32, I32, I64, Q8_0
from memplan.releases import V0_4_0, V0_5_0
from tests.backends.shapes import CARDS, attention, cuda

Q5_1 = BY_NAME["q5_1"]
IQ4_NL = BY_NAME["iq4_nl"]
TQ1_0 = BY_NAME["tq1_0"]


@pytest.mark.parametrize("card", CARDS)
def test_every_card_computes_flash_attention_of_512(card: str) -> None:
    for release in (V0_4_0, V0_5_0):
        assert cuda(card, release).supports_op(attention())


@pytest.mark.parametrize(
    ("type", "old", "new"),
    [
        ("f32", True, True),
        ("f16", True, True),
        ("bf16", True, True),
        ("q8_0", True, True),
        ("q4_0", True, True),
        ("q4_1", False, True),
        ("q5_0", False, True),
        ("q5_1", False, True),
        ("iq4_nl", False, False),
    ],
)
def test_cache_types_of_flash_attention(type: str, old: bool, new: bool) -> None:
    """As the v0.4.0 and v0.5.0 libraries place the op on an RTX 3090."""
    assert cuda(release=V0_4_0).supports_op(attention(type)) is old
    assert cuda(release=V0_5_0).supports_op(attention(type)) is new


@pytest.mark.parametrize(
    ("k", "v", "new"), [("q8_0", "q4_0", True), ("f16", "bf16", True), ("f16", "q5_0", True), ("f16", "iq4_nl", False)]
)
def test_mixed_cache_types(k: str, v: str, new: bool) -> None:
    t = attention(k, v, shared=False)
    assert not cuda(release=V0_4_0).supports_op(t)
    assert cuda(release=V0_5_0).supports_op(t) is new


@pytest.mark.parametrize(
    ("kwargs", "ok"),
    [
        ({}, True),
        ({"mask": False}, False),  # heads of 512 need the grouped-query path, that path a mask
        ({"keys": 1000}, False),  # ... and keys in multiples of 256
        ({"heads": 1}, False),  # ... and two query heads a key
        ({"head": 576}, False),  # V must have 512
        ({"head": 128, "mask": False}, True),
        ({"head": 100}, False),
    ],
)
def test_shapes_of_flash_attention(kwargs: dict[str, object], ok: bool) -> None:
    assert cuda().supports_op(attention(**kwargs)) is ok  # type: ignore[arg-type]


def test_other_releases_rules() -> None:
    strided = ops.permute(new_tensor(F32, 128, 64, 512), 0, 2, 1, 3)
    assert not cuda(release=V0_4_0).supports_op(ops.sum_rows(strided))
    assert cuda(release=V0_5_0).supports_op(ops.sum_rows(strided))
    i32 = new_tensor(I32, 8)
    dup = Tensor("DUP", I32, i32.ne, i32.nb, [i32])
    assert not cuda(release=V0_4_0).supports_op(dup)
    assert cuda(release=V0_5_0).supports_op(dup)


MATRIX = new_tensor(F32, 256, 32)


@pytest.mark.parametrize(
    ("op", "ok"),
    [
        (ops.mul_mat(new_tensor(BY_NAME["mxfp4"], 256, 64), MATRIX), True),
        (ops.mul_mat(new_tensor(TQ1_0, 256, 64), MATRIX), False),
        (ops.mul_mat(new_tensor(Q8_0, 256, 64), new_tensor(F16, 256, 32)), False),
        (ops.mul_mat(new_tensor(F16, 256, 64), new_tensor(F16, 256, 32)), True),
        (ops.mul_mat(new_tensor(F16, 32, 64), ops.transpose(MATRIX)), False),
        (ops.get_rows(new_tensor(IQ4_NL, 256, 8), new_tensor(I32, 4)), True),
        (ops.get_rows(new_tensor(IQ4_NL, 128, 8), new_tensor(I32, 4)), False),
        (ops.get_rows(new_tensor(BY_NAME["nvfp4"], 256, 8), new_tensor(I32, 4)), False),
        (ops.set_rows(new_tensor(Q5_1, 256, 8), MATRIX, new_tensor(I64, 32)), True),
        (ops.set_rows(new_tensor(F16, 256, 8), new_tensor(F16, 256, 4), new_tensor(I32, 4)), True),
        (ops.set_rows(new_tensor(BF16, 256, 8), new_tensor(F16, 256, 4), new_tensor(I32, 4)), False),
        (ops.cast(MATRIX, Q8_0), True),
        (ops.cast(new_tensor(F16, 256), Q8_0), False),
        (ops.cast(new_tensor(Q5_1, 256), F32), True),
        (ops.cast(new_tensor(IQ4_NL, 256), F32), False),
        (ops.cont(ops.transpose(MATRIX)), True),
        (ops.repeat_4d(MATRIX, (256, 32, 4, 1)), True),
        (ops.repeat_4d(new_tensor(BF16, 256), (256, 32, 1, 1)), False),
        (ops.add(MATRIX, new_tensor(F16, 256)), True),
        (ops.add(MATRIX, new_tensor(BF16, 256)), False),
        (ops.unary(MATRIX, "SOFTPLUS"), True),
        (ops.unary(ops.view_2d(MATRIX, 128, 32, 1024, 0), "SOFTPLUS"), False),
        (ops.unary(MATRIX, "SOFTMAX2"), False),
        (ops.glu(MATRIX, MATRIX, "SWIGLU_CLAMP"), True),
        (ops.glu(ops.view_2d(MATRIX, 128, 32, 1024, 0), ops.view_2d(MATRIX, 128, 32, 1024, 0), "SWIGLU"), True),
        (ops.glu(MATRIX, None, "GEGLU"), True),
        (ops.add_id(new_tensor(F32, 64, 4, 8), new_tensor(F32, 64, 32), new_tensor(I32, 4, 8)), True),
        (ops.norm(ops.transpose(MATRIX)), False),
        (ops.l2_norm(MATRIX), True),
        (ops.rope(new_tensor(F32, 128, 4, 16), new_tensor(I32, 64), 64, ops.ROPE_IMROPE), True),
        (ops.rms_norm(ops.view_2d(MATRIX, 128, 32, 1024, 0)), True),
        (ops.rms_norm(ops.transpose(MATRIX)), False),
        (ops.rope(new_tensor(F32, 128, 4, 16), new_tensor(I32, 16), 64, 0, offset=64), True),
        (ops.rope(ops.transpose(new_tensor(F32, 4, 128, 16)), new_tensor(I32, 16), 64, 0, back=True), False),
        (ops.concat(MATRIX, MATRIX, 1), True),
        (ops.concat(new_tensor(Q8_0, 512, 1, 768), new_tensor(Q8_0, 512, 1, 256), 2), True),
        (ops.concat(ops.permute(new_tensor(Q8_0, 64, 3, 5), 0, 2, 1, 3), new_tensor(Q8_0, 64, 5, 3), 2), False),
        (ops.top_k(MATRIX, 8), True),
        (ops.argsort(new_tensor(F32, 1 << 18)), True),
        (ops.soft_max(MATRIX), True),
        (Tensor("NO_SUCH_OP", F32, MATRIX.ne, MATRIX.nb, [MATRIX]), False),
    ],
)
def test_ops(op: Tensor, ok: bool) -> None:
    assert cuda().supports_op(op) is ok


def scan(d_state: int, head: int, heads: int = 64, per_state: bool = False, groups: int = 8) -> Tensor:
    state, x, dt = new_tensor(F32, d_state, head, heads), new_tensor(F32, head, heads, 4), new_tensor(F32, heads, 4)
    a, b = new_tensor(F32, d_state if per_state else 1, heads), new_tensor(F32, d_state, groups, 4)
    return ops.ssm_scan(state, x, dt, a, b, b, new_tensor(I32, 1))


@pytest.mark.parametrize(
    ("op", "ok"),
    [
        (scan(128, 64), True),
        (scan(128, 80), True),
        (scan(256, 64), True),
        (scan(64, 64), False),
        (scan(128, 72), False),
        (scan(16, 1, 5120, per_state=True, groups=1), True),
        (scan(16, 1, 5100, per_state=True, groups=1), False),
        (scan(16, 1, 5120, per_state=True, groups=2), False),
        (ops.ssm_conv(new_tensor(F32, 515, 8192, 1), new_tensor(F32, 4, 8192)), True),
        (ops.ssm_conv(new_tensor(F32, 515, 8200, 1), new_tensor(F32, 4, 8200)), False),
    ],
)
def test_state_spaces(op: Tensor, ok: bool) -> None:
    assert cuda().supports_op(op) is ok


def test_experts_whose_source_must_stay_f32_are_left_to_the_host() -> None:
    experts, x, ids = new_tensor(Q8_0, 256, 64, 8), new_tensor(F32, 256, 2, 16), new_tensor(I32, 2, 16)
    assert cuda().supports_op(ops.mul_mat_id(experts, x, ids))
    assert not cuda().supports_op(ops.mul_mat_id(experts, x, ids, f32_source=True))


def indexer(heads: int = 64, size: int = 128, type: str = "f16") -> Tensor:
    q = new_tensor(F32, size, heads, 512)
    k = new_tensor(BY_NAME[type], size, 1, 1024)
    return ops.lightning_indexer(q, k, new_tensor(F32, heads, 512), new_tensor(F16, 1024, 512))


@pytest.mark.parametrize(
    ("op", "ok"),
    [
        (indexer(), True),
        (indexer(heads=32), True),
        (indexer(heads=16), False),
        (indexer(size=64), False),
        (indexer(type="q5_1"), True),
        (indexer(type="iq4_nl"), False),
    ],
)
def test_lightning_indexer(op: Tensor, ok: bool) -> None:
    """The library, too, sends an indexer over an iq4_nl cache to the host."""
    assert cuda().supports_op(op) is ok


def test_hyper_connections() -> None:
    x, streams = new_tensor(F32, 4096, 512), new_tensor(F32, 4096, 4, 512)
    post, comb = new_tensor(F32, 4, 512), new_tensor(F32, 4, 4, 512)
    assert cuda().supports_op(ops.dsv4_hc_pre(streams, new_tensor(F32, 4, 512)))
    assert cuda().supports_op(ops.dsv4_hc_post(x, streams, post, comb))
    assert cuda().supports_op(ops.dsv4_hc_comb(new_tensor(F32, 24, 512), new_tensor(F32, 3), new_tensor(F32, 24), 4))
    assert not cuda().supports_op(ops.dsv4_hc_pre(streams, new_tensor(F16, 4, 512)))


def test_refused_ops() -> None:
    device = cuda(without=("LIGHTNING_INDEXER", "FLASH_ATTN_EXT"))
    assert not device.supports_op(indexer())
    assert not device.supports_op(attention())
    assert device.supports_op(ops.soft_max(MATRIX))


def test_sources_on_another_device() -> None:
    here, there = cuda(index=0), cuda(index=1)
    w = new_tensor(F32, 256, 64)
    op = ops.mul_mat(w, MATRIX)
    for buft, first, second in ((here.buft, True, False), (there.buft, False, True), (CUDA_HOST, True, True)):
        w.buffer = Buffer(buft, weights=True)
        assert (here.supports_op(op), there.supports_op(op)) == (first, second)
    # only a source's own buffer counts, not that of what it is a view of
    w.buffer = Buffer(there.buft)
    assert here.supports_op(ops.mul_mat(ops.view_2d(w, 256, 8, 1024, 0), MATRIX))


def test_buffers_it_reads() -> None:
    here, there = cuda(index=0), cuda(index=1)
    assert here.supports_buft(here.buft)
    assert not any(here.supports_buft(b) for b in (there.buft, CUDA_HOST, CPU))


@pytest.mark.parametrize(
    ("op", "asks"),
    [
        (ops.mul_mat(new_tensor(F32, 256, 64), new_tensor(F32, 256, 31, 8)), False),
        (ops.mul_mat(new_tensor(F32, 256, 64), new_tensor(F32, 256, 32)), True),
        (ops.mul_mat_id(new_tensor(F32, 256, 64, 8), new_tensor(F32, 256, 1, 31), new_tensor(I32, 6, 31)), False),
        (ops.mul_mat_id(new_tensor(F32, 256, 64, 8), new_tensor(F32, 256, 1, 32), new_tensor(I32, 6, 32)), True),
        (ops.get_rows(new_tensor(F32, 256, 64), new_tensor(I32, 512)), False),
        (ops.rope(new_tensor(F32, 128, 64, 31), new_tensor(I32, 31), 64, 0), False),
        (ops.add(new_tensor(F32, 256, 4, 8), new_tensor(F32, 256)), True),
    ],
)
def test_offload(op: Tensor, asks: bool) -> None:
    assert cuda().offload_op(op) is asks
