"""Hyper-connections in one op each, DeepSeek-V4's own (ggml/src/ggml.c, v0.5.0)."""

from __future__ import annotations

from memplan.ggml.ops.common import fail, failed, result
from memplan.ggml.tensor import Tensor
from memplan.gguf.types import F32


def dsv4_hc_comb(mixes: Tensor, scale: Tensor, base: Tensor, hc: int) -> Tensor:
    """Mixing matrices of the hyper-connections: ne = (hc, hc, tokens) (``ggml_dsv4_hc_comb``)."""
    for name, t in (("mixes", mixes), ("scale", scale), ("base", base)):
        if t.type is not F32:
            failed(f"{name}->type == GGML_TYPE_F32")
    if not (hc == 4 and mixes.ne[0] == (2 + hc) * hc == base.ne[0] and scale.ne[0] >= 3):
        fail("dsv4_hc_comb", "shapes")
    return result("DSV4_HC_COMB", F32, (hc, hc, mixes.ne[1], 1), [mixes, scale, base])


def dsv4_hc_pre(x: Tensor, weights: Tensor) -> Tensor:
    """Streams summed with weights: ne = (n_embd, tokens) (``ggml_dsv4_hc_pre``)."""
    if not (weights.ne[0] == x.ne[1] and weights.ne[1] == x.ne[2]):
        fail("dsv4_hc_pre", "shapes")
    return result("DSV4_HC_PRE", F32, (x.ne[0], x.ne[2], 1, 1), [x, weights])


def dsv4_hc_post(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """Streams after a block: ne = (n_embd, hc, tokens) (``ggml_dsv4_hc_post``)."""
    hc = residual.ne[1]
    if not (residual.ne[0] == x.ne[0] and residual.ne[2] == x.ne[1] and post.ne[0] == hc):
        fail("dsv4_hc_post", "shapes")
    return result("DSV4_HC_POST", F32, (x.ne[0], hc, x.ne[1], 1), [x, residual, post, comb])
