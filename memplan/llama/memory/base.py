"""A context's memory: named caches, each a list of tensors that lie on their layers' devices.

Follows ``memory_breakdown`` of src/llama-kv-cache.cpp and its like, v0.5.0.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from memplan.ggml.backend import BufferType
from memplan.ggml.tensor import Shape, new_tensor
from memplan.gguf.types import GGMLType
from memplan.llama.allocation import buffer_bytes


@dataclass(frozen=True, slots=True)
class CacheTensor:
    """One tensor of a cache or state.

    ``role``: what the graph asks for it by on its layer, ``cache_k``.  ``kind``: ``cache`` or ``state``.
    """

    name: str
    type: GGMLType
    ne: Shape
    layer: int
    buft: BufferType
    role: str
    kind: str = "cache"

    @property
    def nbytes(self) -> int:
        """Bytes with padding, in its buffer type."""
        return self.buft.padded_size(new_tensor(self.type, *self.ne))


class Cache(Protocol):
    """One part of a memory, with buffers of its own."""

    @property
    def tensors(self) -> tuple[CacheTensor, ...]:
        """Its tensors in the order they are created."""

    @property
    def shape(self) -> Hashable:
        """All of it that the shapes of a graph depend on."""

    def layer(self, il: int) -> int:
        """The layer whose tensors layer ``il`` uses: its own, or another's that it shares."""


@dataclass(frozen=True)
class Memory:
    """All that a context remembers: ``caches`` by name, in the order they are created."""

    caches: Mapping[str, Cache]

    @cached_property
    def tensors(self) -> tuple[CacheTensor, ...]:
        """Every tensor of it."""
        return tuple([t for cache in self.caches.values() for t in cache.tensors])

    @cached_property
    def context(self) -> Mapping[str, int]:
        """Its bytes by buffer type name, summed buffer by buffer: one for each buffer type of each cache."""
        total: dict[str, int] = {}
        for cache in self.caches.values():
            for buft, size in _by_type(cache.tensors).items():
                total[buft.name] = total.get(buft.name, 0) + size
        return total

    @cached_property
    def shape(self) -> Hashable:
        """All of it that the shapes of a graph depend on."""
        return tuple([(name, cache.shape) for name, cache in self.caches.items()])

    @cached_property
    def _by_role(self) -> Mapping[tuple[str, int], CacheTensor]:
        return {(t.role, t.layer): t for t in self.tensors}

    @cached_property
    def _of_layers(self) -> Mapping[int, tuple[object, ...]]:
        found: dict[int, list[object]] = {}
        for t in self.tensors:
            found.setdefault(t.layer, []).append((t.role, t.type, t.ne))
        return {il: tuple(kinds) for il, kinds in found.items()}

    def tensor(self, role: str, il: int) -> CacheTensor:
        """The tensor that the graph reads and writes as ``role`` on layer ``il``. Raises KeyError if there is none."""
        found = self._by_role.get((role, il))
        if found is None:
            layers = {cache.layer(il) for cache in self.caches.values()}
            found = next((t for at in layers if (t := self._by_role.get((role, at))) is not None), None)
        if found is None:
            raise KeyError(role, il)
        return found

    def kept(self, n_swa: int, n_ctx_seq: int) -> int:
        """Bytes of one sequence that cannot be rolled back, which llama-server keeps of it (``state_write``).

        Those of keys and values within the window, and of recurrent states.
        """
        rows = {name: sum(t.type.row_size(t.ne[0]) for t in cache.tensors) for name, cache in self.caches.items()}
        return rows.get("swa", 0) * min(n_swa, n_ctx_seq) + rows.get("rs", 0)

    def has(self, role: str, il: int) -> bool:
        """Whether layer ``il`` has a tensor ``role``, its own or another layer's."""
        if role not in self._roles:
            return False
        try:
            self.tensor(role, il)
        except KeyError:
            return False
        return True

    @cached_property
    def _roles(self) -> frozenset[str]:
        return frozenset([t.role for t in self.tensors])

    def of_layer(self, il: int) -> tuple[object, ...]:
        """What a layer's own tensors are like."""
        return self._of_layers.get(il, ())


def _by_type(tensors: Iterable[CacheTensor]) -> dict[BufferType, int]:
    sizes: dict[BufferType, list[int]] = {}
    known: dict[tuple[object, ...], int] = {}
    for t in tensors:
        key = (t.buft, t.type, t.ne)
        if key not in known:
            known[key] = t.nbytes
        sizes.setdefault(t.buft, []).append(known[key])
    return {buft: buffer_bytes(buft, of_type) for buft, of_type in sizes.items()}
