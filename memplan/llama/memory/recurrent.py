"""Recurrent states, beside a cache of keys and values in hybrid models.

Follows src/llama-memory-recurrent.cpp (constructor), src/llama-memory-hybrid.cpp and src/llama-model.cpp
(``create_memory``), v0.5.0; releases from b9842 on do the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from memplan.gguf.types import F32
from memplan.llama.memory.base import CacheTensor, Memory
from memplan.llama.memory.kv import CacheBuilder
from memplan.llama.ssm import SSMHParams


@dataclass(frozen=True)
class RecurrentStates:
    """States of recurrent layers, f32: R, what convolutions look back at, and S, what the recurrence hands on.

    ``cells``: one a sequence.  ``n_rs_seq``: snapshots that a sequence can be rolled back to; each takes as many cells
    more.
    """

    cells: int
    n_rs_seq: int
    tensors: tuple[CacheTensor, ...]

    @property
    def shape(self) -> Hashable:
        """All of it that the shapes of a graph depend on, beside the layers' own tensors."""
        return self.cells, self.n_rs_seq

    def layer(self, il: int) -> int:
        """Every layer has states of its own."""
        return il


def recurrent(
    build: CacheBuilder, layers: Iterable[int], n_embd_r: int, n_embd_s: int, *, n_rs_seq: int = 0
) -> RecurrentStates:
    """States for these layers; ``n_embd_r``, ``n_embd_s``: elements of one sequence's on a layer."""
    cells = build.params.n_seq_max
    rows = cells * (1 + n_rs_seq)
    tensors = []
    for il in layers:
        tensors.append(build.tensor("cache_r", F32, (n_embd_r, rows, 1, 1), il, "state"))
        tensors.append(build.tensor("cache_s", F32, (n_embd_s, rows, 1, 1), il, "state"))
    return RecurrentStates(cells, n_rs_seq, tuple(tensors))


def hybrid_memory(
    hp: SSMHParams, build: CacheBuilder, attention: Iterable[int], recurring: Iterable[int], *, rolls_back: bool
) -> Memory:
    """A cache for the layers with attention and states for those that recur (``llama_memory_hybrid``).

    ``rolls_back``: whether states have the snapshots that are asked for (``llm_arch_supports_rs_rollback``).
    """
    n_rs_seq = build.n_rs_seq if rolls_back else 0
    states = recurrent(build, recurring, hp.n_embd_r, hp.n_embd_s, n_rs_seq=n_rs_seq)
    return Memory({"kv": build.kv(attention), "rs": states})
