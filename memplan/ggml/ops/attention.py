"""Attention in one op, and the lightning indexer that chooses its keys (ggml/src/ggml.c, v0.5.0)."""

from __future__ import annotations

from memplan.ggml.ops.common import Params, fail, failed, result
from memplan.ggml.tensor import Tensor
from memplan.gguf.types import F16, F32


def flash_attn_ext(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sinks: Tensor | None, n_kv_max: int) -> Tensor:
    """Attention in one op: ne = (head size, heads, tokens, streams) (``ggml_flash_attn_ext``)."""
    if not (k.ne[0] == q.ne[0] and q.ne[2] % k.ne[2] == 0 and q.ne[3] % k.ne[3] == 0):
        failed("ggml_can_mul_mat(k, q)")
    if not (q.ne[3] == k.ne[3] == v.ne[3]):
        fail("flash_attn_ext", "streams differ")
    src = [q, k, v]
    if mask is not None:
        if not (mask.type is F16 and mask.is_contiguous):
            fail("flash_attn_ext", "mask type or gaps")
        if not (q.ne[2] % mask.ne[2] == 0 and q.ne[3] % mask.ne[3] == 0):
            fail("flash_attn_ext", "mask shape")
        src.append(mask)
    if sinks is not None:
        if not (q.ne[2] == sinks.ne[0] and sinks.type is F32):
            fail("flash_attn_ext", "sinks")
        src.append(sinks)
    params: Params = {
        "mask": mask is not None,
        "sinks": sinks is not None,
        "max_bias": 0.0,
        "logit_softcap": 0.0,
        "n_kv_max": n_kv_max,
    }
    return result("FLASH_ATTN_EXT", F32, (v.ne[0], q.ne[2], q.ne[1], q.ne[3]), src, params)


def lightning_indexer(q: Tensor, k: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    """Masked indexer scores: ne = (keys, tokens, 1, streams) (``ggml_lightning_indexer``)."""
    ok = q.type is F32 and weights.type is F32 and mask.type is F16 and q.ne[0] == k.ne[0] and mask.ne[0] == k.ne[2]
    ok = ok and q.ne[1] == weights.ne[0] and k.ne[1] == 1 and mask.ne[1] == q.ne[2] == weights.ne[1]
    ok = ok and q.ne[3] == k.ne[3] == weights.ne[3] and weights.ne[3] % mask.ne[3] == 0
    if not ok:
        fail("lightning_indexer", "shapes or types")
    return result("LIGHTNING_INDEXER", F32, (k.ne[2], q.ne[2], 1, q.ne[3]), [q, k, weights, mask])


def lightning_indexer_unmasked(q: Tensor, k: Tensor, weights: Tensor) -> Tensor:
    """Indexer scores before the mask: ne = (keys, tokens, 1, streams), as the fork lid-cuda has them."""
    ok = q.type is F32 and weights.type is F32 and q.ne[0] == k.ne[0] and k.ne[1] == 1
    ok = ok and q.ne[1] == weights.ne[0] and q.ne[2] == weights.ne[1] and q.ne[3] == k.ne[3] == weights.ne[3]
    if not ok:
        fail("lightning_indexer", "shapes or types")
    return result("LIGHTNING_INDEXER", F32, (k.ne[2], q.ne[2], 1, q.ne[3]), [q, k, weights])
