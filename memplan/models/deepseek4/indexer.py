"""The lightning indexer: which compressed keys each token attends to.

Follows ``src/models/deepseek4.cpp`` (``build_lid_top_k``, ``build_top_k_mask``), v0.5.0 and b9842.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.llama.graph.indexer import SparseIndexer
from memplan.models.deepseek4.compressors import Compressors
from memplan.models.deepseek4.hparams import DeepSeek4HParams

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.models.deepseek4.inputs import MaskTypes


class LightningIndexer(Compressors, SparseIndexer[DeepSeek4HParams]):
    """Scores of compressed keys."""

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
        q, weights = self.by_stream(q, weights, k.ne[3])
        top_k = self.top_keys(q, k, weights, inp.kq_mask, hp.indexer_top_k, il, "lid", "lid_score_masked")
        return self.cb(top_k, "lid_top_k", il)
