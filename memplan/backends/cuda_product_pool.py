"""Scratch of matrix products: which kernel computes one, and what its host code takes.

Follows ggml/src/ggml-cuda/ggml-cuda.cu (``ggml_cuda_mul_mat``, ``ggml_cuda_mul_mat_id``, ``ggml_cuda_mul_mat_cublas``),
mmq.cu and mmq.cuh (``ggml_cuda_mul_mat_q``, ``launch_mul_mat_q``), mmvq.cu, mmvf.cu and mmf.cu, read from b9842 to
b11434, as a library compiled for the device's own architecture runs them and without their environment variables.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from memplan.backends.cuda_pool_device import NOTHING, PoolDevice
from memplan.backends.ruled import FLOATS
from memplan.ggml.backend import Scratch
from memplan.ggml.tensor import contiguous_above
from memplan.gguf.types import BF16, BY_NAME, F16, F32, GGMLType

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor

PASCAL, DP4A, VOLTA, TURING, AMPERE, ADA, BLACKWELL, RUBIN = 600, 610, 700, 750, 800, 890, 1200, 1300

VECTORS = 8
"""Columns up to which a quantised matrix is multiplied vector by vector (MMVQ_MAX_BATCH_SIZE).

Some types on some cards turn to MMQ at 2 to 7; a batch as small decides no pool.
"""

DP4A_BATCH = 64
"""Columns from which Volta's tensor cores, through cuBLAS, beat MMQ (MMQ_DP4A_MAX_BATCH_SIZE)."""

ROW_PADDING = 512
"""What rows of quantised activations are padded to (MATRIX_ROW_PADDING)."""

Q8_1_ROW = 36
"""Bytes of 32 activations (block_q8_1)."""
MMQ_BLOCK = 144
"""Bytes of 128 activations, or of 256 for FP4 on Blackwell (block_q8_1_mmq, block_fp4_mmq)."""

_MXFP4, _NVFP4, _Q2_K = BY_NAME["mxfp4"], BY_NAME["nvfp4"], BY_NAME["q2_K"]
_NOT_MMQ = frozenset({BY_NAME["iq1_m"], BY_NAME["q8_K"], BY_NAME["tq1_0"], BY_NAME["tq2_0"]})


def mul_mat(t: Tensor, device: PoolDevice) -> Scratch:
    """``ggml_cuda_mul_mat``."""
    a, b = t.src[0], t.src[1]
    cc, columns = device.cc, b.ne[1]
    if 0 in t.ne:
        return NOTHING
    if (t.params or {}).get("hadamard") and b.is_contiguous and b.ne[0] in (64, 128, 256, 512):
        return NOTHING
    if b.type is F32 and not _padding_in_view(a):
        if _use_mmvf(a, cc, columns):
            return NOTHING
        right = device.rules.vector_on_the_right and a.ne[1] == 1 and columns > VECTORS and t.ne[2] == t.ne[3] == 1
        if right and a.type is F32 and a.is_contiguous and b.is_contiguous and _use_mmvf(b, cc, 1):
            return NOTHING
        if columns <= 16 and _use_mmf(a, cc):
            return NOTHING
        if a.type.is_quantized and columns <= VECTORS:
            return Scratch((("activations", b.nrows * _padded(b.ne[0]) * Q8_1_ROW // 32),))
        if _use_mmq(a.type, columns, 0, device):
            return _mmq(t, device)
    return _cublas(a, b, t, device) if device.rules.converts_both_sides else _old_cublas(a, b, t, device)


def mul_mat_id(t: Tensor, device: PoolDevice) -> Scratch:
    """``ggml_cuda_mul_mat_id``."""
    a, b, ids = t.src
    tokens, experts, used = b.ne[2], a.ne[2], ids.ne[0]
    rows = tokens * used
    if rows == 0:
        return NOTHING
    if a.type.is_quantized and tokens <= VECTORS:
        return Scratch((("activations", b.nrows * _padded(b.ne[0]) * Q8_1_ROW // 32),))
    if _use_mmq(a.type, tokens, experts, device):
        return _mmq(t, device)
    if tokens <= (512 if a.ne[1] <= 1024 else 128) and _use_mmf(a, device.cc):
        sorted_ids = (("rows by expert", 4 * rows), ("rows in order", 4 * rows), ("experts' bounds", 4 * (experts + 1)))
        return Scratch(sorted_ids if tokens > 16 else ())
    return _expert_by_expert(t, device)


def _expert_by_expert(t: Tensor, device: PoolDevice) -> Scratch:
    """Rows sorted by expert, then a product an expert. The router decides how many rows one gets; here all of them."""
    from memplan.ggml.tensor import new_tensor

    a, b, ids = t.src
    rows = b.ne[2] * ids.ne[0]
    slow = a.type is F16 and not _fast_f16(device.cc)
    src_type = F32 if slow or a.type.is_quantized else a.type
    one = new_tensor(a.type, a.ne[0], a.ne[1])
    one.buffer = a.buffer
    part = new_tensor(src_type, a.ne[0], b.ne[2])
    product = type(t)("MUL_MAT", F32, (a.ne[1], b.ne[2], 1, 1), new_tensor(F32, a.ne[1], b.ne[2]).nb, [one, part])
    inner = mul_mat(product, device)
    pieces = (
        ("row numbers", 8 * rows),
        ("sorted rows", rows * a.ne[0] * src_type.type_size),
        ("sorted results", 4 * rows * a.ne[1]),
    )
    return Scratch(pieces + inner.pieces, inner.cublas)


# --- which kernel -----------------------------------------------------------------------------------------------------


def _fast_f16(cc: int) -> bool:
    return cc >= PASCAL and cc != DP4A


def _pairs_aligned(a: Tensor) -> bool:
    size = a.type.type_size
    return a.nb[0] == size and all(nb % (2 * size) == 0 for nb in a.nb[1:])


def _use_mmvf(a: Tensor, cc: int, columns: int) -> bool:
    """``ggml_cuda_should_use_mmvf``."""
    if a.type not in FLOATS or columns > VECTORS or a.ne[0] % 2 or not _pairs_aligned(a):
        return False
    if a.type is F32:
        return columns <= (4 if cc == TURING else 3)
    small = a.ne[1] <= 512 or a.ne[2] * a.ne[3] == 1
    if cc >= AMPERE:
        return small and columns == 1
    if a.type is F16 and cc >= VOLTA:
        return small and columns <= 3
    return True


def _use_mmf(a: Tensor, cc: int) -> bool:
    """``ggml_cuda_should_use_mmf``, but for its limit of columns."""
    size = a.type.type_size
    if a.type not in FLOATS or a.ne[0] % (32 * (4 // size)) or not _pairs_aligned(a) or a.ne[1] % 32:
        return False
    return cc >= (VOLTA if a.type is F16 else AMPERE)


def _use_mmq(type: GGMLType, columns: int, experts: int, device: PoolDevice) -> bool:
    """``ggml_cuda_should_use_mmq``."""
    if not type.is_quantized or type in _NOT_MMQ:
        return False
    cc = device.cc
    if cc < DP4A:
        return device.rules.old_cards_multiply_experts and cc >= PASCAL and experts > 0
    return not VOLTA <= cc < TURING or columns < DP4A_BATCH


def _padding_in_view(a: Tensor) -> bool:
    """A view of a computed quantised tensor whose rows are padded: its padding cannot be cleared."""
    base = a.view_src
    return base is not None and base.buffer is None and a.type.is_quantized and a.ne[0] % ROW_PADDING != 0


# --- MMQ --------------------------------------------------------------------------------------------------------------


def _padded(columns: int) -> int:
    return -(-columns // ROW_PADDING) * ROW_PADDING


def _mmq(t: Tensor, device: PoolDevice) -> Scratch:
    """``ggml_cuda_mul_mat_q``: quantised activations, and what blocks that share a tile leave for one another."""
    a, b = t.src[0], t.src[1]
    rules, width = device.rules, _padded(b.ne[0])
    fp4 = a.type in (_MXFP4, _NVFP4) and BLACKWELL <= device.cc < RUBIN
    values = 256 if fp4 and rules.tiles_by_type else 128
    pieces: list[tuple[str, int]] = []
    if t.op == "MUL_MAT_ID":
        rows, columns, matrices = b.ne[2] * t.ne[1], b.ne[2], a.ne[2]
        pieces += [("rows by expert", 4 * rows), ("rows in order", 4 * rows), ("experts' bounds", 4 * (matrices + 1))]
        padding = columns if rules.pads_experts_by_tokens else b.ne[1]
    else:
        rows, columns, matrices = b.nrows, b.ne[1], b.ne[2] * b.ne[3]
        padding = columns
    tiles = _tiles(device.cc, a.ne[1] % 128 != 0, rules.tiles_by_type)
    most = tiles[-1] if not rules.tiles_by_type else max([j for j in tiles if j <= padding], default=0)
    pieces.append(("activations", rows * width * MMQ_BLOCK // values + most * MMQ_BLOCK))
    if fp4 and a.type is _NVFP4 and rules.nvfp4_scales:
        pieces.append(("activations' scales", 4 * rows))
    shared = _shared_tiles(a.ne[1], columns, matrices, _fitting(tiles, a.type, device.cc), device)
    if shared:
        pieces.append(("parts of tiles", shared))
    return Scratch(tuple(pieces))


@lru_cache(maxsize=32)
def _tiles(cc: int, fallback: bool, by_type: bool) -> tuple[int, ...]:
    """Widths of tiles: ``ggml_cuda_mmq_get_config``, or before it ``mmq_get_granularity_host``."""
    if not by_type:
        return (8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128) if cc >= TURING else tuple(range(8, 65, 8))
    most = 128 if cc >= VOLTA else 64
    widths = (8, 16, 32, 64, 128) if fallback else (8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128)
    return tuple([j for j in widths if j <= most])


def _fitting(tiles: tuple[int, ...], type: GGMLType, cc: int) -> tuple[int, ...]:
    """The widths for which shared memory is large enough: Turing's 64 KiB stop q2_K at 80, all else has room."""
    return tuple([j for j in tiles if j <= 80]) if type is _Q2_K and cc == TURING else tiles


def _shared_tiles(rows: int, columns: int, matrices: int, tiles: tuple[int, ...], device: PoolDevice) -> int:
    """Bytes for tiles that several blocks compute (``launch_mul_mat_q``); none before Volta."""
    if device.cc < VOLTA:
        return 0
    best, tiles_x = 0, 1 << 62
    for j in tiles:
        n = -(-columns // j)
        if n < tiles_x:
            best, tiles_x = j, n
        if n == 1:
            break
    total = tiles_x * -(-rows // 128) * matrices
    waves = -(-total // device.sms)
    if 100 * total // (device.sms * waves) >= 90 or total % device.sms == 0:
        return 0
    return 4 * device.sms * best * 128


# --- cuBLAS -----------------------------------------------------------------------------------------------------------


def _cublas(a: Tensor, b: Tensor, t: Tensor, device: PoolDevice) -> Scratch:
    """``ggml_cuda_mul_mat_cublas``: what is of another type than the product is computed in is converted whole."""
    cc = device.cc
    compute = F16 if a.type.is_quantized else a.type
    slow_bf16 = compute is BF16 and cc < AMPERE and b.ne[1] > (8 if cc >= VOLTA else 128)
    slow = (compute is F16 and not _fast_f16(cc)) or (slow_bf16 and device.rules.slow_bf16_as_f32)
    if slow or (t.params or {}).get("f32"):
        compute = F32
    size = compute.type_size
    pieces = [(name, size * s.nelements) for name, s in (("matrix", a), ("activations", b)) if s.type is not compute]
    if compute is F16 and not VOLTA <= cc < TURING:
        pieces.append(("result", size * t.nelements))
    plain = [s.type is compute or _without_gaps(s) for s in (a, b)]
    return Scratch((*pieces, *_pointers(a, b, plain)), cublas=True)


def _pointers(a: Tensor, b: Tensor, as_they_are: list[bool]) -> list[tuple[str, int]]:
    """Pointers to the matrices of a batch, where steps between them are not all alike (``cublasGemmBatchedEx``)."""
    batch = b.ne[2] * b.ne[3]
    dense = all(contiguous_above(s, 2) for s, kept in zip((a, b), as_they_are, strict=True) if kept)
    if batch == 1 or (a.ne[2:] == b.ne[2:] and dense):
        return []
    return [("pointers to sources", 16 * batch), ("pointers to results", 8 * batch)]


def _without_gaps(t: Tensor) -> bool:
    """``ggml_is_contiguously_allocated``."""
    return t.nbytes == t.nelements * t.type.type_size // t.type.block_size


def _old_cublas(a: Tensor, b: Tensor, t: Tensor, device: PoolDevice) -> Scratch:
    """The ways before b10068: batches of floats (``ggml_cuda_mul_mat_batched_cublas``), else a matrix at a time."""
    cc, f32 = device.cc, bool((t.params or {}).get("f32"))
    volta = VOLTA <= cc < TURING
    batched = (a.type is F16 and (b.type is F16 or _fast_f16(cc))) or (a.type is BF16 and cc >= AMPERE) or a.type is F32
    if batched and not a.is_transposed and not b.is_transposed and b.ne[2] * b.ne[3] > 1:
        size = a.type.type_size
        pieces = [] if b.type is a.type else [("activations", size * b.nelements)]
        if a.type is not F32 and not f32 and not (a.type is F16 and volta):
            pieces.append(("result", size * t.nelements))
        return Scratch((*pieces, *_pointers(a, b, [True, b.type is a.type])), cublas=True)
    pieces = []
    dense = a.is_contiguous
    if not dense:
        pieces.append(("matrix without gaps", a.nbytes + a.type.row_size(_padded(a.ne[0]) - a.ne[0] or ROW_PADDING)))
    if not b.is_contiguous:
        pieces.append(("activations without gaps", 4 * b.nelements))
    matrix, columns, result = a.ne[0] * a.ne[1], b.ne[0] * b.ne[1], a.ne[1] * b.ne[1]
    if a.type is BF16 and dense:
        sizes = [0, 0 if b.type is BF16 else 2 * columns, 2 * result]
    elif _fast_f16(cc) and a.type is not _NVFP4 and (a.type is F16 or a.type.is_quantized) and dense and not f32:
        sizes = [0 if a.type is F16 else 2 * matrix, 0 if b.type is F16 else 2 * columns, 0 if volta else 2 * result]
    else:
        sizes = [0 if a.type is F32 else 4 * matrix, 0 if b.type is F32 else 4 * columns, 0]
    pieces += [(name, n) for name, n in zip(("matrix", "activations", "result"), sizes, strict=True) if n]
    return Scratch(tuple(pieces), cublas=True)
