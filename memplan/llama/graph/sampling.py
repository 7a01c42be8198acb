"""Samplers that run where the logits are.

Follows src/llama-graph.cpp (``llm_graph_context::build_sampling``), src/llama-context.cpp (``ubatch_prepare_reserve``)
and src/llama-sampler.cpp (``llama_sampler_top_k_backend_apply``), v0.5.0; b10361 does the same.
"""

from __future__ import annotations

from memplan.ggml import ops
from memplan.ggml.tensor import FLAG_OUTPUT, Tensor
from memplan.llama.graph.base import GraphBase, H

DRAFT_TOP_K = 10
"""Candidates that a draft's sampler keeps (common/speculative.cpp)."""


class Sampling(GraphBase[H]):
    """The best candidates of each output, in a graph that drafts."""

    def build_sampling(self, logits: Tensor, each: int) -> None:
        """Each sequence's sampler at ``each`` of its outputs; one that has none works on the first row for nothing."""
        batch = self.batch
        each = min(each, batch.n_tokens // batch.n_seqs)
        logits.flags |= FLAG_OUTPUT
        padded = ops.pad(logits, 0, 1)
        done = 0
        for seq in range(batch.n_seqs):
            count = min(each, batch.n_outputs - done)
            for row in range(done, done + count) if count else (0,):
                cur = ops.view_1d(padded, padded.ne[0], row * padded.nb[1])
                cur = ops.reshape(self.cb(cur, f"logits_seq_{seq}_{row - done}", -1), padded.ne[0])
                best = self.cb(ops.top_k(cur, DRAFT_TOP_K), "top_k", -1)
                rows = self.cb(ops.get_rows(ops.reshape(cur, 1, cur.ne[0]), best), "top_k_rows", -1)
                for t in (rows, best):
                    t.flags |= FLAG_OUTPUT if count else 0
                    self.graph.expand(t)
            done += count
