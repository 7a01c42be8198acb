"""What shape, type and strides each op's result has, and what ggml asserts against."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from memplan.ggml import ops
from memplan.ggml.ops import GGMLAssertError
from memplan.ggml.tensor import FLAG_INPUT, Tensor
from memplan.gguf.types import F16, F32, I32, I64, Q8_0


def f32(*dims: int, name: str = "") -> Tensor:
    return ops.new(F32, *dims, name=name)


def i32(*dims: int) -> Tensor:
    return ops.new(I32, *dims)


def test_inputs_are_marked() -> None:
    assert ops.new_input(I32, 5, name="inp").flags == FLAG_INPUT
    assert ops.new(I32, 5).flags == 0


def test_views_share_the_data_of_their_base() -> None:
    a = f32(4, 6, name="a")
    v = ops.view_2d(a, 2, 3, a.nb[1], 16)
    w = ops.view_1d(v, 2, 8)
    assert (v.ne, v.nb, v.view_src, v.view_offs) == ((2, 3, 1, 1), (4, 16, 48, 48), a, 16)
    assert (w.view_src, w.view_offs, w.src) == (a, 24, [v])
    assert w.name == "a (view) (view)"


def test_reshape_keeps_the_elements() -> None:
    a = f32(4, 6)
    assert ops.reshape(a, 8, 3).ne == (8, 3, 1, 1)
    with pytest.raises(GGMLAssertError, match=r"ggml_nelements\(a\) == ne0\*ne1\) failed"):
        ops.reshape(a, 5, 5)
    with pytest.raises(GGMLAssertError, match=r"^GGML_ASSERT\(ggml_is_contiguous\(a\)\) failed$"):
        ops.reshape(ops.permute(a, 1, 0, 2, 3), 24)


def test_permute_moves_dimension_i_to_axis_i() -> None:
    t = ops.permute(f32(2, 3, 5, 7), 2, 0, 3, 1)
    assert t.ne == (3, 7, 2, 5)
    assert t.nb == (8, 120, 4, 24)


def test_transpose_swaps_the_first_two() -> None:
    t = ops.transpose(f32(2, 3))
    assert (t.ne, t.nb, t.is_transposed) == ((3, 2, 1, 1), (8, 4, 24, 24), True)


def test_products() -> None:
    assert ops.mul_mat(f32(8, 3), f32(8, 5, 2)).ne == (3, 5, 2, 1)
    assert ops.mul_mat(ops.new(Q8_0, 32, 3), f32(32, 5)).type is F32
    assert ops.mul_mat_id(f32(8, 3, 4), f32(8, 1, 6), i32(2, 6)).ne == (3, 2, 6, 1)


def test_rows() -> None:
    assert ops.get_rows(ops.new(F16, 8, 9), i32(4)).type is F32
    assert ops.get_rows(i32(8, 9), i32(4)).type is I32
    cache = ops.new(F16, 8, 9, name="cache")
    t = ops.set_rows(cache, f32(8, 2), ops.new(I64, 2))
    assert (t.view_src, t.ne, [s.ne[1] for s in t.src]) == (cache, (8, 9, 1, 1), [2, 1, 9])


def test_shapes_of_the_rest() -> None:
    a = f32(6, 4, 2)
    assert ops.sum_rows(a).ne == (1, 4, 2, 1)
    assert ops.argsort(a).type is I32
    assert ops.argsort_top_k(a, 3).ne == (3, 4, 2, 1)
    assert ops.argsort_top_k(a, 3).view_src is not None
    assert ops.top_k(a, 3).ne == (3, 4, 2, 1)
    assert ops.concat(a, f32(6, 5, 2), 1).ne == (6, 9, 2, 1)
    assert ops.repeat_4d(f32(6, 1, 2), (6, 4, 2, 1)).ne == (6, 4, 2, 1)
    assert ops.cont(ops.permute(a, 1, 0, 2, 3)).is_contiguous
    assert ops.cont(a, 24, 2).ne == (24, 2, 1, 1)
    for result in (ops.scale(a), ops.clamp(a), ops.fill(a), ops.sqrt(a), ops.rms_norm(a), ops.soft_max(a)):
        assert (result.ne, result.view_src) == (a.ne, None)


def test_a_cast_is_its_own_second_source() -> None:
    t = ops.cast(f32(4), F16)
    assert t.type is F16
    assert t.src[1] is t


def test_attention() -> None:
    q, k = f32(512, 7, 64, 2), ops.new(F16, 512, 256, 1, 2)
    t = ops.flash_attn_ext(q, k, k, ops.new(F16, 256, 7, 1, 2), f32(64), 640)
    assert t.ne == (512, 64, 7, 2)
    assert t.params == {"mask": True, "sinks": True, "max_bias": 0.0, "logit_softcap": 0.0, "n_kv_max": 640}


def test_values_of_another_head_size() -> None:
    q, k, v = f32(576, 7, 64), ops.new(F16, 576, 256), ops.new(F16, 512, 256)
    assert ops.flash_attn_ext(q, k, v, ops.new(F16, 256, 7), None, 0).ne == (512, 64, 7, 1)


def test_gated_units_of_one_tensor_and_of_two() -> None:
    halves = ops.glu(f32(8, 3), None, "SWIGLU")
    assert (halves.ne, halves.nb, len(halves.src), halves.kind) == ((4, 3, 1, 1), (4, 16, 48, 48), 1, "SWIGLU")
    assert ops.glu(f32(8, 3), f32(8, 3), "SWIGLU_OAI").ne == (8, 3, 1, 1)


def test_rope_with_sections_and_factors() -> None:
    sections = ops.rope(f32(8, 2, 5), i32(20), 8, ops.ROPE_IMROPE)
    assert len(sections.src) == 2
    factors = f32(4)
    turned = ops.rope(f32(8, 2, 5), i32(5), 8, ops.ROPE_NEOX, freq_factors=factors)
    assert turned.src[2] is factors
    assert turned.params is not None and turned.params["freq_factors"] is True


def test_masks_and_sinks_of_several_streams() -> None:
    scores = f32(256, 7, 64, 2)
    t = ops.soft_max(scores, f32(256, 7, 1, 2), f32(64))
    assert (t.ne, len(t.src)) == (scores.ne, 3)


def test_a_copy_lies_where_it_is_written() -> None:
    cache = f32(6, 4, name="cache")
    t = ops.cpy(f32(12, name="x"), ops.view_2d(cache, 6, 2, 24, 48))
    assert (t.view_src, t.view_offs, t.ne, t.name) == (cache, 48, (6, 2, 1, 1), "cache (view) (copy of x)")


def test_experts_whose_source_stays_f32() -> None:
    assert ops.mul_mat_id(f32(8, 3, 4), f32(8, 1, 6), i32(2, 6)).params is None
    assert ops.mul_mat_id(f32(8, 3, 4), f32(8, 1, 6), i32(2, 6), f32_source=True).params == {"f32_source": True}


def test_a_convolution_over_tokens() -> None:
    assert ops.ssm_conv(f32(4 - 1 + 7, 32, 2), f32(4, 32)).ne == (32, 7, 2, 1)


def test_a_scan_leaves_its_output_and_its_states_in_one_row() -> None:
    state, x, dt, b = f32(16, 8, 4, 9), f32(8, 4, 7, 2), f32(4, 7, 2), f32(16, 1, 7, 2)
    for snapshots in (1, 3):
        t = ops.ssm_scan(state, x, dt, f32(1, 4), b, b, i32(2), snapshots)
        assert t.ne == (8 * 4 * 7 * 2 + snapshots * 16 * 8 * 4 * 2, 1, 1, 1)
        assert len(t.src) == 7


def test_a_delta_net_leaves_its_output_and_its_states_in_rows() -> None:
    q, v, beta, state = f32(8, 2, 7, 3), f32(8, 4, 7, 3), f32(1, 4, 7, 3), f32(8, 8, 4, 3)
    for snapshots in (1, 4):
        t = ops.gated_delta_net(q, q, v, beta, beta, state, snapshots)
        assert t.ne == (8 * 4, 7 * 3 + snapshots * 8 * 3, 1, 1)
    assert ops.gated_delta_net(q, q, v, v, beta, state).ne == (32, 45, 1, 1)  # a gate a channel


def test_shapes_that_few_models_need() -> None:
    a = f32(6, 4, 2)
    assert ops.pad(a, 2, 1).ne == (8, 5, 2, 1)
    assert (ops.arange(5).ne, ops.arange(5).src) == ((5, 1, 1, 1), [])
    assert ops.pool_2d(ops.new(F16, 512, 3), (128, 1), (128, 1), (0, 0)).ne == (4, 3, 1, 1)
    assert ops.diag(f32(6, 1, 2)).ne == (6, 6, 2, 1)
    assert ops.solve_tri(f32(4, 4, 2), f32(6, 4, 2)).ne == (6, 4, 2, 1)
    assert ops.add_id(a, f32(6, 9), i32(4, 2)).ne == a.ne
    square = f32(4, 4, 2)
    for t in (ops.norm(a), ops.l2_norm(a), ops.sqr(a), ops.cumsum(a)):
        assert (t.ne, t.view_src) == (a.ne, None)
    assert ops.tri(square).ne == square.ne


def test_deepseek_ops() -> None:
    keys, mask = ops.new(F16, 128, 1, 256, 2), ops.new(F16, 256, 7, 1, 2)
    score = ops.lightning_indexer(f32(128, 64, 7, 2), keys, f32(64, 7, 1, 2), mask)
    assert score.ne == (256, 7, 1, 2)
    x, mixes = f32(16, 4, 7), f32(24, 7)
    assert ops.dsv4_hc_comb(mixes, f32(3), f32(24), 4).ne == (4, 4, 7, 1)
    assert ops.dsv4_hc_pre(x, f32(4, 7)).ne == (16, 7, 1, 1)
    assert ops.dsv4_hc_post(f32(16, 7), x, f32(4, 7), f32(4, 4, 7)).ne == (16, 4, 7, 1)


WRONG: list[Callable[[], object]] = [
    lambda: ops.add(f32(4), f32(3)),
    lambda: ops.mul_mat(f32(8, 3), f32(7, 5)),
    lambda: ops.mul_mat(ops.transpose(f32(3, 8)), f32(8, 5)),
    lambda: ops.mul_mat_id(f32(8, 3, 4), f32(8, 1, 6), i32(2, 5)),
    lambda: ops.mul_mat_id(ops.transpose(f32(3, 8, 4)), f32(8, 1, 6), i32(2, 6)),
    lambda: ops.mul_mat_id(f32(8, 3, 4), f32(8, 1, 6), f32(2, 6)),
    lambda: ops.get_rows(f32(8, 9), f32(4)),
    lambda: ops.set_rows(f32(8, 9), f32(7, 2), i32(2)),
    lambda: ops.set_rows(f32(8, 9), f32(8, 2), i32(3)),
    lambda: ops.set_rows(f32(8, 9), i32(8, 2), i32(2)),
    lambda: ops.concat(f32(4), ops.new(F16, 4), 0),
    lambda: ops.concat(f32(4, 2), f32(4, 2, 3), 0),
    lambda: ops.repeat_4d(f32(4), (6, 1, 1, 1)),
    lambda: ops.top_k(f32(4), 5),
    lambda: ops.argsort_top_k(f32(4), 5),
    lambda: ops.rope(f32(8, 2, 5), i32(4), 8, 0),
    lambda: ops.scale(ops.transpose(f32(2, 3))),
    lambda: ops.fill(i32(4)),
    lambda: ops.unary(ops.transpose(f32(2, 3)), "RELU"),
    lambda: ops.glu(f32(4), f32(5), "SWIGLU"),
    lambda: ops.soft_max(ops.transpose(f32(2, 3))),
    lambda: ops.soft_max(f32(4, 2), f32(5, 2)),
    lambda: ops.soft_max(f32(4, 2), i32(4, 2)),
    lambda: ops.cont(f32(4), 5),
    lambda: ops.flash_attn_ext(f32(8, 2, 2), f32(8, 4), f32(8, 4), f32(4, 2), None, 0),
    lambda: ops.flash_attn_ext(f32(8, 2, 2), f32(7, 4), f32(8, 4), None, None, 0),
    lambda: ops.flash_attn_ext(f32(8, 2, 2), f32(8, 4), f32(8, 4), None, f32(3), 0),
    lambda: ops.glu(ops.transpose(f32(4, 4)), None, "SWIGLU"),
    lambda: ops.rope(f32(8, 2, 5), i32(5), 8, ops.ROPE_MROPE),
    lambda: ops.rope(f32(8, 2, 5), i32(5), 8, ops.ROPE_NEOX, freq_factors=f32(3)),
    lambda: ops.rope(f32(8, 2, 5), i32(5), 8, ops.ROPE_NEOX, freq_factors=ops.new(F16, 4)),
    lambda: ops.soft_max(f32(4, 2, 3, 2), f32(4, 2, 1, 3)),
    lambda: ops.soft_max(f32(4, 2, 3), None, f32(4)),
    lambda: ops.cpy(f32(4), f32(5)),
    lambda: ops.add_id(f32(6, 4, 2), f32(6, 9), i32(3, 2)),
    lambda: ops.cumsum(i32(4)),
    lambda: ops.tri(f32(4, 3)),
    lambda: ops.diag(f32(4, 3)),
    lambda: ops.solve_tri(f32(4, 4), f32(6, 3)),
    lambda: ops.solve_tri(f32(4, 4), ops.transpose(f32(4, 6))),
    lambda: ops.arange(0),
    lambda: ops.pool_2d(f32(3, 3), (4, 1), (4, 1), (0, 0)),
    lambda: ops.ssm_conv(f32(10, 31, 2), f32(4, 32)),
    lambda: ops.ssm_conv(f32(2, 32), f32(4, 32)),
    lambda: ops.ssm_conv(f32(10, 32, 2, 2), f32(4, 32)),
    lambda: ops.ssm_scan(f32(16, 8, 4), f32(8, 4, 7), f32(4, 6), f32(1, 4), f32(16, 1, 7), f32(16, 1, 7), i32(1)),
    lambda: ops.ssm_scan(f32(16, 8, 4), f32(8, 4, 7), f32(4, 7), f32(16, 4), f32(16, 1, 7), f32(16, 1, 7), i32(1), 2),
    lambda: ops.ssm_scan(
        f32(16, 8, 4), ops.transpose(f32(4, 8, 7)), f32(4, 7), f32(1, 4), f32(16, 1, 7), f32(16, 1, 7), i32(1)
    ),
    lambda: ops.gated_delta_net(f32(8, 2, 7), f32(8, 2, 7), f32(8, 4, 7), f32(2, 4, 7), f32(1, 4, 7), f32(8, 8, 4)),
    lambda: ops.gated_delta_net(f32(8, 2, 7), f32(8, 2, 7), f32(8, 4, 7), f32(1, 4, 7), f32(1, 4, 7), f32(8, 8, 3)),
    lambda: ops.gated_delta_net(
        ops.new(F16, 8, 2, 7), f32(8, 2, 7), f32(8, 4, 7), f32(1, 4, 7), f32(1, 4, 7), f32(8, 8, 4)
    ),
    lambda: ops.lightning_indexer(f32(8, 2, 2), f32(8, 1, 4), f32(2, 2), f32(4, 2)),
    lambda: ops.dsv4_hc_comb(f32(24, 7), f32(2), f32(24), 4),
    lambda: ops.dsv4_hc_pre(f32(16, 4, 7), f32(3, 7)),
    lambda: ops.dsv4_hc_post(f32(16, 6), f32(16, 4, 7), f32(4, 7), f32(4, 4, 7)),
]


@pytest.mark.parametrize("wrong", WRONG)
def test_what_ggml_asserts_against(wrong: Callable[[], object]) -> None:
    with pytest.raises(GGMLAssertError):
        wrong()


@pytest.mark.parametrize(
    ("wrong", "condition"),
    [
        (lambda: ops.mul_mat(f32(4, 2), f32(5, 2)), "ggml_can_mul_mat(a, b)"),
        (lambda: ops.mul_mat(ops.transpose(f32(2, 4)), f32(4, 2)), "!ggml_is_transposed(a)"),
        (lambda: ops.add(f32(4), f32(3)), "ggml_can_repeat(b, a)"),
        (lambda: ops.top_k(f32(4), 5), "a->ne[0] >= k"),
        (lambda: ops.flash_attn_ext(f32(8, 2, 2), f32(7, 4), f32(8, 4), None, None, 0), "ggml_can_mul_mat(k, q)"),
    ],
)
def test_in_ggml_s_own_words(wrong: Callable[[], object], condition: str) -> None:
    with pytest.raises(GGMLAssertError) as said:
        wrong()
    assert str(said.value) == f"GGML_ASSERT({condition}) failed"
