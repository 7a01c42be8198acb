"""The machine to plan for: its GPUs and its memory, whether it is there or not."""

from __future__ import annotations

from dataclasses import dataclass, field

from memplan.backends.vulkan_limits import VulkanLimits, limits_of
from memplan.errors import RigError, shown

CUDA = "CUDA"
VULKAN = "Vulkan"
METAL = "MTL"
"""Metal's devices have been called MTL0, MTL1, ... since before the first modelled release."""
RPC = "RPC"

ROCM = "ROCm"
SYCL = "SYCL"

BACKENDS = (RPC, CUDA, ROCM, METAL, SYCL, VULKAN)
"""The backends that there is a plan for, in the order in which llama.cpp lists their devices: servers first, then as it
registers them (src/llama.cpp: llama_prepare_model_devices; ggml/src/ggml-backend-reg.cpp, v0.5.0)."""


_LARGEST = ((1200, 188), (1000, 160), (900, 132), (890, 142), (860, 84), (800, 108), (750, 72), (700, 80), (0, 60))
"""Multiprocessors of the largest card from each compute capability on (NVIDIA's data sheets)."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    ``description``: the device's name as its driver gives it. ``total``, ``free``: bytes, as the backend reports them
    before anything is loaded. ``compute_capability``: (8, 6); None where there is none, but a CUDA device has one.
    ``backend``: the prefix of its device name: ``CUDA``, ``Vulkan``, ``MTL``, ``RPC``. ``integrated``: whether it is to
    llama.cpp a GPU without memory of its own. ``endpoint``: ``HOST:PORT`` of the server that has it (RPC).
    ``bandwidth``: its memory's peak, GB/s, where that was given: plans rank placements by it. ``card``: the name of a
    server's card, where that was given: its ``description`` is the endpoint, as llama.cpp has it. ``limits``: what
    Vulkan's driver says of it, where that was given or assumed; see ``vulkan_limits``. ``sms``: its multiprocessors, 0
    where they are not known. ``assumed``: which of the sizes that its card comes in was taken, where nobody said.
    ``machine``: bytes of the machine's memory, of which its own is a part, where its name says so; 0 where it does not.
    """

    description: str
    total: int
    free: int
    compute_capability: tuple[int, int] | None = None
    backend: str = CUDA
    integrated: bool = False
    endpoint: str = ""
    bandwidth: float | None = None
    card: str = ""
    limits: VulkanLimits | None = None
    sms: int = 0
    assumed: str = field(default="", compare=False)
    machine: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        if self.total <= 0 or not 0 <= self.free <= self.total:
            raise RigError(
                f"GPU {shown(self.description)}: {_memory(self.free, self.total)} free; "
                "total must be positive and free no more than it"
            )
        if self.backend not in BACKENDS:
            raise RigError(f"GPU {shown(self.description)}: no backend {shown(self.backend)} is known")
        if self.compute_capability is None:
            if self.backend == CUDA:
                raise RigError(f"GPU {shown(self.description)}: a CUDA device needs its compute capability, as in 8.6")
            return
        major, minor = self.compute_capability
        if not (1 <= major <= 99 and 0 <= minor <= 9):
            raise RigError(f"GPU {shown(self.description)}: no compute capability {major}.{minor}; write it as 8.6")

    @property
    def vulkan_limits(self) -> VulkanLimits:
        """The limits of its Vulkan driver: those given, else what its name says."""
        return self.limits or limits_of(self.description)

    @property
    def cc(self) -> int:
        """The compute capability as ggml-cuda counts it: 860 for 8.6 (ggml-cuda.cu: ggml_cuda_init); 0 for none."""
        if self.compute_capability is None:
            return 0
        return 100 * self.compute_capability[0] + 10 * self.compute_capability[1]

    @property
    def multiprocessors(self) -> int:
        """Its multiprocessors; where they are not known, those of the largest card of its generation."""
        return self.sms or next(sms for cc, sms in _LARGEST if self.cc >= cc)


@dataclass(frozen=True, slots=True)
class Rig:
    """The GPUs in device order, the host's memory in bytes if it is known, and whether both are one memory.

    ``host_bandwidth``: the host's memory's peak, GB/s, where that was given.
    """

    gpus: tuple[Gpu, ...]
    host_total: int | None = None
    unified: bool = False
    host_bandwidth: float | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """llama.cpp's name for each GPU, counted by backend: ``CUDA0``, ``CUDA1``, ``Vulkan0``."""
        return device_names(self.gpus)

    @property
    def buffer_names(self) -> tuple[str, ...]:
        """The name of each GPU's own buffer type: that of the GPU, or ``RPC0[HOST:PORT]``."""
        return buffer_names(self.gpus)


def _memory(free: int, total: int) -> str:
    """How much of how much, in MiB where both were given so."""
    mib = 1 << 20
    if free % mib or total % mib:
        return f"{free} of {total} bytes"
    return f"{free // mib:,} of {total // mib:,} MiB"


def device_names(gpus: tuple[Gpu, ...]) -> tuple[str, ...]:
    """llama.cpp's name for each GPU."""
    count: dict[str, int] = {}
    names = []
    for gpu in gpus:
        index = count.get(gpu.backend, 0)
        count[gpu.backend] = index + 1
        names.append(f"{gpu.backend}{index}")
    return tuple(names)


def buffer_names(gpus: tuple[Gpu, ...]) -> tuple[str, ...]:
    """The name of each GPU's own buffer type; a server counts its devices from 0 (ggml_backend_rpc_buffer_type)."""
    names = list(device_names(gpus))
    count: dict[str, int] = {}
    for i, gpu in enumerate(gpus):
        if gpu.endpoint:
            index = count.get(gpu.endpoint, 0)
            count[gpu.endpoint] = index + 1
            names[i] = f"RPC{index}[{gpu.endpoint}]"
    return tuple(names)


def in_device_order(gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """GPUs as llama.cpp would list them: by backend, each backend's in the order given.

    Raises RigError for backends that no one build of llama.cpp has together.
    """
    kinds = {gpu.backend for gpu in gpus}
    if METAL in kinds and kinds - {METAL, RPC}:
        raise RigError("Metal and other GPUs: a Mac has Metal alone; another machine's GPU is rpc:HOST:PORT:TOTAL_MIB")
    if len(kinds) < 2 and RPC not in kinds:
        return gpus
    ordered = sorted(gpus, key=lambda gpu: BACKENDS.index(gpu.backend))
    servers = [gpu for gpu in ordered if gpu.backend == RPC]
    first = list(dict.fromkeys(gpu.endpoint for gpu in servers))  # a server's devices come together
    servers.sort(key=lambda gpu: first.index(gpu.endpoint))
    return (*servers, *ordered[len(servers) :])
