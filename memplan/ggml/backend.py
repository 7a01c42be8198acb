"""What the scheduler and the allocator ask of a backend.

Follows ``ggml_backend_device_i``, ``ggml_backend_buffer_type_i`` and ``ggml_backend_i``
(ggml/src/ggml-backend-impl.h, v0.5.0) as far as memory planning needs them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor

UNLIMITED = 1 << 62
"""A buffer type's ``max_size`` when the backend sets none (ggml clamps SIZE_MAX in the same way)."""


class BufferType(ABC):
    """A kind of memory, compared by identity as ggml compares pointers.

    Attributes:
        name: as llama.cpp prints it: ``CUDA0``, ``CUDA_Host``, ``CPU``, ``CPU_REPACK``.
        alignment: bytes, a power of two.  max_size: the largest single buffer, bytes.
        is_host: whether the CPU can read it (``ggml_backend_buft_is_host``).
    """

    name: str
    alignment: int
    max_size: int = UNLIMITED
    is_host: bool = False

    @abstractmethod
    def alloc_size(self, t: Tensor) -> int:
        """Bytes to set aside for ``t``, before alignment (``get_alloc_size``)."""

    def padded_size(self, t: Tensor) -> int:
        """Bytes that ``t`` takes in a buffer: those to set aside, aligned (``GGML_PAD``)."""
        mask = self.alignment - 1
        return (self.alloc_size(t) + mask) & ~mask

    @property
    def sizing(self) -> Hashable:
        """What ``alloc_size`` depends on beside the tensor: types with equal ``sizing`` set aside the same bytes."""
        return self

    def __repr__(self) -> str:
        return f"<buffer type {self.name}>"


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Where a tensor that exists before the graph lies; ``weights`` marks model weights (usage WEIGHTS)."""

    buft: BufferType
    weights: bool = False


Optimized: TypeAlias = "tuple[list[Tensor], list[tuple[Tensor, Tensor]]]"
"""A split's nodes in the order in which they are computed, and lifetimes to stretch: (tensor, the node it outlives)."""


Traits: TypeAlias = "tuple[Hashable, tuple[Hashable, ...]]"
"""What of a tensor matters as it is, and what matters only for whether others have the same."""

SCRATCH_OPS = frozenset(
    {"MUL_MAT", "MUL_MAT_ID", "FLASH_ATTN_EXT", "TOP_K", "ARGSORT", "SSM_SCAN", "SOLVE_TRI", "OUT_PROD"}
)
"""Ops for which some backend takes scratch that counts."""

ALIGNMENT = 128
"""What each piece of scratch is rounded up to (``ggml_cuda_pool_vmm::alloc``)."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """What one op's host code holds at run time: pieces, each with what it is for and its bytes.

    ``cublas``: whether it goes through cuBLAS, whose workspace is taken once for all.
    """

    pieces: tuple[tuple[str, int], ...] = ()
    cublas: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces at once, each rounded up."""
        return sum([-(-size // ALIGNMENT) * ALIGNMENT for _, size in self.pieces])


class Backend(ABC):
    """One device as the scheduler sees it.

    Attributes:
        name: ``CUDA0``, ``CPU``.  buft: the type its compute buffer is taken from.
        scratching: what ``scratch`` depends on beside the tensor; None where run-time scratch is not modelled.
        computing: what ``supports_op`` depends on beside the tensor, where no device's memory plays a part: backends
            that are equal in it are asked once; None where they differ.
    """

    name: str
    buft: BufferType
    computing: Hashable = None
    scratching: Hashable = None

    @abstractmethod
    def supports_op(self, t: Tensor) -> bool:
        """Whether the device can compute ``t`` (``supports_op``)."""

    @abstractmethod
    def supports_buft(self, buft: BufferType) -> bool:
        """Whether the device can read tensors in ``buft`` (``supports_buft``)."""

    def offload_op(self, t: Tensor) -> bool:
        """Whether the device asks for ``t`` although its weight lies on the host (``offload_op``)."""
        return False

    def graph_optimize(self, nodes: list[Tensor], after: Tensor | None = None) -> Optimized:
        """What the backend makes of one split (``graph_optimize``); ``after`` is the node that follows the split.

        ``nodes`` read the scheduler's copies already; their ``uses`` are those of the whole graph before that. The
        list itself is not to be changed.
        """
        return nodes, []

    @staticmethod
    def traits(t: Tensor) -> Traits:
        """What of ``t``, beside sources, views and flags, ``graph_optimize`` goes by; asked where it looks far."""
        return (t.op, t.kind, t.type.name, t.ne, t.nb, t.view_offs), ()

    def looks_far(self, nodes: list[Tensor]) -> bool:
        """Whether what ``graph_optimize`` makes of a layer's ``nodes`` may depend on nodes of other layers among them.

        It is then given whole splits, where else the answer for one stretch of a layer would hold for all like it.
        """
        return False

    def scratch(self, t: Tensor) -> Scratch:
        """What computing ``t`` takes at run time beside the compute buffer; see ``scratching``."""
        return Scratch()

    def run_time_bytes(self, most: int, cublas: bool) -> int:
        """Bytes that the device takes for all ops together, if one op held ``most`` at once."""
        return most
