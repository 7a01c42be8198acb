"""Bytes of the buffers that hold tensors which exist before any graph: weights, caches, states."""

from __future__ import annotations

from collections.abc import Iterable

from memplan.ggml.backend import BufferType


def buffer_bytes(buft: BufferType, sizes: Iterable[int]) -> int:
    """Bytes of the buffers that hold tensors of these allocation sizes, in order, all of type ``buft``.

    Each tensor is padded to the type's alignment, and none is split between buffers
    (ggml/src/ggml-alloc.c: ``ggml_backend_alloc_ctx_tensors_from_buft_impl``, v0.5.0).
    """
    return sum(buffer_chunks(buft, sizes))


def buffer_chunks(buft: BufferType, sizes: Iterable[int]) -> list[int]:
    """The same, buffer by buffer: a new one begins where a tensor would take the last one over ``max_size``."""
    chunks: list[int] = []
    current = 0
    mask = buft.alignment - 1
    for size in sizes:
        padded = (size + mask) & ~mask
        if current > 0 and current + padded > buft.max_size:
            chunks.append(current)
            current = 0
        current += padded
    if current > 0:
        chunks.append(current)
    return chunks
