"""The machine to plan for: its GPUs and its memory, whether it is there or not."""

from __future__ import annotations

from dataclasses import dataclass

from memplan.errors import RigError, shown


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    ``description``: the device's name as its driver gives it. ``total``, ``free``: bytes, as the backend reports them
    before anything is loaded. ``compute_capability``: (8, 6). ``backend``: the prefix of its device name, ``CUDA``.
    """

    description: str
    total: int
    free: int
    compute_capability: tuple[int, int]
    backend: str = "CUDA"

    def __post_init__(self) -> None:
        major, minor = self.compute_capability
        if self.total <= 0 or not 0 <= self.free <= self.total:
            raise RigError(
                f"GPU {shown(self.description)}: {self.free} of {self.total} bytes free; "
                "total must be positive and free no more than it"
            )
        if not (1 <= major <= 99 and 0 <= minor <= 9):
            raise RigError(f"GPU {shown(self.description)}: no compute capability {major}.{minor}; write it as 8.6")

    @property
    def cc(self) -> int:
        """The compute capability as ggml-cuda counts it: 860 for 8.6 (ggml-cuda.cu: ggml_cuda_init)."""
        return 100 * self.compute_capability[0] + 10 * self.compute_capability[1]


@dataclass(frozen=True, slots=True)
class Rig:
    """The GPUs in device order, the host's memory in bytes if it is known, and whether both are one memory."""

    gpus: tuple[Gpu, ...]
    host_total: int | None = None
    unified: bool = False
