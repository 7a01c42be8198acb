"""DeepSeek-V4's memory in antirez' fork of build 8920: one sliding cache, recurrent states, and compressed keys.

Follows src/llama-memory-hybrid-iswa.cpp (``llama_memory_hybrid_iswa``), src/llama-kv-cache-iswa.cpp,
src/llama-memory-recurrent.cpp and src/llama-hparams.cpp (``n_embd_r``, ``n_embd_s``) of that fork, as of April 2026.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.llama.memory.base import CacheTensor, Memory
from memplan.llama.memory.kv import window_cells
from memplan.llama.memory.recurrent import recurrent
from memplan.models.deepseek4.hparams import CSA_RATIO

if TYPE_CHECKING:
    from memplan.llama.memory.kv import CacheBuilder
    from memplan.models.deepseek4.hparams import DeepSeek4HParams


@dataclass(frozen=True)
class CompressedKeys:
    """A row for every few tokens of a slot, of attention and on layers with an indexer of that; never unified."""

    tensors: tuple[CacheTensor, ...]

    @property
    def shape(self) -> Hashable:
        """All of it that the shapes of a graph depend on."""
        return tuple([t.ne for t in self.tensors])

    def layer(self, il: int) -> int:
        """Each layer has its own."""
        return il


def hybrid_memory(hp: DeepSeek4HParams, build: CacheBuilder) -> Memory:
    """The caches and states of a context. Every layer's states are as large as the largest layer's."""
    compressing = [il for il in range(hp.n_layer) if hp.compress_ratios[il]]
    slots = build.params.n_seq_max
    windows = slots if build.params.kv_unified else 1
    raw = build.kv(range(hp.n_layer), window_cells(hp.n_swa, build, windows), name="raw", values=False)
    states = max((_state_size(hp, hp.compress_ratios[il]) for il in compressing), default=0)
    keys = []
    for il in compressing:
        ratio = hp.compress_ratios[il]
        rows = max(1, -(-build.params.n_ctx_seq // ratio))
        keys.append(build.tensor("cache_dsv4_attn_k", build.type_k, (hp.n_embd_head_k(il), rows, slots, 1), il))
        if ratio == CSA_RATIO:
            keys.append(build.tensor("cache_dsv4_index_k", build.type_k, (hp.indexer_head_size, rows, slots, 1), il))
    return Memory(
        {"raw": raw, "rs": recurrent(build, compressing, states, states), "compressed": CompressedKeys(tuple(keys))}
    )


def _state_size(hp: DeepSeek4HParams, ratio: int) -> int:
    """Elements of one layer's states: the rows that a compressor has not yet made one of, twice where they overlap."""
    overlap = 2 if ratio == CSA_RATIO else 1
    heads = hp.n_embd_head_k() + (hp.indexer_head_size if ratio == CSA_RATIO else 0)
    return overlap * ratio * overlap * heads
