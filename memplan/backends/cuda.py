"""The CUDA backend: supported ops, offloaded ops, lifetimes stretched by fusions.

Follows ggml/src/ggml-cuda/ggml-cuda.cu (``ggml_backend_cuda_device_supports_op``, ``..._supports_buft``,
``..._offload_op``), read from b9842 to v0.5.0, as NVIDIA's toolkit 11.7 or newer compiles it (with CUB). No device
counts as integrated: these releases do not either. Ops of other models' training or convolutions are left out.

A new op is one more method, or one more name in ``_ALWAYS``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from memplan.backends import cuda_fusion, cuda_pool, fattn
from memplan.backends.buffers import CudaBuffer
from memplan.backends.cuda_pool_device import pool_device
from memplan.backends.devices import CUDA
from memplan.backends.ruled import (
    FLOATS,
    GLU_KINDS,
    HALVES,
    OFFLOAD_MIN_BATCH,
    Rule,
    all_f32,
    always,
    batch_rows,
    contiguous_rows,
    names,
)
from memplan.ggml.backend import Backend
from memplan.ggml.tensor import contiguous_above
from memplan.gguf.types import BY_NAME, F16, F32, I32, I64, IQ4_NL, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0
from memplan.releases import QuantizedConcat

if TYPE_CHECKING:
    from memplan.backends.devices import Gpu
    from memplan.ggml.backend import BufferType, Optimized, Scratch, Traits
    from memplan.ggml.tensor import Tensor
    from memplan.releases import Release

_K_QUANTS = frozenset(BY_NAME[n] for n in ("q2_K", "q3_K", "q4_K", "q5_K", "q6_K"))
_I_QUANTS = frozenset(
    BY_NAME[n] for n in ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_xs")
)
_LEGACY = frozenset({BY_NAME["q1_0"], BY_NAME["q2_0"], Q4_0, Q4_1, Q5_0, Q5_1, Q8_0})
_Q2_0 = BY_NAME["q2_0"]
_MXFP4, _NVFP4, _Q8_K = BY_NAME["mxfp4"], BY_NAME["nvfp4"], BY_NAME["q8_K"]

MUL_MAT_TYPES = FLOATS | _LEGACY | _K_QUANTS | _I_QUANTS | {IQ4_NL, _MXFP4, _NVFP4, _Q8_K}
"""Types of a matrix that CUDA multiplies by."""

GET_ROWS_TYPES = FLOATS | _LEGACY | _K_QUANTS | _I_QUANTS | {I32}
"""Types whose rows CUDA takes out at any row length."""

_PLAIN_ROWS = FLOATS | {I32, BY_NAME["q1_0"], Q4_0, Q4_1, Q5_0, Q5_1, Q8_0}
_GET_ROWS_OF_256 = frozenset({IQ4_NL, _MXFP4})
_SET_ROWS_TYPES = FLOATS | {Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL}
_COPIES = (
    frozenset((a, b) for a in FLOATS for b in FLOATS)
    | frozenset((F32, t) for t in (Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL, I32))
    | frozenset((t, F32) for t in (Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, I32))
    | {(I32, I32)}
)


_UNARY_KINDS = names(
    "ABS SGN NEG STEP GELU SILU RELU SIGMOID HARDSIGMOID HARDSWISH GELU_ERF GELU_QUICK TANH EXP EXPM1 SOFTPLUS ELU "
    "XIELU FLOOR CEIL ROUND TRUNC"
)

_ALWAYS = names(
    "NONE RESHAPE VIEW PERMUTE TRANSPOSE ADD_ID ADD1 SCALE SQR SQRT SIN COS CLAMP LOG CONT DIAG_MASK_INF SOFT_MAX "
    "TOP_K ARGSORT ARGMAX COUNT_EQUAL PAD UPSCALE PAD_REFLECT_1D ARANGE TIMESTEP_EMBEDDING LEAKY_RELU RWKV_WKV6 "
    "RWKV_WKV7 GATED_LINEAR_ATTN GATED_DELTA_NET CONV_TRANSPOSE_2D POOL_1D POOL_2D FILL CUMSUM TRI "
    "DIAG SOLVE_TRI"
)


class CudaBackend(Backend):
    """CUDA device ``index`` of a rig.

    ``without_ops``: ops, by ggml's names, that the device is made to refuse, as a build without their kernels would.
    """

    def __init__(self, index: int, gpu: Gpu, release: Release, without_ops: frozenset[str] = frozenset()) -> None:
        self.index = index
        self.gpu = gpu
        self.release = release
        self.name = f"{gpu.backend}{index}"
        self.cuda_buft = CudaBuffer(index, gpu, release)
        self.buft = self.cuda_buft
        self._cc = gpu.cc
        self.pool = pool_device(gpu, release)
        self.scratching = self.pool if gpu.backend == CUDA else None
        rules: dict[str, Rule] = dict.fromkeys(_ALWAYS, always)
        rules |= _RULES
        rules["FLASH_ATTN_EXT"] = self._flash_attn_ext
        rules["SUM_ROWS"] = rules["MEAN"] = _sum_rows if release.cuda_sums_strided_rows else _contiguous
        rules["MUL_MAT"] = rules["MUL_MAT_ID"] = partial(_mul_mat, release=release)
        rules["GET_ROWS"] = partial(_get_rows, release=release)
        rules["CONCAT"] = partial(_concat, release=release)
        if not release.cuda_sets_f16_rows:
            rules["SET_ROWS"] = _set_rows_of_f32
        if release.cuda_dups_integers:
            rules["DUP"] = always
        if release.cuda_indexer:
            rules["LIGHTNING_INDEXER"] = partial(_lightning_indexer, keys=release.cuda_indexer_keys)
        for op in without_ops:
            rules.pop(op, None)
        self._rules = rules

    def supports_op(self, t: Tensor) -> bool:
        """Whether all sources are on this device or on none, and there is a kernel for them."""
        for s in t.src:
            buffer = s.buffer
            if buffer is not None:
                buft = buffer.buft
                if isinstance(buft, CudaBuffer) and buft.backend == self.gpu.backend and buft.name != self.name:
                    return False
        rule = self._rules.get(t.op)
        return rule is not None and rule(t)

    def supports_buft(self, buft: BufferType) -> bool:
        """Its own memory alone: neither another GPU's nor pinned host memory."""
        return isinstance(buft, CudaBuffer) and buft.name == self.name

    def offload_op(self, t: Tensor) -> bool:
        """Whether ``t`` has at least 32 rows; for matrix products and rope, at least 32 in the batched dimension."""
        return batch_rows(t) >= OFFLOAD_MIN_BATCH

    def looks_far(self, nodes: list[Tensor]) -> bool:
        """Whether a shared expert moves: nodes of the next layer may stand between it and the routed ones."""
        return cuda_fusion.moves_shared_expert(nodes, self.release)

    @staticmethod
    def traits(t: Tensor) -> Traits:
        """All that decides about fusions."""
        exact, _ = Backend.traits(t)
        return (exact, repr(t.params), *[(s.type.name, s.ne, s.nb) for s in t.src]), ()

    def graph_optimize(self, nodes: list[Tensor], after: Tensor | None = None) -> Optimized:
        """What its fusions change of a split; see ``memplan.backends.cuda_fusion``."""
        return cuda_fusion.graph_optimize(nodes, self.release, after)

    def scratch(self, t: Tensor) -> Scratch:
        """What the host code of ``t`` takes from the device's pool (``memplan.backends.cuda_pool``)."""
        return cuda_pool.scratch(t, self.pool)

    def run_time_bytes(self, most: int, cublas: bool) -> int:
        """The pool, and cuBLAS's workspace."""
        return cuda_pool.pool_bytes(most) + (cuda_pool.workspace_bytes(self.pool) if cublas else 0)

    def _flash_attn_ext(self, t: Tensor) -> bool:
        return fattn.best_kernel(t, self._cc, self.release) != fattn.NONE


def _contiguous(t: Tensor) -> bool:
    return t.src[0].is_contiguous


def _contiguous_sources(t: Tensor) -> bool:
    return t.src[0].is_contiguous and t.src[1].is_contiguous


def _unary(t: Tensor) -> bool:
    return t.kind in _UNARY_KINDS and t.src[0].is_contiguous


def _glu(t: Tensor) -> bool:
    return t.kind in GLU_KINDS and contiguous_above(t.src[0], 1)


def _mul_mat(t: Tensor, release: Release) -> bool:
    if t.params and t.params.get("f32_source"):
        return False
    a, b = t.src[0], t.src[1]
    dense = a.nb[0] == a.type.type_size and b.nb[0] == b.type.type_size
    if release.cuda_multiplies_dense_rows_only and not dense:
        return False
    if b.type is F16 and a.type is not F16:
        return False
    return a.type in MUL_MAT_TYPES and (a.type is not _Q2_0 or release.cuda_q2_0)


def _get_rows(t: Tensor, release: Release) -> bool:
    a = t.src[0]
    if not release.cuda_gets_k_quant_rows:
        return a.type in _PLAIN_ROWS
    return a.type in GET_ROWS_TYPES or (a.type in _GET_ROWS_OF_256 and a.ne[0] % 256 == 0)


def _set_rows_of_f32(t: Tensor) -> bool:
    return t.src[0].type is F32 and t.src[1].type in (I64, I32) and t.type in _SET_ROWS_TYPES


def _set_rows(t: Tensor) -> bool:
    if t.src[0].type is F16:
        return t.src[1].type in (I64, I32) and t.type is F16
    return _set_rows_of_f32(t)


def _set(t: Tensor) -> bool:
    return t.type in (F32, I32) and t.src[0].type is t.type and t.src[1].type is t.type


def _cpy(t: Tensor) -> bool:
    a, b = t.src[0], t.src[1]
    return (a.type, b.type) in _COPIES or (a.type is b.type and a.is_contiguous and b.is_contiguous)


def _dup_of_floats(t: Tensor) -> bool:
    return t.src[0].type.name not in ("i32", "i16")


def _repeat(t: Tensor) -> bool:
    return t.src[0].type in HALVES


def _concat(t: Tensor, release: Release) -> bool:
    a, b = t.src[0], t.src[1]
    type = a.type
    if b.type is not type or t.type is not type:
        return False
    if not type.is_quantized:
        return type.block_size == 1 and type.type_size in (1, 2, 4, 8)
    takes = release.cuda_concat
    if takes is QuantizedConcat.NONE or a.ne[0] % type.block_size or b.ne[0] % type.block_size:
        return False
    if takes is QuantizedConcat.CONTIGUOUS or (t.params or {}).get("dim") == 3:
        return a.is_contiguous and b.is_contiguous
    return _contiguous_to_3(a) and _contiguous_to_3(b)


def _contiguous_to_3(t: Tensor) -> bool:
    """No gaps within the first three dimensions (``ggml_is_contiguous_to_3``)."""
    ne, nb = t.ne, t.nb
    expected = t.type.type_size
    if ne[0] != t.type.block_size and nb[0] != expected:
        return False
    expected *= ne[0] // t.type.block_size
    if ne[1] != 1 and nb[1] != expected:
        return False
    return ne[2] == 1 or nb[2] == expected * ne[1]


def _binary(t: Tensor) -> bool:
    return t.type in HALVES and t.src[0].type in HALVES and t.src[1].type in HALVES


def _rope(t: Tensor) -> bool:
    a = t.src[0]
    return a.nb[0] == a.type.type_size and contiguous_above(a, 2)


def _sum_rows(t: Tensor) -> bool:
    a = t.src[0]
    return a.type is F32 and t.type is F32 and a.is_contiguous_rows


def _ssm_conv(t: Tensor) -> bool:
    return t.src[0].ne[1] % 128 == 0


def _ssm_scan(t: Tensor) -> bool:
    """Mamba 2, which has one decay a head, or Mamba 1."""
    state, decay = t.src[0], t.src[3]
    if decay.ne[0] == 1:
        return state.ne[0] in (128, 256) and state.ne[1] % 16 == 0
    return state.ne[:2] == (16, 1) and state.ne[2] % 128 == 0 and t.src[4].ne[1] == 1


def _lightning_indexer(t: Tensor, keys: frozenset[str]) -> bool:
    """Heads of 128, 32 or 64 of them (lightning-indexer.cu: ``ggml_cuda_lightning_indexer_supported``)."""
    q, k = t.src[0], t.src[1]
    if q.ne[0] != 128 or q.ne[1] not in (64, 32):
        return False
    for s in (q, k):
        if not s.type.is_quantized and not s.nb[1] % 16 == s.nb[2] % 16 == s.nb[3] % 16 == 0:
            return False
    return k.type.name in keys


_RULES: dict[str, Rule] = {
    "UNARY": _unary,
    "GLU": _glu,
    "OUT_PROD": all_f32,
    "SET_ROWS": _set_rows,
    "SET": _set,
    "CPY": _cpy,
    "DUP": _dup_of_floats,
    "REPEAT": _repeat,
    "NORM": contiguous_rows,
    "RMS_NORM": contiguous_rows,
    "L2_NORM": contiguous_rows,
    "GROUP_NORM": _contiguous,
    "SUM": contiguous_rows,
    "ACC": _contiguous_sources,
    "IM2COL": _contiguous_sources,
    "IM2COL_3D": _contiguous_sources,
    "CONV_2D": _contiguous_sources,
    "ADD": _binary,
    "SUB": _binary,
    "MUL": _binary,
    "DIV": _binary,
    "ROPE": _rope,
    "ROPE_BACK": _rope,
    "SSM_CONV": _ssm_conv,
    "SSM_SCAN": _ssm_scan,
    "DSV4_HC_PRE": all_f32,
    "DSV4_HC_COMB": all_f32,
    "DSV4_HC_POST": all_f32,
}

_OF_RELEASE = names("FLASH_ATTN_EXT SUM_ROWS MEAN MUL_MAT MUL_MAT_ID GET_ROWS CONCAT LIGHTNING_INDEXER")

KNOWN_OPS = frozenset(_RULES) | _ALWAYS | _OF_RELEASE
"""Every op that some modelled release of the backend computes, by ggml's name (without ``GGML_OP_``)."""
