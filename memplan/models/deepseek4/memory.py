"""DeepSeek-V4's memory: caches of raw, compressed and indexer keys, and the states of the compressors.

Follows src/llama-kv-cache-dsv4.cpp (``llama_kv_cache_dsv4``, ``llama_dsv4_comp_state``), src/llama-kv-cache-iswa.cpp
and src/llama-kv-cache.cpp (constructors), v0.5.0; releases from b9842 on do the same but for snapshots. Only keys are
kept. Every sequence has a stream of its own, unified or not.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from memplan.gguf.types import F32
from memplan.llama.memory.base import Cache, CacheTensor, Memory
from memplan.llama.memory.kv import KVCache, pad_cells, rotation_rows, window_cells
from memplan.models.deepseek4.hparams import CSA_RATIO, HCA_RATIO, DeepSeek4HParams
from memplan.models.deepseek4.switches import switches

if TYPE_CHECKING:
    from memplan.llama.memory.kv import CacheBuilder
    from memplan.releases import Release


@dataclass(frozen=True)
class CompState:
    """What the compressors of one kind carry from batch to batch.

    ``name``: csa, hca or lid.  ``state_size``: rows a stream.  ``n_embd_state``: elements a row.  ``n_rs_seq``:
    rollback snapshots a stream.  ``tensors``: a kv and a score in turn, each
    (n_embd_state, state_size, n_stream x (1 + n_rs_seq)) in f32.
    """

    name: str
    ratio: int
    state_size: int
    n_embd_state: int
    n_stream: int
    n_rs_seq: int
    tensors: tuple[CacheTensor, ...]

    @property
    def shape(self) -> Hashable:
        """All of it that the shapes of a graph depend on."""
        return self.state_size, self.n_embd_state, self.n_stream, self.n_rs_seq

    def layer(self, il: int) -> int:
        """Each layer has its own."""
        return il


@dataclass(frozen=True)
class DeepSeek4Memory(Memory):
    """All that a DeepSeek-V4 context remembers: ``raw``, ``csa``, ``hca``, ``lid``, and a state of each of the last.

    ``kv_unified``: whether slots share one context.
    """

    kv_unified: bool

    def keys(self, name: str) -> KVCache:
        """One of its caches."""
        cache = self.caches[name]
        assert isinstance(cache, KVCache)  # what ``create_memory`` made
        return cache

    def state(self, name: str) -> CompState:
        """The state of the compressors of one kind."""
        state = self.caches[f"{name}_state"]
        assert isinstance(state, CompState)  # what ``create_memory`` made
        return state

    @cached_property
    def shape(self) -> Hashable:
        """All of it that the shapes of a graph depend on."""
        return super().shape, self.kv_unified


def compressed_size(n_ctx_seq: int, ratio: int) -> int:
    """Cells of a cache that keeps one row for every ``ratio`` tokens of a sequence (``dsv4_comp_size``), padded."""
    return pad_cells(max(1, -(-n_ctx_seq // ratio)))


def create_memory(hp: DeepSeek4HParams, build: CacheBuilder, release: Release) -> DeepSeek4Memory:
    """The caches and states of a context, each layer's on the layer's own device.

    The raw cache serves MTP blocks too, though nothing writes them.
    """
    csa = [il for il in range(hp.n_layer_all) if hp.compress_ratios[il] == CSA_RATIO]
    hca = [il for il in range(hp.n_layer_all) if hp.compress_ratios[il] == HCA_RATIO]
    head, lid, n_ctx = hp.n_embd_head_k(), hp.indexer_head_size, build.params.n_ctx_seq
    width, csa_size = head * hp.n_head_kv[0], compressed_size(n_ctx, CSA_RATIO)
    n_rs_seq = build.n_rs_seq if switches(release).compressor_snapshots else 0

    def cache(name: str, layers: Iterable[int], width: int, size: int) -> KVCache:
        n_stream, suffix = build.params.n_seq_max, f"@{name}" if name else ""
        ne = (width, size, n_stream, 1)
        tensors = tuple([build.tensor(f"cache_k{suffix}", build.type_k, ne, il) for il in layers])
        full = lid if name == "lid" else hp.n_embd_head_k_full
        own = lid if name == "lid" else head
        rotated = bool(tensors) and build.type_k.is_quantized and own % 64 == 0
        k_rot = rotation_rows(own) if rotated or full == lid else 0
        return KVCache(name, size, n_stream, False, k_rot, 0, tensors)

    def state(name: str, layers: Iterable[int], ratio: int, rows: int, width: int) -> CompState:
        """A ``llama_dsv4_comp_state``: no MTP blocks, and a kv and a score tensor in turn."""
        n_stream = build.params.n_seq_max
        ne = (width, rows, n_stream * (1 + n_rs_seq), 1)
        tensors = [
            build.tensor(f"dsv4_{name}_state_{part}", F32, ne, il, "state")
            for il in layers
            if il < hp.n_layer
            for part in ("kv", "score")
        ]
        return CompState(name, ratio, rows, width, n_stream, n_rs_seq, tuple(tensors))

    caches: Mapping[str, Cache] = {
        "raw": cache("", range(hp.n_layer_all), width, window_cells(hp.n_swa, build)),
        "csa": cache("csa", csa, width, csa_size),
        "hca": cache("hca", hca, width, compressed_size(n_ctx, HCA_RATIO)),
        "lid": cache("lid", csa, lid, csa_size),
        "csa_state": state("csa", csa, CSA_RATIO, 2 * CSA_RATIO, 2 * head),
        "hca_state": state("hca", hca, HCA_RATIO, HCA_RATIO, head),
        "lid_state": state("lid", csa, CSA_RATIO, 2 * CSA_RATIO, 2 * lid),
    }
    return DeepSeek4Memory(caches, build.params.kv_unified)
