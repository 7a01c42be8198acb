"""One device's space while a graph is packed: free blocks, best fit, chunks.

Follows ``ggml_dyn_tallocr_*`` (ggml/src/ggml-alloc.c, v0.5.0).
"""

from __future__ import annotations

from bisect import bisect_left

from memplan.errors import BadHyperParameter
from memplan.ggml.backend import UNLIMITED

MAX_CHUNKS = 16
MAX_FREE_BLOCKS = 256

Address = tuple[int, int]
"""A chunk and the offset in it, bytes."""


class OutOfFreeBlocksError(Exception):
    """More holes than ggml keeps count of: llama.cpp aborts with ``out of free blocks``."""


def beyond_counting() -> BadHyperParameter:
    """The error for a compute buffer of more than 2**62 bytes: none has them, and llama.cpp would count wrongly."""
    return BadHyperParameter(
        "a compute buffer would have more bytes than 62 bits can count; take a smaller -c or -ub, or another model"
    )


class Chunk:
    """One backend buffer in the making: its holes by offset, and how far it was ever filled."""

    __slots__ = ("has_empty", "max_size", "offsets", "sizes")

    def __init__(self, size: int) -> None:
        self.offsets = [0]
        self.sizes = [size]
        self.max_size = 0
        self.has_empty = False

    def free_in_order(self, start: int, size: int) -> None:
        """Give back ``size`` bytes from ``start``, looking at each hole in turn as ggml does.

        A tensor without elements leaves a hole of no bytes, perhaps in the midst of another tensor; from then on a hole
        is joined with the first that it touches, which need not be its neighbour.
        """
        offsets, sizes = self.offsets, self.sizes
        for i, (offset, room) in enumerate(zip(offsets, sizes, strict=True)):
            if offset + room == start:
                sizes[i] += size
                if i + 1 < len(offsets) and offset + sizes[i] == offsets[i + 1]:
                    sizes[i] += sizes[i + 1]
                    del offsets[i + 1], sizes[i + 1]
                return
            if start + size == offset:
                offsets[i] = start
                sizes[i] += size
                if i and offsets[i - 1] + sizes[i - 1] == start:
                    sizes[i - 1] += sizes[i]
                    del offsets[i], sizes[i]
                return
        if len(offsets) >= MAX_FREE_BLOCKS:
            raise OutOfFreeBlocksError("out of free blocks")
        self.has_empty = self.has_empty or not size
        at = next((i for i, offset in enumerate(offsets) if offset >= start), len(offsets))
        offsets.insert(at, start)
        sizes.insert(at, size)


class DynTallocr:
    """Where tensors would lie in buffers of one type; sizes must already be multiples of the alignment."""

    __slots__ = ("chunks", "max_chunk_size")

    def __init__(self, max_chunk_size: int) -> None:
        self.max_chunk_size = min(max_chunk_size, UNLIMITED)
        self.chunks: list[Chunk] = []

    @property
    def filled(self) -> list[int]:
        """Bytes of each chunk."""
        filled = [chunk.max_size for chunk in self.chunks]
        if sum(filled) > UNLIMITED:
            raise beyond_counting()
        return filled

    @property
    def total(self) -> int:
        """Bytes of all chunks (``ggml_gallocr_reserve_n_size``)."""
        return sum(self.filled)

    def alloc(self, size: int) -> Address:
        """Take ``size`` bytes: the tightest hole in any chunk, else the open end that wastes least."""
        chunks = self.chunks
        best_chunk = best_block = -1
        for c, chunk in enumerate(chunks):
            # the best size starts anew with each chunk, so a later chunk's hole wins over an earlier chunk's
            best_size = UNLIMITED
            for i, s in enumerate(chunk.sizes[:-1]):
                if size <= s <= best_size:
                    best_chunk, best_block, best_size = c, i, s
        if best_block < 0:
            best_reuse = -(1 << 63)
            for c, chunk in enumerate(chunks):
                if chunk.sizes:
                    reuse = chunk.max_size - chunk.offsets[-1] - size
                    better = (best_reuse < 0 and reuse > best_reuse) or 0 <= reuse < best_reuse
                    if better and chunk.sizes[-1] >= size:
                        best_chunk, best_block, best_reuse = c, len(chunk.sizes) - 1, reuse
        if best_block < 0:
            best_chunk, best_block = self._new_chunk(size), 0
        chunk = chunks[best_chunk]
        offset = chunk.offsets[best_block]
        left = chunk.sizes[best_block] - size
        if left:
            chunk.offsets[best_block] = offset + size
            chunk.sizes[best_block] = left
        else:
            del chunk.offsets[best_block], chunk.sizes[best_block]
        if offset + size > chunk.max_size:
            chunk.max_size = offset + size
        return best_chunk, offset

    def _new_chunk(self, size: int) -> int:
        n = len(self.chunks)
        if size > UNLIMITED or (n and self.max_chunk_size == UNLIMITED):
            raise beyond_counting()
        if n >= MAX_CHUNKS:
            raise OutOfFreeBlocksError("graph allocation: failed to reserve memory")
        self.chunks.append(Chunk(UNLIMITED if n == MAX_CHUNKS - 1 else max(size, self.max_chunk_size)))
        return n

    def free(self, address: Address, size: int) -> None:
        """Give ``size`` bytes back, joined with the holes beside them."""
        chunk = self.chunks[address[0]]
        start = address[1]
        if not size or chunk.has_empty:
            chunk.free_in_order(start, size)
            return
        end = start + size
        offsets, sizes = chunk.offsets, chunk.sizes
        n = len(offsets)
        i = bisect_left(offsets, start)
        before = i > 0 and offsets[i - 1] + sizes[i - 1] == start
        after = i < n and offsets[i] == end
        if before and after:
            sizes[i - 1] += size + sizes[i]
            del offsets[i], sizes[i]
        elif before:
            sizes[i - 1] += size
        elif after:
            offsets[i] = start
            sizes[i] += size
        else:
            if n >= MAX_FREE_BLOCKS:
                raise OutOfFreeBlocksError("out of free blocks")
            offsets.insert(i, start)
            sizes.insert(i, size)
