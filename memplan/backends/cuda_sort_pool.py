"""Scratch of sorts: TOP_K and ARGSORT through CUB.

Follows ggml/src/ggml-cuda/argsort.cu and top-k.cu, read from b9842 to b11434, and CUB's ``DeviceSegmentedSort`` (CCCL
3.1, cub/device/dispatch/dispatch_segmented_sort.cuh), as the releases' own builds are made with it. A build with CCCL
3.2 or newer has a TOP_K of its own, row by row, which takes next to nothing; one with a CCCL before 3.1 takes some KiB
more, for row offsets.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from memplan.backends.cuda_pool_device import NOTHING, PoolDevice
from memplan.ggml.backend import Scratch

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.releases.cuda_pools import PoolRules

CHUNK = 1 << 26
"""Bytes of scores that are sorted at once (argsort_f32_i32_cuda_cub_chunk_nrows)."""

BITONIC = 1024
"""Columns up to which a row is sorted in shared memory."""

KEYS_STEP = 256
"""What caches, and with them the scores' columns, grow by."""

PARTITIONED = 500
"""Rows beyond which CUB sorts its rows by length first."""


def argsort(t: Tensor, device: PoolDevice) -> Scratch:
    """``ggml_cuda_op_argsort``."""
    a = t.src[0]
    return _most(a.ne[0], a.nrows, device.rules, False)


def top_k(t: Tensor, device: PoolDevice) -> Scratch:
    """``ggml_cuda_op_top_k``: all of each row is sorted, beside the result."""
    a = t.src[0]
    return _most(a.ne[0], a.nrows, device.rules, True)


@lru_cache(maxsize=256)
def _most(columns: int, rows: int, rules: PoolRules, top: bool) -> Scratch:
    """The most that sorting took while a cache filled up to ``columns``.

    Chunks hold whole rows: of all widths of which as many rows fit, the widest takes most.
    """
    found = _sort(columns, rows, rules, top)
    while (more := CHUNK // (4 * columns) + 1) <= rows:
        columns = CHUNK // (4 * more) // KEYS_STEP * KEYS_STEP
        if columns == 0:
            break
        found = max(found, _sort(columns, rows, rules, top), key=lambda scratch: scratch.nbytes)
    return found


def _sort(columns: int, rows: int, rules: PoolRules, top: bool) -> Scratch:
    if rows == 0:
        return NOTHING
    chunk = min(rows, max(CHUNK // (4 * columns), 1)) if rules.top_k_in_chunks or not top else rows
    size = 4 * columns * chunk
    pieces = [("sorted rows", size)] if top else []
    if columns > BITONIC:
        pieces += [("indices", size), ("keys", size)]
        if rules.sorted_keys_apart:
            pieces.append(("sorted keys", size))
        pieces.append(("CUB's own", _cub_bytes(size, chunk)))
    return Scratch(tuple(pieces))


def _cub_bytes(size: int, rows: int) -> int:
    """``DeviceSegmentedSort``'s storage: keys and values once more, and row numbers by length; slots of 256 bytes."""
    slots = [size, size]
    if rows > PARTITIONED:
        slots += [4 * rows, 4 * rows, 8]
    return sum([-(-slot // 256) * 256 for slot in slots]) + 255
