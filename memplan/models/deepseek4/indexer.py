"""The lightning indexer: which compressed keys each token attends to.

Follows ``src/models/deepseek4.cpp`` (``build_lid_top_k``, ``build_top_k_mask``), v0.5.0 and b9842.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.models.deepseek4.compressors import Compressors
from memplan.releases import Indexer

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.models.deepseek4.inputs import MaskTypes


class LightningIndexer(Compressors):
    """Scores of compressed keys, and the mask that leaves only the best."""

    masks: MaskTypes

    def lid_top_k(self, qr: Tensor, cur: Tensor, il: int) -> Tensor:
        """The compressed keys that each token attends to (``build_lid_top_k``)."""
        hp, inp = self.hp, self.lid
        n_head, head = hp.indexer_n_head, hp.indexer_head_size
        n = cur.ne[1]
        q = ops.reshape(ops.mul_mat(self.w(il, "indexer.attn_q_b"), qr), head, n_head, n)
        q = self.cb(q, "lid_q", il)
        q = self.rope_end(q, self.inp_pos, f"lid_q_pe-{il}")
        if self.release.rope_at_offset:
            self.cb(q, "lid_q_rope", il)
        assert inp.k_rot is not None  # k_rot() always gives the indexer one
        q = self.cb(self.hadamard(q, inp.k_rot), "lid_q_rot", il)
        weights = self.cb(ops.scale(ops.mul_mat(self.w(il, "indexer.proj"), cur)), "lid_weights", il)
        k = self.get_k("cache_k@lid", head, 1, il)
        k = self.cb(ops.view(k, (k.ne[0], k.ne[1], inp.kq_mask.ne[0], k.ne[3]), k.nb), "lid_k", il)
        s = k.ne[3]
        qne, qnb = q.ne, q.nb
        q = ops.view(q, (qne[0], qne[1], qne[2] // s, s), (qnb[0], qnb[1], qnb[2], qnb[3] // s))
        wne, wnb = weights.ne, weights.nb
        weights = ops.view(weights, (wne[0], wne[1] // s, wne[2], s), (wnb[0], wnb[1], wnb[2] // s, wnb[3] // s))
        if "LIGHTNING_INDEXER" not in self.fused:
            score = self.unfused_scores(q, k, weights, il)
        elif self.release.indexer is Indexer.MASK_AFTER:
            score = self.cb(ops.lightning_indexer_unmasked(q, k, weights), "lid_score", il)
        else:
            score = ops.lightning_indexer(q, k, weights, inp.kq_mask)
        if "LIGHTNING_INDEXER" in self.fused:
            self.fused_nodes.append(("LIGHTNING_INDEXER", score, il))
        if score.src[-1] is not inp.kq_mask:
            score = ops.add(score, inp.kq_mask)
        self.cb(score, "lid_score_masked", il)
        top_k = ops.cont(ops.top_k(score, min(score.ne[0], hp.indexer_top_k)))
        return self.cb(top_k, "lid_top_k", il)

    def unfused_scores(self, q: Tensor, k: Tensor, weights: Tensor, il: int) -> Tensor:
        """The scores from small ops: ``lid_kq`` and its permuted copy are there at once."""
        q = self.cb(ops.permute(q, 0, 2, 1, 3), "lid_q", il)
        k = self.cb(ops.permute(k, 0, 2, 1, 3), "lid_k", il)
        kq = self.cb(ops.mul_mat(k, q), "lid_kq", il)
        kq = self.cb(ops.cont(ops.permute(kq, 2, 1, 0, 3)), "lid_kq", il)
        score = ops.sum_rows(ops.mul(ops.unary(kq, "RELU"), weights))
        return self.cb(ops.cont(ops.permute(score, 2, 1, 0, 3)), "lid_score", il)

    def top_k_mask(self, kq_mask: Tensor, top_k: Tensor, il: int) -> Tensor:
        """The mask with all but the chosen keys closed (``build_top_k_mask``)."""
        m = ops.fill(kq_mask)
        m = ops.view(m, (1, m.ne[0], m.ne[1], m.ne[3]), (m.nb[0], m.nb[0], m.nb[1], m.nb[2]))
        k = ops.view(
            top_k, (top_k.ne[0], top_k.ne[1], top_k.ne[3], 1),
            (top_k.nb[0], top_k.nb[1], top_k.nb[2], top_k.ne[3] * top_k.nb[3]),
        )  # fmt: skip
        zeros = ops.fill(ops.new(self.masks.compressed, 1, k.ne[0], k.ne[1], k.ne[2]))
        m = ops.set_rows(m, zeros, k)
        m = ops.view(m, (m.ne[1], m.ne[2], 1, m.ne[3]), (m.nb[0], m.nb[2], m.nb[3], m.nb[3]))
        return self.cb(ops.add(m, kq_mask), "csa_top_k_mask", il)
