"""Backends for tests: devices of which one can see the whole behaviour."""

from __future__ import annotations

from memplan.ggml.backend import Backend, BufferType
from memplan.ggml.tensor import Tensor


class ToyBuffer(BufferType):
    """Memory that takes a tensor's own bytes."""

    def __init__(self, name: str, is_host: bool = False, alignment: int = 16) -> None:
        self.name = name
        self.is_host = is_host
        self.alignment = alignment

    def alloc_size(self, t: Tensor) -> int:
        return t.nbytes


HOST = ToyBuffer("HOST", is_host=True)


class ToyBackend(Backend):
    """A device that computes all but ``refuses``, reads its own memory, and asks for ops of ``wants``."""

    def __init__(
        self, name: str, buft: BufferType, refuses: frozenset[str] = frozenset(), wants: frozenset[str] = frozenset()
    ) -> None:
        self.name = name
        self.buft = buft
        self.refuses = refuses
        self.wants = wants

    def supports_op(self, t: Tensor) -> bool:
        return t.op not in self.refuses

    def supports_buft(self, buft: BufferType) -> bool:
        return buft is self.buft or (self.buft.is_host and buft.is_host)

    def offload_op(self, t: Tensor) -> bool:
        return t.op in self.wants
