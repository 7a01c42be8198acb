"""DeepSeek-V4's memory: caches of raw, compressed and indexer keys, and the states of the compressors.

Follows src/llama-kv-cache-dsv4.cpp (``llama_kv_cache_dsv4``, ``llama_dsv4_comp_state``), src/llama-kv-cache-iswa.cpp
and src/llama-kv-cache.cpp (constructors, ``memory_breakdown``) and src/llama-model.cpp (``create_memory``), v0.5.0;
releases from b9842 on do the same but for snapshots. Only keys are kept. Every sequence has a stream of its own,
unified or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from memplan.ggml.backend import BufferType
from memplan.ggml.tensor import Shape, new_tensor
from memplan.gguf.types import BY_NAME, F32, GGMLType
from memplan.llama.allocation import buffer_bytes
from memplan.llama.context import ContextParams
from memplan.llama.flags import Flags
from memplan.llama.hparams import CSA_RATIO, HCA_RATIO, HParams
from memplan.llama.placement import Placement
from memplan.releases import LATEST, Release

CELL_PADDING = 256
"""Cells that a compressed or sliding cache is padded to."""


@dataclass(frozen=True, slots=True)
class CacheTensor:
    """One tensor of a cache or state: its layer, and the buffer type it lies in."""

    name: str
    type: GGMLType
    ne: Shape
    layer: int
    buft: BufferType


@dataclass(frozen=True, slots=True)
class KVCache:
    """One cache of keys.

    ``name``: raw, csa, hca or lid.  ``size``: cells a stream.  ``head_size``: elements a cell.  ``k``: by layer,
    (head_size, size, n_stream).  ``attn_rot_k``: whether keys are rotated by a Hadamard matrix.
    """

    name: str
    size: int
    n_stream: int
    head_size: int
    attn_rot_k: bool
    k: Mapping[int, CacheTensor]


@dataclass(frozen=True, slots=True)
class CompState:
    """What the compressors of one kind carry from batch to batch.

    ``name``: csa, hca or lid.  ``state_size``: rows a stream.  ``n_embd_state``: elements a row.  ``n_rs_seq``:
    rollback snapshots a stream.  ``kv``, ``score``: by layer, (n_embd_state, state_size, n_stream x (1 + n_rs_seq)) in
    f32.
    """

    name: str
    ratio: int
    state_size: int
    n_embd_state: int
    n_stream: int
    n_rs_seq: int
    kv: Mapping[int, CacheTensor]
    score: Mapping[int, CacheTensor]


@dataclass(frozen=True, slots=True)
class Memory:
    """All that a DeepSeek-V4 context remembers.

    ``context``: its bytes by buffer type name.  ``kv_unified``: whether slots share one context (they keep streams of
    their own all the same).
    """

    raw: KVCache
    csa: KVCache
    hca: KVCache
    lid: KVCache
    csa_state: CompState
    hca_state: CompState
    lid_state: CompState
    context: Mapping[str, int]
    kv_unified: bool

    def tensor(self, role: str, il: int) -> CacheTensor:
        """The tensor that the graph reads and writes as ``role`` on layer ``il``.

        Roles: ``cache_k`` (raw), ``cache_k@csa``, ``cache_k@hca``, ``cache_k@lid``, ``dsv4_csa_state_kv``,
        ``dsv4_csa_state_score`` and so on. Raises KeyError for a layer that has none.
        """
        if role == "cache_k":
            return self.raw.k[il]
        for cache, state in ((self.csa, self.csa_state), (self.hca, self.hca_state), (self.lid, self.lid_state)):
            if role == f"cache_k@{cache.name}":
                return cache.k[il]
            if role == f"dsv4_{state.name}_state_kv":
                return state.kv[il]
            if role == f"dsv4_{state.name}_state_score":
                return state.score[il]
        raise KeyError(role)


def compressed_size(n_ctx_seq: int, ratio: int) -> int:
    """Cells of a cache that keeps one row for every ``ratio`` tokens of a sequence (``dsv4_comp_size``), padded."""
    return _pad(max(1, -(-n_ctx_seq // ratio)))


def raw_size(hp: HParams, params: ContextParams, swa_full: bool) -> int:
    """Cells of the sliding-window cache: the window and one ubatch, or the whole context with ``--swa-full``."""
    if swa_full:
        return params.n_ctx_seq
    return _pad(min(params.n_ctx_seq, hp.n_swa + params.n_ubatch))


def _pad(cells: int) -> int:
    return -(-cells // CELL_PADDING) * CELL_PADDING


def create_memory(
    hp: HParams, flags: Flags, params: ContextParams, placement: Placement, release: Release = LATEST
) -> Memory:
    """The caches and states of a context, each layer's on the layer's own device - or on the host with ``-nkvo``.

    The raw cache serves MTP blocks too, though nothing writes them. Sizes are summed buffer by buffer: one
    for each buffer type of each cache.
    """
    build = _Builder(hp, flags, params.n_seq_max, placement, release)
    csa = [il for il in range(hp.n_layer_all) if hp.compress_ratios[il] == CSA_RATIO]
    hca = [il for il in range(hp.n_layer_all) if hp.compress_ratios[il] == HCA_RATIO]
    head, lid = hp.n_embd_head_k, hp.indexer_head_size
    width, n_ctx = head * hp.n_head_kv, params.n_ctx_seq
    csa_size = compressed_size(n_ctx, CSA_RATIO)
    return Memory(
        raw=build.cache("raw", range(hp.n_layer_all), width, raw_size(hp, params, flags.swa_full)),
        csa=build.cache("csa", csa, width, csa_size),
        hca=build.cache("hca", hca, width, compressed_size(n_ctx, HCA_RATIO)),
        lid=build.cache("lid", csa, lid, csa_size),
        csa_state=build.state("csa", csa, CSA_RATIO, 2 * CSA_RATIO, 2 * head),
        hca_state=build.state("hca", hca, HCA_RATIO, HCA_RATIO, head),
        lid_state=build.state("lid", csa, CSA_RATIO, 2 * CSA_RATIO, 2 * lid),
        context=build.context,
        kv_unified=params.kv_unified,
    )


class _Builder:
    def __init__(self, hp: HParams, flags: Flags, n_stream: int, placement: Placement, release: Release) -> None:
        self._hp = hp
        self._n_stream = n_stream
        self._n_rs_seq = flags.n_rs_seq if release.compressor_snapshots else 0
        self._type_k = BY_NAME[flags.type_k]
        self._bufts = [d.buft if flags.offload_kqv else placement.cpu.buft for d in placement.layers]
        self.context: dict[str, int] = {}

    def cache(self, name: str, layers: Iterable[int], width: int, size: int) -> KVCache:
        """A ``llama_kv_cache`` without values."""
        hp, type_k = self._hp, self._type_k
        ne = (width, size, self._n_stream, 1)
        k = {il: CacheTensor(f"cache_k_l{il}", type_k, ne, il, self._bufts[il]) for il in layers}
        self._count(k.values())
        head = hp.indexer_head_size if name == "lid" else hp.n_embd_head_k
        full = hp.indexer_head_size if name == "lid" else hp.n_embd_head_k_full
        rotated = bool(k) and type_k.is_quantized and head % 64 == 0
        return KVCache(name, size, self._n_stream, head, rotated or full == hp.indexer_head_size, k)

    def state(self, name: str, layers: Iterable[int], ratio: int, rows: int, width: int) -> CompState:
        """A ``llama_dsv4_comp_state``: no MTP blocks, and a kv and a score tensor in turn."""
        ne = (width, rows, self._n_stream * (1 + self._n_rs_seq), 1)
        own = [il for il in layers if il < self._hp.n_layer]
        kv = {il: CacheTensor(f"dsv4_{name}_state_kv_l{il}", F32, ne, il, self._bufts[il]) for il in own}
        score = {il: CacheTensor(f"dsv4_{name}_state_score_l{il}", F32, ne, il, self._bufts[il]) for il in own}
        self._count(t for il in own for t in (kv[il], score[il]))
        return CompState(name, ratio, rows, width, self._n_stream, self._n_rs_seq, kv, score)

    def _count(self, tensors: Iterable[CacheTensor]) -> None:
        sizes: dict[BufferType, list[int]] = {}
        size: dict[BufferType, int] = {}  # tensors of one cache have one shape
        for t in tensors:
            if t.buft not in size:
                size[t.buft] = t.buft.alloc_size(new_tensor(t.type, *t.ne))
            sizes.setdefault(t.buft, []).append(size[t.buft])
        for buft, of_type in sizes.items():
            self.context[buft.name] = self.context.get(buft.name, 0) + buffer_bytes(buft, of_type)
