"""Hyper-connections: four streams beside each other, mixed before and after each block.

Follows ``src/models/deepseek4.cpp`` (``build_hc_pre``, ``build_hc_post``, ``build_hc_sinkhorn``, ``build_hc_head``),
v0.5.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.ggml.ops.common import failed
from memplan.gguf.types import F32
from memplan.models.deepseek4.pieces import Pieces

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor


class HyperConnections(Pieces):
    """Ways into a block and out of it."""

    @staticmethod
    def hc_affine(x: Tensor, scale: Tensor, base: Tensor) -> Tensor:
        """``x`` scaled and shifted (``dsv4_hc_affine``)."""
        return ops.add(ops.mul(x, scale), base)

    def hc_sum(self, x: Tensor, weights: Tensor, il: int) -> Tensor:
        """The streams summed with weights (``build_hc_pre``, first form)."""
        n_embd, hc, n, _ = x.ne
        if "DSV4_HC_PRE" in self.fused and il >= 0:
            res = ops.dsv4_hc_pre(x, weights)
            self.fused_nodes.append(("DSV4_HC_PRE", res, il))
            return res
        out: Tensor | None = None
        for i in range(hc):
            xh = ops.view_2d(x, n_embd, n, x.nb[2], i * x.nb[1])
            wh = ops.view_2d(weights, 1, n, weights.nb[1], i * weights.nb[0])
            cur = ops.mul(xh, wh)
            out = cur if out is None else ops.add(out, cur)
        assert out is not None  # hc is 4
        return out

    def hc_sinkhorn(self, comb: Tensor) -> Tensor:
        """Rows and columns normalised in turn (``build_hc_sinkhorn``)."""
        comb = ops.soft_max(comb)
        eps = ops.fill(ops.new(F32, 1))
        comb = ops.add(comb, eps)
        self.graph.check_room(5 * self.hp.hc_sinkhorn_iters)  # a round has that many tensors, and views
        for i in range(self.hp.hc_sinkhorn_iters):
            if i:
                comb = ops.div(comb, ops.add(ops.sum_rows(comb), eps))
            by_column = ops.cont(ops.permute(comb, 1, 0, 2, 3))
            col_sum = ops.add(ops.sum_rows(by_column), eps)
            comb = ops.div(comb, ops.permute(col_sum, 1, 0, 2, 3))
        return comb

    def hc_pre(self, x: Tensor, part: str, il: int) -> tuple[Tensor, Tensor, Tensor]:
        """Input of a block, and the weights with which its output goes back (``build_hc_pre``)."""
        hp = self.hp
        hc = hp.hc_mult
        n = x.ne[2]
        fn, scale, base = (self.w(il, f"hc_{part}_{which}") for which in ("fn", "scale", "base"))
        flat = ops.rms_norm(ops.reshape(x, hc * hp.n_embd, n))
        mixes = self.cb(ops.mul_mat(fn, flat), "hc_mixes", il)

        def columns(n0: int, first: int) -> Tensor:
            return ops.view_2d(mixes, n0, n, mixes.nb[1], mixes.type.row_size(first))

        pre = self.hc_affine(columns(hc, 0), ops.view_1d(scale, 1, 0), ops.view_1d(base, hc, 0))
        pre = self.cb(ops.scale(ops.unary(pre, "SIGMOID")), "hc_pre", il)
        post = self.hc_affine(columns(hc, hc), ops.view_1d(scale, 1, 4), ops.view_1d(base, hc, 4 * hc))
        post = self.cb(ops.scale(ops.unary(post, "SIGMOID")), "hc_post", il)
        if "DSV4_HC_COMB" in self.fused:
            if hp.hc_sinkhorn_iters < 1:
                failed("n_iter > 0")
            comb = ops.dsv4_hc_comb(mixes, scale, base, hc)
            self.fused_nodes.append(("DSV4_HC_COMB", comb, il))
        else:
            comb = self.hc_affine(
                columns(hc * hc, 2 * hc), ops.view_1d(scale, 1, 8), ops.view_1d(base, hc * hc, 8 * hc)
            )
            comb = self.hc_sinkhorn(ops.reshape(comb, hc, hc, n))
        self.cb(comb, "hc_comb", il)
        return self.hc_sum(x, pre, il), post, comb

    def hc_post(self, x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, il: int) -> Tensor:
        """The block's output spread over the streams again (``build_hc_post``)."""
        if "DSV4_HC_POST" in self.fused:
            res = ops.dsv4_hc_post(x, residual, post, comb)
            self.fused_nodes.append(("DSV4_HC_POST", res, il))
            return res
        hc = self.hp.hc_mult
        n_embd, n = x.ne[0], x.ne[1]
        out: Tensor | None = None
        for dst in range(hc):
            cur = ops.mul(x, ops.view_2d(post, 1, n, post.nb[1], dst * post.nb[0]))
            for src in range(hc):
                res_src = ops.view_2d(residual, n_embd, n, residual.nb[2], src * residual.nb[1])
                mix = ops.view_2d(comb, 1, n, comb.nb[2], dst * comb.nb[0] + src * comb.nb[1])
                cur = ops.add(cur, ops.mul(res_src, mix))
            cur = ops.reshape(cur, n_embd, 1, n)
            out = cur if out is None else ops.concat(out, cur, 1)
        assert out is not None  # hc is 4
        return out

    def hc_head(self, x: Tensor) -> Tensor:
        """The streams joined for the output (``build_hc_head``)."""
        flat = ops.rms_norm(ops.reshape(x, self.hp.hc_mult * self.hp.n_embd, x.ne[2]))
        mixes = self.cb(ops.mul_mat(self.leaf("output_hc_fn.weight"), flat), "hc_head_mixes", -1)
        pre = self.hc_affine(mixes, self.leaf("output_hc_scale.weight"), self.leaf("output_hc_base.weight"))
        pre = self.cb(ops.scale(ops.unary(pre, "SIGMOID")), "hc_head_pre", -1)
        return self.hc_sum(x, pre, -1)
