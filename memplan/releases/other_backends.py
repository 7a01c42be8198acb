"""What a release does differently in backends other than CUDA: the little that decides memory, by build.

Kept apart from ``Release``, since most releases change nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from memplan.releases.switches import turned

if TYPE_CHECKING:
    from memplan.releases.switches import Release

FLASH_ATTENTION = frozenset({"FLASH_ATTN_EXT", "MUL_MAT_ID"})
MAY_EXPAND = frozenset({"FLASH_ATTN_EXT", "MUL_MAT", "MUL_MAT_ID", "CUMSUM", "ARGSORT", "TOP_K"})


class VulkanOrder(Enum):
    """The chains of nodes that Vulkan keeps together; each knows those before it."""

    GATINGS = 0
    SQRT_SOFTPLUS = 1
    """A gating by the root of a softplus too."""
    TOP_K = 2
    """A sparse top-k as well; nodes that read through a view what another writes wait for it."""
    NORMS = 3
    """Norms and ropes with what follows."""
    GATES = 4
    """The gates of hyper-connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherBackends:
    """Switches of the Vulkan, Metal, ROCm, SYCL and RPC backends, by default as in the oldest build."""

    metal_indexer: bool = False
    """Metal has the lightning indexer (ggml-metal-device.m: ggml_metal_device_supports_op)."""

    metal_indexer_heads: bool = False
    """It takes any number of heads; before, 64 alone (same function)."""

    metal_hyper_connections: bool = False
    """It has the hyper-connections (same function)."""

    metal_adds_halves: bool = False
    """ADD, SUB, MUL and DIV take f16 with f16; before, f32 with any (same function)."""

    metal_sets_f16_rows: bool = False
    """SET_ROWS writes f16 into f16 (same function)."""

    metal_fusions: bool = False
    """A table says what Metal fuses; what fused kernels read lives until they are done (ggml-metal-fusion.cpp)."""

    metal_attention_f16_copies: bool = False
    """Metal's flash attention keeps room for f16 copies of K and V (ggml-metal.cpp:
    ggml_backend_metal_buffer_type_get_alloc_size)."""

    metal_attention_indices: bool = False
    """It keeps room for the keys that a sparse mask leaves (same function)."""

    metal_expert_scales: bool = False
    """Metal's products of experts keep room for scaling factors (same function)."""

    metal_concat_quantized: bool = False
    """Metal joins quantised tensors, as the keys of a quantised cache are (ggml-metal-device.m:
    ggml_metal_device_supports_op)."""

    vulkan_concat_quantized: bool = False
    """So does Vulkan (ggml-vulkan.cpp: ggml_vk_concat_supported)."""

    vulkan_attends_iq4_nl: bool = False
    """Vulkan's flash attention takes an iq4_nl cache (ggml-vulkan.cpp: ggml_backend_vk_device_supports_op)."""

    vulkan_large_top_k: bool = False
    """Vulkan's TOP_K takes 1024 and more; before, less alone (same function)."""

    vulkan_indexer: bool = False
    """Vulkan has the lightning indexer (same function)."""

    vulkan_hyper_connections: bool = False
    """It has the hyper-connections (same function); v0.4.0 has not, though build 10852 has."""

    vulkan_order: VulkanOrder = VulkanOrder.GATINGS
    """How Vulkan orders nodes (ggml-vulkan.cpp: ggml_vk_graph_optimize)."""

    rocm_sorts: int = 1024
    """The longest rows that ROCm sorts (ggml-cuda.cu: ggml_backend_cuda_device_supports_op, without CUB)."""

    rocm_large_top_k: bool = False
    """Its TOP_K takes rows of any length; before, such as it sorts (same function)."""

    sycl_fused: bool = False
    """SYCL has the lightning indexer and the hyper-connections (ggml-sycl.cpp: ggml_backend_sycl_device_supports_op;
    build 10289 has not, 10306 has)."""

    rpc_events: bool = False
    """RPC devices compute asynchronously and have events, which pipeline parallelism asks for
    (ggml-rpc.cpp: ggml_backend_rpc_device_get_props)."""

    rpc_asks: frozenset[str] = FLASH_ATTENTION
    """Ops whose size an RPC device asks of its server (ggml-rpc.cpp: ggml_backend_rpc_buffer_type_get_alloc_size)."""


SINCE: tuple[tuple[int, Mapping[str, Any]], ...] = (
    (10068, {"metal_sets_f16_rows": True}),
    (10178, {"vulkan_attends_iq4_nl": True}),
    (10199, {"vulkan_concat_quantized": True}),
    (10223, {"vulkan_order": VulkanOrder.SQRT_SOFTPLUS}),
    (10235, {"metal_hyper_connections": True, "metal_adds_halves": True}),
    (10240, {"metal_indexer": True}),
    (10355, {"sycl_fused": True}),
    (10549, {"metal_attention_f16_copies": True}),
    (10662, {"vulkan_indexer": True, "rpc_events": True}),
    (10705, {"rpc_asks": MAY_EXPAND}),
    (10760, {"metal_concat_quantized": True, "vulkan_large_top_k": True, "vulkan_order": VulkanOrder.TOP_K}),
    (10798, {"metal_attention_indices": True}),
    (10852, {"rocm_large_top_k": True}),
    (10909, {"vulkan_hyper_connections": True, "vulkan_order": VulkanOrder.NORMS}),
    (11063, {"metal_expert_scales": True, "metal_fusions": True}),
    (11258, {"vulkan_order": VulkanOrder.GATES}),
    (11434, {"metal_indexer_heads": True, "rocm_sorts": 1 << 14}),
)
"""What each build turned, oldest first."""


BACKENDS = ("metal", "vulkan", "rocm", "sycl", "rpc")
"""Backends of which there are switches, as the names of those begin."""


def switches_of(release: Release, backend: str) -> tuple[object, ...]:
    """The switches of one backend: what ``other_backends`` says of it."""
    switches = other_backends(release)
    return tuple(getattr(switches, f.name) for f in fields(switches) if f.name.startswith(f"{backend}_"))


@lru_cache(maxsize=32)
def other_backends(release: Release) -> OtherBackends:
    """The switches of a release's other backends."""
    return OtherBackends(**turned(SINCE, release.build))
