"""CUDA's flash attention: which kernel serves an op, and the bytes that kernel needs behind its result.

Follows ggml/src/ggml-cuda/fattn.cu (``ggml_cuda_get_best_fattn_kernel``, ``ggml_cuda_flash_attn_ext_get_alloc_size``)
and fattn-common.cuh (``ggml_cuda_flash_attn_ext_get_f16_extra_data``), read from b9842 to v0.5.0.

A library compiled without a device's own architecture can choose another kernel, but never refuse an op that it would
take. The bytes are the same with each for heads over 256 and for prompts, whose graph is the larger; only one or two
tokens with a quantised cache and heads of 64, 128 or 256 can differ. So the device alone counts here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.gguf.types import BF16, F16, F32, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, GGMLType

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.releases import Release

NONE, TILE, VEC, MMA = "none", "tile", "vec", "mma"

VOLTA, TURING, ADA = 700, 750, 890

KQ_STRIDE = 256
"""Keys must come in multiples of this for most fast paths (FATTN_KQ_STRIDE)."""

_SAME_HEADS = frozenset({40, 64, 72, 80, 96, 112, 128, 256})
# K head size: V head size, and what the query heads a key must be a multiple of; all need the grouped-query path
_GROUPED_HEADS = {192: (128, 8), 320: (256, 32), 512: (512, 1), 576: (512, 1)}

_ANY_TYPES = frozenset({F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0})
_PLAIN_TYPES = frozenset({F32, F16, BF16, Q4_0, Q8_0})
# K/V pairs with a vector kernel in a default build (GGML_CUDA_FA_QUANTS); f32 is served as f16
_VEC_PAIRS = frozenset({(F16, F16), (BF16, BF16), (Q4_0, Q4_0), (Q8_0, Q8_0)})


def best_kernel(t: Tensor, cc: int, release: Release) -> str:
    """The kernel for FLASH_ATTN_EXT on a device of compute capability ``cc`` (860 for 8.6); NONE if there is none."""
    q, k, v = t.src[0], t.src[1], t.src[2]
    params = t.params or {}
    mask = t.src[3] if params.get("mask") else None
    q_head, k_head, v_head = q.ne[0], k.ne[0], v.ne[0]
    group = q.ne[2] // k.ne[2]
    grouped = group >= 2 and mask is not None and not params.get("max_bias") and k.ne[1] % KQ_STRIDE == 0
    grouped = grouped and all(_aligned(x) for x in (q, k, v, mask) if x is not None)

    if k_head in _SAME_HEADS:
        if v_head != k_head:
            return NONE
    elif k_head in _GROUPED_HEADS:
        head, multiple = _GROUPED_HEADS[k_head]
        if v_head != head or not grouped or group % multiple:
            return NONE
    else:
        return NONE
    if release.cuda_fa_mixed_types:
        if k.type not in _ANY_TYPES or v.type not in _ANY_TYPES:
            return NONE
    elif k.type is not v.type or k.type not in _PLAIN_TYPES:
        return NONE
    if mask is not None and mask.ne[2] != 1:
        return NONE

    vec = q_head <= 256 and q_head % 64 == 0 and q_head != 192 and k.ne[1] % KQ_STRIDE == 0
    quantized = k.type.is_quantized or v.type.is_quantized
    tokens = q.ne[1]
    tensor_cores = q_head not in (40, 72)
    if cc >= TURING and tensor_cores:
        return VEC if vec and _turing_vec(t, cc, release, group, grouped, quantized) else MMA
    if VOLTA <= cc < TURING and tensor_cores:
        columns = tokens * _shared_heads(group, q_head)
        if vec and columns <= 2:
            return VEC
        return TILE if columns <= 16 else MMA
    if vec and (tokens <= 2 if quantized else tokens == 1 and not grouped):
        return VEC
    return TILE


def _aligned(t: Tensor) -> bool:
    nb = t.nb
    return t.type.is_quantized or nb[1] % 16 == nb[2] % 16 == nb[3] % 16 == 0


def _shared_heads(group: int, q_head: int) -> int:
    """Query heads that one tile can share: the largest power of two dividing ``group``, up to the kernel's limit."""
    limit = 32 if q_head == 320 else 16 if q_head in (576, 192) else 8
    return min(group & -group, limit)


def _turing_vec(t: Tensor, cc: int, release: Release, group: int, grouped: bool, quantized: bool) -> bool:
    """Whether a device with tensor cores still prefers the vector kernel, for a small batch."""
    q, k = t.src[0], t.src[1]
    tokens = q.ne[1]
    if quantized:
        if tokens <= (2 if cc >= ADA else 1):
            return True
    elif cc >= ADA and tokens == 1 and q.ne[3] == 1:
        many = group > 4 and (k.ne[1] >= 8192 or (release.cuda_fa_mma_decode and q.ne[0] >= 256))
        sparse = release.cuda_fa_mma_decode and grouped and group > 4 and _sparse(t)
        if not many and not sparse:
            return True
    return not grouped and tokens == 1


def _sparse(t: Tensor) -> bool:
    """Whether one-token attention gathers only the keys its mask leaves (``..._shall_use_sparse``, 1 and 8 columns)."""
    q, k, v = t.src[0], t.src[1], t.src[2]
    params = t.params or {}
    n_kv_max = params.get("n_kv_max", 0)
    if k.ne[0] != 256 or v.ne[0] != 256 or not params.get("mask") or not isinstance(n_kv_max, int) or n_kv_max <= 0:
        return False
    mask = t.src[3]
    if params.get("max_bias") or params.get("logit_softcap"):
        return False
    fits = mask.ne[0] == k.ne[1] and mask.ne[1] >= q.ne[1] and mask.ne[2] == 1
    return fits and k.ne[1] >= max(4096, 2 * min(q.ne[1], 8) * n_kv_max)


def alloc_size(t: Tensor, cc: int, release: Release) -> int:
    """Bytes of the result, and of the f16 copies of K and V that the chosen kernel makes behind it.

    K and V that are views of the same data, as DeepSeek-V4's are, share one copy.
    """
    k, v = t.src[1], t.src[2]
    kernel = best_kernel(t, cc, release)
    if kernel == NONE:
        return t.nbytes
    if kernel == VEC:
        pair = (_as_f16(k.type), _as_f16(v.type))
        converts = pair not in _VEC_PAIRS
        copy_k, copy_v = converts or k.type is F32, converts or v.type is F32
    else:
        copy_k = copy_v = True
    end = t.nbytes
    if copy_k and k.type is not F16:
        end = _pad(end) + 2 * k.nelements
    if copy_v and v.type is not F16 and not _v_is_k(k, v):
        end = _pad(end) + 2 * v.nelements
    return end


def _as_f16(type: GGMLType) -> GGMLType:
    return F16 if type is F32 else type


def _pad(size: int) -> int:
    return (size + 127) & ~127


def _v_is_k(k: Tensor, v: Tensor) -> bool:
    base = v.view_src
    return base is not None and (base is k or (base is k.view_src and v.view_offs == k.view_offs))
