"""Scratch of flash attention: what blocks that share a tile leave for one another, and lists of keys.

Follows ggml/src/ggml-cuda/fattn-common.cuh (``launch_fattn``), fattn.cu (``ggml_cuda_flash_attn_ext_mma_f16``,
``..._shall_use_sparse``), fattn-mma-f16.cuh, fattn-tile.cuh and fattn-vec.cuh, read from b9842 to b11434.

How many blocks a multiprocessor holds at once is up to the compiled kernel, and CUDA says it at run time only. Here it
is one, as for the kernels of large batches with heads of 512 and over; with smaller heads it can be two, and this
scratch, some MiB, twice as much. f16 copies of K and V lie behind the result, in the compute buffer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.backends import fattn
from memplan.backends.cuda_pool_device import PoolDevice
from memplan.ggml.backend import Scratch
from memplan.releases.cuda_pools import SparseAttention

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.releases.cuda_pools import PoolRules

KQ_STRIDE = fattn.KQ_STRIDE
VOLTA, TURING, AMPERE, ADA = fattn.VOLTA, fattn.TURING, 800, fattn.ADA
BLACKWELL, SPARK = 1200, 1210

_BY_QUERY = frozenset({(512, 1, 8), (576, 1, 16)})
_BY_TILE = _BY_QUERY | {(256, 1, 8), (256, 8, 8)}


def flash_attention(t: Tensor, device: PoolDevice) -> Scratch:
    """The scratch of the kernel that serves ``t``.

    Where keys are gathered, the same op attended to all of them while its cache was shorter: the larger counts.
    """
    kernel = fattn.best_kernel(t, device.cc, device.release)
    q = t.src[0]
    if kernel == fattn.VEC:
        columns = min(q.ne[1], 2)
        return _launch(t, device, columns, 1, q.ne[0], shares=False)
    if kernel == fattn.TILE:
        heads = _tile_heads(t)
        most = 32 if q.ne[0] <= 256 else 16
        columns = next((n for n in (2, 4, 8, 16, 32) if n >= heads and q.ne[1] <= n // heads), most)
        return _launch(t, device, max(1, min(columns, most) // heads), heads, 32, shares=False)
    if kernel != fattn.MMA:
        return Scratch()
    heads = _mma_heads(t, device)
    dense_columns = _mma_columns(t, device, heads)
    dense = _launch(t, device, dense_columns, heads, _keys_at_once(t, dense_columns * heads, device), shares=True)
    rules = device.rules
    found = [dense]
    wide = rules.sparse_attention is SparseAttention.BY_TILE and q.ne[0] == 256 and heads == 8
    for columns in (1, 64 // heads):
        if columns == 1 and wide and q.ne[1] > 32 // heads:
            continue
        if columns > 1 and columns != dense_columns:
            continue
        if (q.ne[0], columns, heads) in _sparse_tiles(rules) and _gathers(t, columns, heads, rules):
            keys = _keys_at_once(t, columns * heads, device)
            found.append(_launch(t, device, columns, heads, keys, shares=True, sparse=True))
            break
    return max(found, key=lambda scratch: scratch.nbytes)


def _sparse_tiles(rules: PoolRules) -> frozenset[tuple[int, int, int]]:
    """(head size, queries, heads) of the tiles that have a kernel which gathers keys."""
    kind = rules.sparse_attention
    if kind is SparseAttention.NONE:
        return frozenset()
    return _BY_QUERY if kind is SparseAttention.BY_QUERY else _BY_TILE


def _gathers(t: Tensor, columns: int, heads: int, rules: PoolRules) -> bool:
    """``ggml_cuda_flash_attn_ext_mma_f16_shall_use_sparse``."""
    q, k, params = t.src[0], t.src[1], t.params or {}
    n_kv_max = _number(params.get("n_kv_max"))
    if n_kv_max <= 0 or not params.get("mask") or params.get("max_bias") or params.get("logit_softcap"):
        return False
    mask = t.src[3]
    if mask.ne[0] != k.ne[1] or mask.ne[1] < q.ne[1] or mask.ne[2] != 1:
        return False
    together = min(q.ne[1], 64 // heads) if columns == 1 else columns
    gathered = n_kv_max * (together if rules.sparse_attention is SparseAttention.BY_TILE else 1)
    return k.ne[1] >= max(4096, 2 * gathered)


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _grouped(t: Tensor) -> bool:
    """Whether query heads that share a key head can share a tile (``use_gqa_opt``)."""
    params = t.params or {}
    mask = t.src[3] if params.get("mask") else None
    return (
        mask is not None
        and not params.get("max_bias")
        and t.src[1].ne[1] % KQ_STRIDE == 0
        and all(x.type.is_quantized or x.nb[1] % 16 == x.nb[2] % 16 == x.nb[3] % 16 == 0 for x in (*t.src[:3], mask))
    )


def _mma_heads(t: Tensor, device: PoolDevice) -> int:
    """Query heads a tile (``ncols2``): ``ggml_cuda_flash_attn_ext_mma_f16``, ``..._switch_ncols2``."""
    q, k, cc = t.src[0], t.src[1], device.cc
    group, tokens = q.ne[2] // k.ne[2], q.ne[1]
    if q.ne[0] == 192:
        return 16 if group % 16 == 0 else 8
    if q.ne[0] == 320:
        return 32
    if q.ne[0] == 576:
        if group == 20:
            return _heads_of_20(cc, tokens, k.ne[1])
        return 16 if group % 16 == 0 else 4
    if not _grouped(t):
        return 1
    if VOLTA <= cc < TURING:
        return next((n for n in (8, 4, 2) if group % n == 0 and (n > 2 or q.ne[0] <= 256)), 1)
    if group > 4:
        return 8
    if group > 2:
        return 4
    return 2 if group > 1 and (q.ne[0] <= 256 or device.rules.attention_pairs) else 1


def _heads_of_20(cc: int, tokens: int, keys: int) -> int:
    """GLM 4.7 Flash's 20 query heads a key head."""
    if cc >= SPARK:
        return 16 if tokens <= 8 else 4
    if cc >= BLACKWELL:
        return 16 if tokens <= 4 and keys >= 65536 else 4
    if cc >= ADA:
        return 16 if tokens <= 4 else 4
    if cc >= TURING and tokens <= 4:
        return 16 if keys <= 16384 else 32
    return 4


def _mma_columns(t: Tensor, device: PoolDevice, heads: int) -> int:
    """Queries a tile (``ncols1``): ``ggml_cuda_flash_attn_ext_mma_f16_switch_ncols1``."""
    tokens, cc = t.src[0].ne[1], device.cc
    if heads <= 8 and cc >= TURING and tokens <= 8 // heads:
        return 8 // heads
    if heads <= 16 and tokens <= 16 // heads:
        return 16 // heads
    if tokens <= 32 // heads or TURING <= cc < AMPERE:
        return 32 // heads
    return 64 // heads


def _keys_at_once(t: Tensor, columns: int, device: PoolDevice) -> int:
    """Keys that a block takes at once (``nbatch_fa`` of ``ggml_cuda_fattn_mma_get_config``)."""
    head, cc, rules = t.src[0].ne[0], device.cc, device.rules
    if head <= 128:
        return 128 if columns == 8 else 64
    if head == 192:
        return 64 if columns == 8 else 32
    if head == 256:
        wide = columns == 8 or TURING <= cc < AMPERE or (columns == 16 and rules.wide_batches_256)
        return 64 if wide else 32
    if head == 512 and columns <= 16 and rules.wide_batches_512 and cc >= AMPERE:
        return 64
    return 32


def _tile_heads(t: Tensor) -> int:
    """Query heads a tile of the kernel without tensor cores (fattn-tile.cuh: ``launch_fattn_tile_switch_ncols2``)."""
    q, k, v = t.src[0], t.src[1], t.src[2]
    group = q.ne[2] // k.ne[2]
    shared = bool((t.params or {}).get("mask")) and not (t.params or {}).get("max_bias") and k.ne[1] % KQ_STRIDE == 0
    if group <= 4 and v.ne[0] <= 256 and q.ne[1] > 16:
        shared = False
    sizes = {192: (16, 8), 320: (16,), 576: (16, 4)}.get(q.ne[0], (8, 4, 2))
    return next((n for n in sizes if group % n == 0), 1) if shared else 1


def _launch(
    t: Tensor, device: PoolDevice, columns: int, heads: int, at_once: int, *, shares: bool, sparse: bool = False
) -> Scratch:
    """``launch_fattn``: ``columns`` queries by ``heads`` query heads a tile, ``at_once`` keys a step.

    ``shares``: blocks share tiles (stream-k); else results of several blocks a tile are combined.
    """
    q, k, v = t.src[0], t.src[1], t.src[2]
    masked = bool((t.params or {}).get("mask"))
    tiles_x = -(-q.ne[1] // columns)
    group = q.ne[2] // k.ne[2]
    tiles = tiles_x * -(-group // heads) * k.ne[2] * q.ne[3]
    keys = k.ne[1]
    pieces: list[tuple[str, int]] = []
    if sparse:
        mask, n_kv_max = t.src[3], _number((t.params or {}).get("n_kv_max"))
        if device.rules.sparse_attention is SparseAttention.BY_QUERY:
            keys = n_kv_max
            pieces.append(("lists of keys", 4 * n_kv_max * mask.ne[1] * mask.ne[3]))
        else:
            keys = min(keys, columns * n_kv_max)
            lists = tiles_x * mask.ne[3]
            pieces.append(("lists of keys", 4 * (keys * lists + lists)))
    elif masked and keys % KQ_STRIDE == 0 and (q.ne[1] >= 1024 or q.ne[3] > 1):
        pieces.append(("keys in sight", 4 * tiles_x * q.ne[3]))
    steps = -(-keys // at_once)
    if shares:
        blocks = _shared_blocks(tiles, steps, device)
        if tiles % blocks:
            pieces.append(("parts of tiles", 8 * blocks * columns * heads * (2 + v.ne[0] // 2)))
    else:
        parallel = _parallel_blocks(tiles, steps, device.sms)
        if parallel > 1:
            pieces.append(("parts of the result", 4 * parallel * t.nelements))
            pieces.append(("their maxima and sums", 8 * parallel * t.nrows))
    return Scratch(tuple(pieces))


def _shared_blocks(tiles: int, steps: int, device: PoolDevice) -> int:
    """Blocks that share ``tiles`` of ``steps`` each, one a multiprocessor at most, or a block a tile."""
    sms = device.sms
    waves = -(-tiles // sms)
    if device.cc < ADA and 100 * tiles // (sms * waves) >= 75:
        return tiles
    raw = min(sms, steps * tiles)
    rounded = raw // tiles * tiles
    lost = 100 * (raw - rounded) // raw if rounded else 100
    return rounded if lost <= 5 else raw


def _parallel_blocks(tiles: int, steps: int, sms: int) -> int:
    """Blocks a tile that keep the multiprocessors busiest."""
    found, best, best_waves = min(1, steps), 0, 0
    for parallel in range(found, steps + 1):
        blocks = tiles * parallel
        waves = -(-blocks // sms)
        busy = 100 * blocks // (waves * sms)
        if best >= 95 and waves > best_waves:
            break
        if busy > best:
            found, best, best_waves = parallel, busy, waves
    return found
