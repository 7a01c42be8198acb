"""The backend of each GPU of a rig, and why an answer for it is not exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.backends.buffers import CUDA_HOST, HostBuffer
from memplan.backends.cuda import CudaBackend
from memplan.backends.devices import CUDA, METAL, ROCM, RPC, SYCL, VULKAN, buffer_names, device_names
from memplan.releases.other_backends import other_backends

if TYPE_CHECKING:
    from memplan.backends.devices import Gpu
    from memplan.ggml.backend import Backend, BufferType
    from memplan.releases import Release


MAX_PEERS = 8
"""GPUs that one CUDA device may have as peers on machines without NVSwitch (cudaErrorTooManyPeers)."""

_ROCM_HOST, _SYCL_HOST = HostBuffer("ROCm_Host"), HostBuffer("SYCL_Host")


@dataclass(frozen=True, slots=True)
class Made:
    """A GPU's backend.

    ``host_buft``: its pinned host memory, if any.  ``pipelines``: whether it computes
    asynchronously and has events, as pipeline parallelism needs.
    """

    backend: Backend
    host_buft: BufferType | None
    pipelines: bool = True


def make_backends(gpus: tuple[Gpu, ...], release: Release, without_ops: frozenset[str]) -> tuple[Made, ...]:
    """The backend of each GPU, in order; ``without_ops``: ops that all of them are made to refuse."""
    if all(gpu.backend == CUDA for gpu in gpus):
        return tuple(Made(CudaBackend(i, gpu, release, without_ops), CUDA_HOST) for i, gpu in enumerate(gpus))
    from memplan.backends.metal import MetalBackend
    from memplan.backends.rocm import RocmBackend, SyclBackend
    from memplan.backends.rpc import RpcBackend
    from memplan.backends.vulkan import VulkanBackend, VulkanHost

    kinds = {CUDA: (CudaBackend, CUDA_HOST), ROCM: (RocmBackend, _ROCM_HOST), SYCL: (SyclBackend, _SYCL_HOST)}
    vulkan = next((gpu for gpu in gpus if gpu.backend == VULKAN), None)
    vulkan_host = VulkanHost(vulkan) if vulkan is not None else None
    made = []
    for name, buffer, gpu in zip(device_names(gpus), buffer_names(gpus), gpus, strict=True):
        if gpu.backend == VULKAN:
            made.append(Made(VulkanBackend(name, gpu, release, without_ops), vulkan_host))
        elif gpu.backend == METAL:
            made.append(Made(MetalBackend(name, gpu, release, without_ops), None))
        elif gpu.backend == RPC:
            events = other_backends(release).rpc_events
            made.append(Made(RpcBackend(name, buffer, gpu, release, without_ops), None, events))
        else:
            kind, host = kinds[gpu.backend]
            made.append(Made(kind(int(name.removeprefix(gpu.backend)), gpu, release, without_ops), host))
    return tuple(made)


def approximate(gpus: tuple[Gpu, ...]) -> tuple[str, ...]:
    """Why answers for these GPUs are not exact, a reason a backend; none for CUDA, nor for Vulkan's known drivers."""
    kinds = dict.fromkeys(gpu.backend for gpu in gpus if gpu.backend != CUDA)
    if not kinds:
        return ()
    from memplan.backends import metal, rocm, rpc

    reasons = {
        VULKAN: _assumed(gpus),
        METAL: metal.APPROXIMATE,
        RPC: rpc.APPROXIMATE,
        ROCM: rocm.ROCM_APPROXIMATE,
        SYCL: rocm.SYCL_APPROXIMATE,
    }
    return tuple(reason for kind in kinds if (reason := reasons[kind]))


def _assumed(gpus: tuple[Gpu, ...]) -> str:
    """The Vulkan devices whose driver is not known; empty when there is none."""
    named = zip(device_names(gpus), gpus, strict=True)
    unknown = [(name, gpu) for name, gpu in named if gpu.backend == VULKAN and not gpu.vulkan_limits.known]
    if not unknown:
        return ""
    drivers = " and of ".join(dict.fromkeys(gpu.vulkan_limits.driver for _, gpu in unknown))
    return (
        f"Vulkan: {', '.join(name for name, _ in unknown)} {'is' if len(unknown) == 1 else 'are'} given the limits of"
        f" {drivers}; the whole name that llama.cpp prints tells the driver"
    )


def driver_notes(gpus: tuple[Gpu, ...]) -> tuple[str, ...]:
    """What drivers do: whose limits Vulkan's devices have, as their names tell, and how many GPUs CUDA joins.

    And which size of memory was taken for cards that come in several, first.
    """
    by_driver: dict[str, list[str]] = {}
    for name, gpu in zip(device_names(gpus), gpus, strict=True):
        if gpu.backend == VULKAN and gpu.vulkan_limits.known:
            by_driver.setdefault(gpu.vulkan_limits.driver, []).append(name)
    notes = [*dict.fromkeys(gpu.assumed for gpu in gpus if gpu.assumed)]
    notes += [f"{', '.join(names)}: the limits are those of {driver}" for driver, names in by_driver.items()]
    if sum(gpu.backend == CUDA for gpu in gpus) > MAX_PEERS + 1:
        notes.append(
            f"on some machines a GPU has at most {MAX_PEERS} peers: then more of them in one process cannot copy to one"
            " another directly (GGML_CUDA_P2P); a process drives at most 16 GPUs"
        )
    return tuple(notes)
