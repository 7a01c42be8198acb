"""The Metal backend: its buffers, what it computes and, by ``metal_order``, in which order. Read, never compared.

Follows ggml/src/ggml-metal (ggml-metal.cpp: ``ggml_backend_metal_buffer_type_get_alloc_size``, ``..._offload_op``;
ggml-metal-device.m: ``ggml_metal_device_supports_op``; ggml-metal-ops.cpp: the extra room of each op), v0.5.0; older
releases as ``other_backends`` says. Taken for granted, as any Apple GPU has it: shared buffers, bf16, SIMD-group
matrices.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import TYPE_CHECKING

from memplan.backends import metal_order, ruled
from memplan.backends.ruled import (
    CACHED,
    GLU_KINDS,
    HALVES,
    LEGACY,
    NVFP4,
    SMALL_BITS,
    TQ1_0,
    TQ2_0,
    Rule,
    RuledBackend,
    rules,
)
from memplan.ggml.backend import BufferType
from memplan.ggml.tensor import contiguous_above
from memplan.gguf.types import BF16, F16, F32, I32, I64, IQ4_NL
from memplan.releases.other_backends import other_backends

if TYPE_CHECKING:
    from memplan.backends.devices import Gpu
    from memplan.ggml.backend import Optimized, Traits
    from memplan.ggml.tensor import Tensor
    from memplan.releases import Release

ALIGNMENT = 32
"""``ggml_backend_metal_buffer_type_shared_get_alignment``."""

APPROXIMATE = (
    "Metal: its rules are read from llama.cpp's source and were never compared with its own planning; a largest buffer"
    " of three quarters of its memory is assumed"
)

_PARTS_OF_SCALES = 256  # N_MM_NPART_AMAX
_QUERIES, _KEYS, _VEC_KEYS = 8, 64, 32  # OP_FLASH_ATTN_EXT_NQPSG, ..._NCPSG, ..._VEC_NCPSG
_VEC_BATCH = 20
_WORKGROUPS = 32
_MOST_SPARSE_KEYS = 4096

_HEADS = frozenset({32, 40, 48, 64, 72, 80, 96, 112, 128, 192, 256, 320, 512, 576})
_SPARSE_HEADS = frozenset(
    {(n, n) for n in (32, 64, 96, 128, 192, 256, 512)} | {(96, 64), (192, 128), (320, 256), (576, 512)}
)
_KV = ruled.FLOATS | LEGACY
_UNARY_KINDS = ruled.names(
    "TANH RELU SIGMOID GELU GELU_ERF GELU_QUICK SILU ELU NEG ABS SGN STEP HARDSWISH HARDSIGMOID EXP SOFTPLUS EXPM1 "
    "FLOOR CEIL ROUND TRUNC XIELU"
)
_FROM_QUANTS = LEGACY | SMALL_BITS | {TQ2_0}
_COPIES = {
    F32: CACHED | SMALL_BITS | {TQ2_0, I32},
    F16: HALVES,
    BF16: frozenset({F32, BF16}),
    I32: frozenset({F32, I32}),
    **{type: HALVES for type in _FROM_QUANTS},
}


class MetalBuffer(BufferType):
    """Memory of one Metal device, ``MTL0``, ...; the host's own, but no host buffer to llama.cpp."""

    alignment = ALIGNMENT

    def __init__(self, name: str, gpu: Gpu, release: Release) -> None:
        self.name = name
        self.max_size = gpu.total // 4 * 3
        self._switches = other_backends(release)

    @property
    def sizing(self) -> Hashable:
        """The room that the release's kernels ask for."""
        return MetalBuffer, self._switches

    def alloc_size(self, t: Tensor) -> int:
        """Bytes of ``t``, with the room its op needs while it runs."""
        op, size = t.op, t.nbytes
        if op == "MUL_MAT_ID":
            experts, tokens = t.src[0].ne[2], t.src[2].ne[1]
            scales = 8 + 4 * _PARTS_OF_SCALES if self._switches.metal_expert_scales else 0
            return size + 4 * experts + 4 * experts * tokens + scales
        if op == "FLASH_ATTN_EXT":
            return size + self._attention(t)
        if op in ("CUMSUM", "ARGSORT"):
            return 2 * size
        if op == "TOP_K":
            return 2 * 4 * t.src[0].nelements
        return size

    def _attention(self, t: Tensor) -> int:
        q, k, v = t.src[0], t.src[1], t.src[2]
        params = t.params or {}
        mask = t.src[3] if params.get("mask") else None
        copies = self._switches.metal_attention_f16_copies and k.type in LEGACY and q.ne[1] >= 32
        shared = v.view_src is not None and (
            v.view_src is k or (v.view_src is k.view_src and v.view_offs == k.view_offs)
        )
        # the last keys, padded; f16 where K and V are copied first
        row_k, row_v = k.nb[1], v.nb[1]
        if copies:
            row_k, row_v = 2 * k.ne[0], 2 * (k if shared else v).ne[0]
        size = _KEYS * (row_k * k.ne[2] * k.ne[3] + row_v * v.ne[2] * v.ne[3])
        if mask is not None:
            size += _KEYS * 2 * mask.ne[1] * mask.ne[2] * mask.ne[3]
            vec = q.ne[1] < _VEC_BATCH and q.ne[0] % 32 == 0
            queries, keys = (1, _VEC_KEYS) if vec else (_QUERIES, _KEYS)
            size += _pad(-(-mask.ne[0] // keys) * -(-q.ne[1] // queries) * mask.ne[2] * mask.ne[3], 32)
        size += 4 * min(q.ne[1], 32) * q.ne[2] * q.ne[3] * _WORKGROUPS * (v.ne[0] + 2)
        if self._switches.metal_attention_f16_copies:
            size += _pad(2 * k.nelements, 16) + (0 if shared else _pad(2 * v.nelements, 16))
        if self._switches.metal_attention_indices and mask is not None:
            sparse = params.get("n_kv_max", 0)
            if isinstance(sparse, int) and 0 < sparse <= _MOST_SPARSE_KEYS and (k.ne[0], v.ne[0]) in _SPARSE_HEADS:
                size += _pad(4 * _pad(sparse, _VEC_KEYS) * mask.ne[1] * mask.ne[2] * mask.ne[3], 16)
        return size


class MetalBackend(RuledBackend):
    """One Metal device; ``without_ops``: ops that it is made to refuse."""

    def __init__(self, name: str, gpu: Gpu, release: Release, without_ops: frozenset[str] = frozenset()) -> None:
        own = dict(_RULES)
        switches = other_backends(release)
        if switches.metal_indexer:
            own["LIGHTNING_INDEXER"] = partial(_lightning_indexer, any_heads=switches.metal_indexer_heads)
        if switches.metal_hyper_connections:
            own |= _HYPER_CONNECTIONS
        if not switches.metal_adds_halves:
            own |= rules("ADD SUB MUL DIV ADD_ID", _accumulate)
        if not switches.metal_sets_f16_rows:
            own["SET_ROWS"] = _set_rows_of_f32
        if not switches.metal_concat_quantized:
            own["CONCAT"] = _concat_unquantised
        self._fusions = switches.metal_fusions
        super().__init__(name, MetalBuffer(name, gpu, release), own, without_ops)

    def looks_far(self, nodes: list[Tensor]) -> bool:
        """Always: it moves nodes over sixty others."""
        return True

    @staticmethod
    def traits(t: Tensor) -> Traits:
        """What the order of nodes goes by; see ``memplan.backends.metal_order``."""
        return metal_order.traits(t)

    def graph_optimize(self, nodes: list[Tensor], after: Tensor | None = None) -> Optimized:
        """A new order, and the lifetimes that fusions stretch; see ``memplan.backends.metal_order``."""
        return metal_order.graph_optimize(nodes, self._fusions)

    def offload_op(self, t: Tensor) -> bool:
        """Whether ``t`` is a matrix product with at least 32 rows in the batched dimension."""
        return t.op in ("MUL_MAT", "MUL_MAT_ID") and ruled.batch_rows(t) >= ruled.OFFLOAD_MIN_BATCH


def _pad(size: int, to: int) -> int:
    return -(-size // to) * to


def _unary(t: Tensor) -> bool:
    return t.kind in _UNARY_KINDS and ruled.rows_of_halves(t)


def _glu(t: Tensor) -> bool:
    return t.kind in GLU_KINDS and contiguous_above(t.src[0], 1) and t.src[0].type in HALVES


def _concat(t: Tensor) -> bool:
    if any(s.type is not t.type for s in t.src):
        return False
    return t.type in LEGACY or t.type.block_size == 1


def _concat_unquantised(t: Tensor) -> bool:
    return not t.type.is_quantized and _concat(t)


def _binary(t: Tensor) -> bool:
    a, b = t.src[0], t.src[1]
    return a.is_contiguous_rows and b.is_contiguous_rows and a.type in HALVES and a.type is b.type


def _accumulate(t: Tensor) -> bool:
    return t.src[0].type is F32 and all(s.is_contiguous_rows for s in t.src[:2])


def _flash_attn_ext(t: Tensor) -> bool:
    q, k, v = t.src[0], t.src[1], t.src[2]
    if q.ne[0] not in _HEADS or k.ne[0] < v.ne[0] or (k.ne[0] == 72 and v.ne[0] != 72):
        return False
    return k.type is v.type and k.type in _KV


def _mul_mat(t: Tensor) -> bool:
    a, b = t.src[0], t.src[1]
    if a.type is NVFP4 or a.type is TQ1_0:
        return False
    if b.type is not F16:
        return True
    if a.type is BF16 or a.ne[0] < 64:
        return False
    if t.op == "MUL_MAT_ID":
        return t.src[2].ne[1] >= 32
    return b.ne[1] > 8 and not a.is_transposed and not b.is_transposed


def _copy(t: Tensor) -> bool:
    return t.type in _COPIES.get(t.src[0].type, ())


def _get_rows(t: Tensor) -> bool:
    return t.src[0].type is not NVFP4 and t.src[0].type is not TQ1_0


def _set_rows(t: Tensor) -> bool:
    return (t.src[0].type is F16 and t.type is F16) or _set_rows_of_f32(t)


def _set_rows_of_f32(t: Tensor) -> bool:
    return t.src[0].type is F32 and t.src[1].type in (I32, I64) and (t.type in _KV or t.type in (IQ4_NL, TQ2_0))


def _lightning_indexer(t: Tensor, any_heads: bool) -> bool:
    q, k, w = t.src[0], t.src[1], t.src[2]
    if q.ne[0] != 128 or (q.ne[1] != 64 and not any_heads) or len(t.src) < 4 or t.src[3].type is not F16:
        return False
    if q.type is not F32 or w.type is not F32 or t.type is not F32 or k.type not in _KV:
        return False
    return all(s.is_contiguous_rows for s in t.src)


def _hyper_connection(t: Tensor) -> bool:
    return ruled.all_f32(t) and all(s.is_contiguous_rows for s in t.src)


def _hc_comb(t: Tensor) -> bool:
    mix, scale, base = t.src[0], t.src[1], t.src[2]
    return _hyper_connection(t) and mix.ne[0] == 24 and scale.ne[0] >= 3 and base.ne[0] == 24


def _hc_post(t: Tensor) -> bool:
    return _hyper_connection(t) and t.src[1].ne[1] == 4 and t.src[2].ne[0] == 4


_HYPER_CONNECTIONS: dict[str, Rule] = {
    "DSV4_HC_COMB": _hc_comb,
    "DSV4_HC_PRE": _hyper_connection,
    "DSV4_HC_POST": _hc_post,
}

_RULES: dict[str, Rule] = {
    **rules("NONE RESHAPE VIEW PERMUTE TRANSPOSE REPEAT ROPE ROPE_BACK ARGSORT TOP_K ARANGE ARGMAX DIAG", ruled.always),
    **rules("RWKV_WKV6 RWKV_WKV7 SSM_SCAN SSM_CONV", ruled.always),
    "GATED_DELTA_NET": lambda t: t.src[2].ne[0] % 32 == 0,
    "SOLVE_TRI": ruled.f32_in,
    **rules("SCALE FILL CLAMP SQR SQRT SIN COS LOG", ruled.rows_of_halves),
    **rules("TRI SUM_ROWS CUMSUM MEAN SOFT_MAX GROUP_NORM L2_NORM NORM RMS_NORM", ruled.contiguous_rows),
    **rules("ADD SUB MUL DIV ADD_ID", _binary),
    **rules("MUL_MAT MUL_MAT_ID", _mul_mat),
    **rules("SET CPY DUP CONT", _copy),
    **rules("UPSCALE PAD PAD_REFLECT_1D TIMESTEP_EMBEDDING", ruled.f32_in),
    "ACC": _accumulate,
    "CONCAT": _concat,
    "FLASH_ATTN_EXT": _flash_attn_ext,
    "GET_ROWS": _get_rows,
    "GLU": _glu,
    "SET_ROWS": _set_rows,
    "SUM": lambda t: t.src[0].is_contiguous,
    "UNARY": _unary,
}
