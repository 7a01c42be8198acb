"""What CUDA's host code takes at run time for one op: from the device's pool, and cuBLAS's workspace beside it.

No figure that llama.cpp prints before a load holds it. Each device has one pool, from which the code that launches an
op takes scratch and to which it gives all of it back; the pool grows to the most that one op has held at once, in
steps of 2 MiB, and never shrinks (``ggml_cuda_pool_vmm``, ggml/src/ggml-cuda/ggml-cuda.cu, read from b9842 to
b11434). Devices without virtual memory management, which keep a pool of another kind, are not modelled.

Only ops that can decide a pool's size are here. Reductions and single rows take some KiB, and every graph has products
that take more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from memplan.backends import cuda_attention_pool, cuda_product_pool, cuda_sort_pool
from memplan.backends.cuda_pool_device import NOTHING, PoolDevice
from memplan.ggml.backend import Scratch

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor

POOL_STEP = 2 << 20
"""Bytes by which a pool grows: the granularity of the device's virtual memory."""

HOPPER = 900


def scratch(t: Tensor, device: PoolDevice) -> Scratch:
    """What the host code of ``t`` takes on this device."""
    rule = _RULES.get(t.op)
    return NOTHING if rule is None else rule(t, device)


def pool_bytes(most: int) -> int:
    """Bytes of a pool from which one op took ``most`` at once."""
    return -(-most // POOL_STEP) * POOL_STEP


def workspace_bytes(device: PoolDevice) -> int:
    """Bytes of cuBLAS's workspace once a product goes through it (``ggml_backend_cuda_context::cublas_handle``)."""
    if not device.rules.cublas_workspace:
        return 0
    return (32 if device.cc >= HOPPER else 4) << 20


def ssm_scan(t: Tensor, device: PoolDevice) -> Scratch:
    """Mamba-2's scan of a prompt in chunks of 256 tokens (ssm-scan.cu: ``ssm_scan_ssd_f32_cuda``, since b10361)."""
    state, x, dt, a, b = t.src[0], t.src[1], t.src[2], t.src[3], t.src[4]
    d_state, (head, heads, tokens, seqs) = state.ne[0], x.ne
    snapshots = (t.params or {}).get("snapshots", 1)
    chunked = device.rules.chunked_scan and device.cc >= 750 and snapshots == 1
    if not (chunked and a.nb[1] == 4 and 128 < tokens <= 8192 and head % 8 == 0):
        return NOTHING
    chunk, rows = 256, heads * seqs
    pieces = (
        ("time steps", 4 * dt.ne[0] * dt.ne[1] * dt.ne[2]),
        ("sums of time steps", 4 * dt.ne[0] * dt.ne[1] * dt.ne[2]),
        ("C times B", 4 * chunk * chunk * b.ne[1] * seqs),
        ("inputs by time step", 2 * chunk * head * rows),
        ("weighted B", 2 * d_state * chunk * rows),
        ("scaled C", 4 * d_state * chunk * rows),
        ("causal matrix", 2 * chunk * chunk * rows),
    )
    return Scratch(pieces, cublas=True)


def solve_tri(t: Tensor, device: PoolDevice) -> Scratch:
    """Triangles over 64 rows, or more than 32 right sides, go through cuBLAS (solve_tri.cu)."""
    a, b = t.src[0], t.src[1]
    if a.ne[0] <= 64 and b.ne[0] <= 32:
        return NOTHING
    pointers = 8 * a.ne[2] * a.ne[3]
    return Scratch((("pointers to triangles", pointers), ("pointers to results", pointers)), cublas=True)


def out_prod(t: Tensor, device: PoolDevice) -> Scratch:
    """cuBLAS, with some KiB of pointers at most (out-prod.cu)."""
    return Scratch(cublas=True)


_RULES: Final[Mapping[str, Callable[[Tensor, PoolDevice], Scratch]]] = {
    "MUL_MAT": cuda_product_pool.mul_mat,
    "MUL_MAT_ID": cuda_product_pool.mul_mat_id,
    "FLASH_ATTN_EXT": cuda_attention_pool.flash_attention,
    "TOP_K": cuda_sort_pool.top_k,
    "ARGSORT": cuda_sort_pool.argsort,
    "SSM_SCAN": ssm_scan,
    "SOLVE_TRI": solve_tri,
    "OUT_PROD": out_prod,
}
