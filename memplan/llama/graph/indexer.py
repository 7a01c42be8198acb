"""The lightning indexer: scores of keys, and the mask that leaves only the best.

Follows src/models/deepseek32.cpp (``graph::graph``), src/models/deepseek4.cpp (``build_lid_top_k``,
``build_top_k_mask``) and src/llama-graph.cpp (``build_attn`` with ``top_k``), v0.5.0 and b9842.
"""

from __future__ import annotations

from memplan.ggml import ops
from memplan.ggml.tensor import Tensor
from memplan.gguf.types import GGMLType
from memplan.llama.graph.base import GraphBase, H
from memplan.releases import Indexer

LIGHTNING_INDEXER = "LIGHTNING_INDEXER"


class SparseIndexer(GraphBase[H]):
    """Which keys each token attends to."""

    def by_stream(self, q: Tensor, weights: Tensor, n_stream: int) -> tuple[Tensor, Tensor]:
        """Queries (head size, heads, tokens, streams) and weights (heads, tokens, 1, streams) of each stream."""
        ne, nb, s = q.ne, q.nb, n_stream
        q = ops.view(q, (ne[0], ne[1], ne[2] // s, s), (nb[0], nb[1], nb[2], nb[3] // s))
        ne, nb = weights.ne, weights.nb
        return q, ops.view(weights, (ne[0], ne[1] // s, ne[2], s), (nb[0], nb[1], nb[2] // s, nb[3] // s))

    def top_keys(
        self, q: Tensor, k: Tensor, weights: Tensor, mask: Tensor, n_top: int, il: int, prefix: str, masked: str
    ) -> Tensor:
        """The best ``n_top`` keys of each token.

        ``prefix``: what names begin with, ``lid`` or ``indexer``.  ``masked``: what scores are called once masked.
        """
        if LIGHTNING_INDEXER not in self.fused:
            score = self.unfused_scores(q, k, weights, il, prefix)
        elif self.release.indexer is Indexer.MASK_AFTER:
            score = self.cb(ops.lightning_indexer_unmasked(q, k, weights), f"{prefix}_score", il)
        else:
            score = ops.lightning_indexer(q, k, weights, mask)
        if LIGHTNING_INDEXER in self.fused:
            self.fused_nodes.append((LIGHTNING_INDEXER, score, il))
        if score.src[-1] is not mask:
            score = ops.add(score, mask)
        self.cb(score, masked, il)
        return ops.cont(ops.top_k(score, min(score.ne[0], n_top)))

    def unfused_scores(self, q: Tensor, k: Tensor, weights: Tensor, il: int, prefix: str) -> Tensor:
        """The scores from small ops: ``lid_kq`` and its permuted copy are there at once."""
        q = self.cb(ops.permute(q, 0, 2, 1, 3), f"{prefix}_q", il)
        k = self.cb(ops.permute(k, 0, 2, 1, 3), f"{prefix}_k", il)
        kq = self.cb(ops.mul_mat(k, q), f"{prefix}_kq", il)
        kq = self.cb(ops.cont(ops.permute(kq, 2, 1, 0, 3)), f"{prefix}_kq", il)
        score = ops.sum_rows(ops.mul(ops.unary(kq, "RELU"), weights))
        return self.cb(ops.cont(ops.permute(score, 2, 1, 0, 3)), f"{prefix}_score", il)

    def top_keys_mask(self, kq_mask: Tensor, top_k: Tensor, zeros_type: GGMLType) -> Tensor:
        """The mask with all but the chosen keys closed; ``zeros_type``: of the zeros that open them."""
        m = ops.fill(kq_mask)
        m = ops.view(m, (1, m.ne[0], m.ne[1], m.ne[3]), (m.nb[0], m.nb[0], m.nb[1], m.nb[2]))
        k = ops.view(
            top_k, (top_k.ne[0], top_k.ne[1], top_k.ne[3], 1),
            (top_k.nb[0], top_k.nb[1], top_k.nb[2], top_k.ne[3] * top_k.nb[3]),
        )  # fmt: skip
        zeros = ops.fill(ops.new(zeros_type, 1, k.ne[0], k.ne[1], k.ne[2]))
        m = ops.set_rows(m, zeros, k)
        m = ops.view(m, (m.ne[1], m.ne[2], 1, m.ne[3]), (m.nb[0], m.nb[2], m.nb[3], m.nb[3]))
        return ops.add(m, kq_mask)
