"""A cache of keys and values (``llama_kv_cache``).

Follows src/llama-kv-cache.cpp (constructor, ``build_input_k_rot``, ``build_input_v_rot``) and src/llama-model.cpp
(``create_memory``), v0.5.0; releases from b9842 on do the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from memplan.ggml.tensor import Shape
from memplan.gguf.types import BY_NAME, GGMLType
from memplan.llama.batch import ContextParams
from memplan.llama.flags import Flags
from memplan.llama.hparams import HParams
from memplan.llama.memory.base import CacheTensor, Memory
from memplan.llama.placement import Placement

CELL_PADDING = 256
"""Cells that a sliding or compressed cache is padded to."""


def pad_cells(cells: int) -> int:
    """``cells`` padded."""
    return -(-cells // CELL_PADDING) * CELL_PADDING


def cells_read(size: int, held: int | None) -> int:
    """Cells of a cache that a graph reads once it holds ``held`` (``get_n_kv``); None: all, as a reserve does."""
    return size if held is None else min(size, max(CELL_PADDING, pad_cells(held)))


@dataclass(frozen=True)
class KVCache:
    """One cache; every layer's tensors are (elements of all heads, ``size``, ``n_stream``).

    ``name``: "", or what tells it from others of the same context.  ``size``: cells a stream.  ``n_stream``: slots,
    or 1 when they are unified.  ``v_trans``: whether values are kept transposed.  ``k_rot``, ``v_rot``: rows of the
    Hadamard matrix by which keys and values are turned, 0 for none.  ``reuse``: layers that use another one's tensors.
    """

    name: str
    size: int
    n_stream: int
    v_trans: bool
    k_rot: int
    v_rot: int
    tensors: tuple[CacheTensor, ...]
    reuse: Mapping[int, int] = field(default_factory=dict)

    @property
    def shape(self) -> Hashable:
        """All of it that the shapes of a graph depend on, beside the layers' own tensors."""
        types = frozenset([(t.type, t.ne) for t in self.tensors])
        return self.size, self.n_stream, self.v_trans, self.k_rot, self.v_rot, types

    def layer(self, il: int) -> int:
        """The layer whose tensors layer ``il`` uses."""
        return self.reuse.get(il, il)


class CacheBuilder:
    """Makes the caches of one context: where their tensors lie, and of what types they are."""

    def __init__(self, hp: HParams, flags: Flags, params: ContextParams, placement: Placement) -> None:
        self.hp = hp
        self.params = params
        self.type_k, self.type_v = BY_NAME[flags.type_k], BY_NAME[flags.type_v]
        self.v_trans = flags.flash_attn == "off"
        self.swa_full = flags.swa_full
        self.n_rs_seq = flags.n_rs_seq
        self.bufts = [d.buft if flags.offload_kqv else placement.cpu.buft for d in placement.layers]

    @property
    def n_stream(self) -> int:
        """Streams of a cache: one for all slots when they are unified."""
        return 1 if self.params.kv_unified else self.params.n_seq_max

    def tensor(self, role: str, type: GGMLType, ne: Shape, il: int, kind: str = "cache", name: str = "") -> CacheTensor:
        """One tensor on a layer's device, or on the host with ``-nkvo``."""
        return CacheTensor(name or f"{role.partition('@')[0]}_l{il}", type, ne, il, self.bufts[il], role, kind)

    def kv(
        self,
        layers: Iterable[int],
        size: int | None = None,
        *,
        name: str = "",
        values: bool = True,
        head: int | None = None,
        reuse: Mapping[int, int] | None = None,
    ) -> KVCache:
        """A cache for these layers; ``size``: cells, the whole context by default; ``values``: False with MLA.

        ``head``: elements of the one head that is kept, in place of the layers' own.
        """
        hp, n_stream = self.hp, self.n_stream
        size = self.params.n_ctx_seq if size is None else size
        suffix = f"@{name}" if name else ""
        tensors = []
        own = list(layers)
        for il in own:
            n_k, n_v = hp.n_embd_k_gqa(il), hp.n_embd_v_gqa(il)
            if head is not None:
                n_k, n_v = head, hp.n_embd_head_v(il)
            tensors.append(self.tensor(f"cache_k{suffix}", self.type_k, (n_k, size, n_stream, 1), il))
            if values:
                n_v = hp.n_embd_v_gqa_max if self.v_trans and head is None else n_v
                tensors.append(self.tensor(f"cache_v{suffix}", self.type_v, (n_v, size, n_stream, 1), il))
        k_heads = {hp.n_embd_head_k(il) for il in own} if head is None else {head}
        v_heads = {hp.n_embd_head_v(il) for il in own}
        return KVCache(
            name, size, n_stream, self.v_trans,
            _rotation(self.type_k, k_heads, hp.n_embd_head_k(0) if head is None else head, largest=True),
            _rotation(self.type_v, v_heads if values else set(), hp.n_embd_head_v(0), largest=False),
            tuple(tensors), reuse or {},
        )  # fmt: skip


def window_cells(n_swa: int, build: CacheBuilder, n_seqs: int = 1) -> int:
    """Cells of a sliding cache: ``n_seqs`` windows and one ubatch, or the whole context with ``--swa-full``."""
    params = build.params
    if build.swa_full:
        return params.n_ctx_seq
    return pad_cells(min(params.n_ctx_seq, n_swa * n_seqs + params.n_ubatch))


def rotation_rows(head: int) -> int:
    """Rows of the matrix that turns keys of ``head`` elements: the largest power of two that divides them, or 64."""
    n = 64
    while n < head and head % (2 * n) == 0:
        n *= 2
    return n


def _rotation(type: GGMLType, heads: set[int], first: int, *, largest: bool) -> int:
    """Rows of the matrix that turns a quantised cache's heads, where they are of one size; 0 for none.

    Values are turned by 64.
    """
    if len(heads) != 1 or not type.is_quantized or first % 64 or 0 in heads:
        return 0
    return rotation_rows(max(heads)) if largest else 64


def kv_memory(build: CacheBuilder, layers: Iterable[int] | None = None) -> Memory:
    """One cache for all layers that the model runs, or for others: what most architectures have."""
    return Memory({"kv": build.kv(range(build.hp.n_layer) if layers is None else layers)})
