"""The Vulkan backend: its buffers, what it computes and, by ``vulkan_order``, in which order.

Follows ggml/src/ggml-vulkan/ggml-vulkan.cpp (``ggml_backend_vk_device_supports_op``, ``..._offload_op``,
``ggml_backend_vk_buffer_type_get_max_size``), v0.5.0; older releases as ``other_backends`` says. Of the driver,
``vulkan_limits`` knows what differs; taken for granted, as any card of the last years has it: subgroup shuffles and
votes, full subgroups of 16 lanes, Vulkan's memory model, 32 KiB of shared memory. Not modelled: the buffers that
kernels take for themselves at run time.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import TYPE_CHECKING

from memplan.backends import ruled, vulkan_order
from memplan.backends.buffers import HostBuffer
from memplan.backends.ruled import CACHED, GLU_KINDS, HALVES, SMALL_BITS, Rule, RuledBackend, rules
from memplan.ggml.backend import BufferType
from memplan.gguf.types import BF16, BY_NAME, F16, F32, I32, I64, IQ4_NL
from memplan.releases.other_backends import other_backends

if TYPE_CHECKING:
    from memplan.backends.devices import Gpu
    from memplan.ggml.backend import Optimized, Traits
    from memplan.ggml.tensor import Tensor
    from memplan.releases import Release

_kinds: dict[tuple[object, ...], int] = {}
"""Devices that compute the same, numbered."""

_TOP_K_LIMIT = 1024  # there was a shader for each power of two below num_topk_pipelines = 11

_WORKGROUP = 1024  # maxComputeWorkGroupInvocations
_SHARED_MEMORY = 32 << 10  # maxComputeSharedMemorySize; bytes that no driver named in vulkan_limits stays below

_UNARY_KINDS = ruled.names(
    "EXP EXPM1 ELU GELU GELU_ERF GELU_QUICK SILU RELU XIELU NEG TANH SIGMOID HARDSIGMOID HARDSWISH ABS SOFTPLUS STEP "
    "ROUND CEIL FLOOR TRUNC SGN"
)
_OTHER_MATRICES = ruled.names(
    "q2_K q3_K q4_K q5_K q6_K iq1_s iq1_m iq2_xxs iq2_xs iq2_s iq3_xxs iq3_s iq4_xs mxfp4 nvfp4 tq1_0 tq2_0"
)
_MATRIX_TYPES = CACHED | SMALL_BITS | {BY_NAME[name] for name in _OTHER_MATRICES}
_WRITTEN = CACHED | SMALL_BITS


class VulkanBuffer(BufferType):
    """Memory of one Vulkan device, ``Vulkan0``, ...: a tensor takes its own bytes, a buffer at most 1 GiB."""

    def __init__(self, name: str, gpu: Gpu) -> None:
        self.name = name
        self.alignment = gpu.vulkan_limits.align
        self.max_size = gpu.vulkan_limits.max_block

    @property
    def sizing(self) -> Hashable:
        """All Vulkan memory sizes alike."""
        return VulkanBuffer, self.alignment

    def alloc_size(self, t: Tensor) -> int:
        """``ggml_nbytes`` (ggml_backend_vk_buffer_type_get_alloc_size)."""
        return t.nbytes


class VulkanHost(HostBuffer):
    """Pinned memory, ``Vulkan_Host``: one type for all Vulkan devices, with the first one's limits."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__("Vulkan_Host")
        self.alignment = gpu.vulkan_limits.map_align
        self.max_size = gpu.vulkan_limits.max_block

    @property
    def sizing(self) -> Hashable:
        """The host's sizes, otherwise aligned."""
        return VulkanHost, self.alignment


class VulkanBackend(RuledBackend):
    """One Vulkan device; ``without_ops``: ops that it is made to refuse."""

    def __init__(self, name: str, gpu: Gpu, release: Release, without_ops: frozenset[str] = frozenset()) -> None:
        own = dict(_RULES)
        limits = gpu.vulkan_limits
        switches = other_backends(release)
        self.order = vulkan_order.RULES[switches.vulkan_order]
        if not switches.vulkan_concat_quantized:
            own["CONCAT"] = _concat_unquantised
        if not switches.vulkan_attends_iq4_nl:
            own["FLASH_ATTN_EXT"] = _flash_attn_ext_without_iq4_nl
        if not switches.vulkan_large_top_k:
            own["TOP_K"] = _small_top_k
        if switches.vulkan_indexer and limits.fp16:
            own["LIGHTNING_INDEXER"] = partial(_lightning_indexer, align=limits.align)
        if switches.vulkan_hyper_connections:
            own["DSV4_HC_COMB"] = ruled.all_f32
            own["DSV4_HC_PRE"] = partial(_hyper_connection, source=0)
            own["DSV4_HC_POST"] = partial(_hyper_connection, source=1)
        super().__init__(name, VulkanBuffer(name, gpu), own, without_ops)
        self.max_tensor = limits.max_tensor
        kind = limits.max_tensor, limits.align, limits.fp16, switches, without_ops
        self.computing = VulkanBackend, _kinds.setdefault(kind, len(_kinds))

    def supports_op(self, t: Tensor) -> bool:
        """Whether no tensor is too large for a buffer, and there is a shader for ``t``."""
        most = self.max_tensor
        if not _fits(t, most) or not all(_fits(s, most) for s in t.src):
            return False
        return super().supports_op(t)

    @staticmethod
    def traits(t: Tensor) -> Traits:
        """What the order of nodes goes by; see ``memplan.backends.vulkan_order``."""
        return vulkan_order.traits(t)

    def looks_far(self, nodes: list[Tensor]) -> bool:
        """Always: it moves nodes over twenty others."""
        return True

    def graph_optimize(self, nodes: list[Tensor], after: Tensor | None = None) -> Optimized:
        """A new order, and the lifetimes that fusions stretch; see ``memplan.backends.vulkan_order``."""
        return vulkan_order.graph_optimize(nodes, self.order)

    def offload_op(self, t: Tensor) -> bool:
        """Whether ``t`` has at least 32 rows in the batched dimension."""
        return ruled.batch_rows(t) >= ruled.OFFLOAD_MIN_BATCH


def _fits(t: Tensor, most: int) -> bool:
    """Whether ``t`` has at most so many bytes; the sum is never less than them, and quicker."""
    ne, nb = t.ne, t.nb
    return ne[0] * nb[0] + ne[1] * nb[1] + ne[2] * nb[2] + ne[3] * nb[3] <= most or t.nbytes <= most


def _unary(t: Tensor) -> bool:
    return t.kind in _UNARY_KINDS and ruled.same_halves(t)


def _glu(t: Tensor) -> bool:
    return t.kind in GLU_KINDS and ruled.same_halves(t) and all(s.type is t.type for s in t.src)


def _dense(t: Tensor) -> bool:
    """Rows side by side, and what is above them in order (``ggml_vk_dim01_contiguous``)."""
    ne, nb = t.ne, t.nb
    rows = nb[0] == t.type.type_size and nb[1] == nb[0] * ne[0] // t.type.block_size
    return rows and (ne[3] == 1 or nb[3] == nb[2] * ne[2])


def _mul_mat(t: Tensor) -> bool:
    a, b = t.src[0], t.src[1]
    if t.params and t.params.get("f32_source"):
        return False
    if a.type not in _MATRIX_TYPES or (t.src[2] if t.op == "MUL_MAT_ID" else a).ne[3] != b.ne[3]:
        return False
    if not (a.type in ruled.FLOATS or _dense(a)) or not (b.type in HALVES or _dense(b)):
        return False
    return not (a.type is BF16 and b.type is F16)


def _flash_attn_ext(t: Tensor) -> bool:
    q, k, v = t.src[0], t.src[1], t.src[2]
    if k.ne[0] % 8 or v.ne[0] % 8 or q.type is not F32 or t.type is not F32:
        return False
    if k.type not in CACHED or v.type not in CACHED or (k.type is BF16) != (v.type is BF16):
        return False
    params = t.params or {}
    if params.get("mask") and t.src[3].type is not F16:
        return False
    return not params.get("sinks") or t.src[-1].type is F32


def _flash_attn_ext_without_iq4_nl(t: Tensor) -> bool:
    return _flash_attn_ext(t) and IQ4_NL not in (t.src[1].type, t.src[2].type)


def _get_rows(t: Tensor) -> bool:
    return t.src[0].type in _MATRIX_TYPES or t.src[0].type is I32


def _set_rows(t: Tensor) -> bool:
    return t.src[0].type in HALVES and t.src[1].type in (I32, I64) and t.type in _WRITTEN


def _copy(t: Tensor) -> bool:
    a = t.src[0]
    to = t.src[1].type if len(t.src) > 1 else a.type
    if (a.type is F32 and (to in _WRITTEN or to is I32)) or (to is F32 and (a.type in _WRITTEN or a.type is I32)):
        return True
    return a.type is to and a.type.type_size % 2 == 0 and (not to.is_quantized or (a.is_contiguous and t.is_contiguous))


def _repeat(t: Tensor) -> bool:
    return t.type.type_size == t.src[0].type.type_size and t.type.type_size in (2, 4)


def _rope(t: Tensor) -> bool:
    return t.is_contiguous_rows and t.src[0].is_contiguous_rows


def _binary(t: Tensor) -> bool:
    return t.type in HALVES and t.src[0].type in HALVES and t.src[1].type in HALVES


def _sorted(t: Tensor) -> bool:
    return t.is_contiguous and t.src[0].is_contiguous


def _small_top_k(t: Tensor) -> bool:
    return _sorted(t) and t.ne[0] < _TOP_K_LIMIT


def _set(t: Tensor) -> bool:
    return t.type in (F32, I32) and t.src[0].type is t.type and t.src[1].type is t.type


def _concat(t: Tensor) -> bool:
    type = t.type
    if any(s.type is not type for s in t.src):
        return False
    if not type.is_quantized:
        return type.type_size in (1, 2, 4, 8)
    return t.is_contiguous_rows and all(s.is_contiguous_rows for s in t.src)


def _concat_unquantised(t: Tensor) -> bool:
    return not t.type.is_quantized and _concat(t)


def _soft_max(t: Tensor) -> bool:
    mask = (t.params or {}).get("mask")
    return ruled.f32_contiguous(t) and (not mask or t.src[1].type in HALVES)


def _sum_rows(t: Tensor) -> bool:
    return t.src[0].type is F32 and t.src[0].is_contiguous_rows


def _norm(t: Tensor) -> bool:
    return t.src[0].type is F32 and t.type is F32


def _of_halves(t: Tensor) -> bool:
    return t.type in HALVES


def _lightning_indexer(t: Tensor, align: int) -> bool:
    q, k = t.src[0], t.src[1]
    if k.type not in CACHED or q.ne[0] != 128 or len(t.src) < 4:
        return False
    for s in (*t.src, t):
        size = s.type.type_size
        if s.nb[0] != size or any(n % size for n in s.nb[1:]) or s.view_offs % align:
            return False
    return True


def _ssm_scan(t: Tensor) -> bool:
    state, a, ids = t.src[0], t.src[3], t.src[6]
    if any(s.type.is_quantized for s in t.src[:6]) or ids.type is not I32 or not ruled.f32_in(t) or t.type is not F32:
        return False
    return a.nb[1] == F32.type_size and state.ne[0] in (128, 256) and state.ne[1] % 16 == 0


def _gated_delta_net(t: Tensor) -> bool:
    return t.src[2].ne[0] in (16, 32, 64, 128) and ruled.all_f32(t)


def _solve_tri(t: Tensor) -> bool:
    n, k = t.src[0].ne[0], t.src[1].ne[0]
    return t.type is F32 and ruled.f32_in(t) and k <= _WORKGROUP and F32.type_size * (n + k) <= _SHARED_MEMORY


def _hyper_connection(t: Tensor, source: int) -> bool:
    return ruled.all_f32(t) and t.src[source].ne[1] == 4


_RULES: dict[str, Rule] = {
    **rules("NONE RESHAPE VIEW PERMUTE TRANSPOSE RMS_NORM ROPE_BACK RWKV_WKV6 RWKV_WKV7", ruled.always),
    **rules("SQR SQRT SIN COS CLAMP LEAKY_RELU LOG TRI DIAG", ruled.same_halves),
    **rules("SCALE DIAG_MASK_INF ARGMAX POOL_1D POOL_2D", ruled.f32_contiguous),
    **rules("UPSCALE PAD PAD_REFLECT_1D ROLL TIMESTEP_EMBEDDING", ruled.f32_in),
    **rules("ADD SUB MUL DIV", _binary),
    **rules("MUL_MAT MUL_MAT_ID", _mul_mat),
    **rules("CONT CPY DUP", _copy),
    **rules("ARGSORT TOP_K", _sorted),
    **rules("SUM SUM_ROWS MEAN CUMSUM", _sum_rows),
    **rules("NORM L2_NORM", _norm),
    "ARANGE": lambda t: t.type is F32,
    "FILL": _of_halves,
    "ACC": ruled.all_f32,
    "ADD_ID": lambda t: t.type is F32 and t.src[0].type is F32 and t.src[1].type is F32 and t.src[2].type is I32,
    "CONCAT": _concat,
    "FLASH_ATTN_EXT": _flash_attn_ext,
    "GATED_DELTA_NET": _gated_delta_net,
    "GET_ROWS": _get_rows,
    "GLU": _glu,
    "GROUP_NORM": lambda t: t.src[0].is_contiguous,
    "REPEAT": _repeat,
    "ROPE": _rope,
    "SET": _set,
    "SET_ROWS": _set_rows,
    "SOFT_MAX": _soft_max,
    "SOLVE_TRI": _solve_tri,
    "SSM_CONV": ruled.f32_in,
    "SSM_SCAN": _ssm_scan,
    "UNARY": _unary,
}
