"""A context's sizes, and the batches that graphs are made for.

Follows ``src/llama-context.cpp`` (v0.5.0): the constructor and ``graph_reserve``.
"""

from __future__ import annotations

from dataclasses import dataclass

from memplan.llama.flags import Flags
from memplan.llama.hparams import HParams


@dataclass(frozen=True, slots=True)
class ContextParams:
    """A context's sizes, in tokens, as its constructor settles them.

    ``n_ctx``: all sequences together.  ``n_ctx_seq``: one sequence.  ``n_outputs_max``: logits a batch may ask for.
    """

    n_ctx: int
    n_ctx_seq: int
    n_batch: int
    n_ubatch: int
    n_seq_max: int
    n_outputs_max: int
    kv_unified: bool

    @staticmethod
    def of(flags: Flags, hp: HParams) -> ContextParams:
        """The sizes for these flags and this model (``llama_context::llama_context``)."""
        n_seq_max = max(1, flags.n_parallel)
        n_ctx = flags.n_ctx or hp.n_ctx_train
        n_batch = min(n_ctx, flags.n_batch) if hp.causal_attn else flags.n_batch
        n_ubatch = min(n_batch, flags.n_ubatch or flags.n_batch)
        n_ctx = _pad(n_ctx, 256)
        n_ctx_seq = n_ctx
        if not flags.kv_unified:
            n_ctx_seq = _pad(n_ctx // n_seq_max, 256)
            n_ctx = n_ctx_seq * n_seq_max
        return ContextParams(
            n_ctx=n_ctx,
            n_ctx_seq=n_ctx_seq,
            n_batch=n_batch,
            n_ubatch=n_ubatch,
            n_seq_max=n_seq_max,
            n_outputs_max=n_batch if flags.app == "cli" else flags.n_outputs_max,
            kv_unified=flags.kv_unified,
        )

    @property
    def n_tokens(self) -> int:
        """Tokens of the worst-case prompt batch."""
        return min(self.n_ctx, self.n_ubatch)

    @property
    def prompt_batch(self) -> Batch:
        """The batch of the prompt graph, whose buffers are reserved."""
        return Batch.of(self.n_tokens, self.n_seq_max, min(self.n_tokens, self.n_outputs_max))


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch a graph is made for: ``n_tokens`` over ``n_seqs`` sequences, ``n_outputs`` of them with logits.

    ``filled``: tokens that each of these sequences holds once the batch is computed; None for a reserve, whose graph
    reads all cells of every cache.  ``others``: tokens of the other sequences that share a cache with them.
    """

    n_tokens: int
    n_seqs: int
    n_outputs: int
    filled: int | None = None
    others: int = 0

    @staticmethod
    def of(n_tokens: int, n_seqs: int, n_outputs: int) -> Batch:
        """As many tokens for each sequence (``graph_reserve``)."""
        return Batch(_pad(n_tokens, n_seqs), n_seqs, n_outputs)


@dataclass(frozen=True, slots=True)
class GivenOut:
    """What a context gives out beside logits, for drafts (``cparams.embeddings_layer_inp``, ``sampling.samplers``).

    ``layer_inputs``: layers whose inputs a block drafter reads.  ``sampled``: outputs of a sequence that are sampled
    on the output layer's device; 0 for none.
    """

    layer_inputs: frozenset[int] = frozenset()
    sampled: int = 0


NOTHING_GIVEN = GivenOut()


def _pad(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
