"""Devices and DeepSeek-V4-Flash-shaped tensors that several tests share."""

from __future__ import annotations

from memplan.backends.cuda import CudaBackend
from memplan.backends.devices import Gpu
from memplan.ggml import ops
from memplan.ggml.graph import Graph
from memplan.ggml.tensor import Tensor, new_tensor
from memplan.gguf.types import BY_NAME, F16, F32
from memplan.releases import V0_5_0, Release

CARDS = {"P40": (6, 1), "V100": (7, 0), "T4": (7, 5), "3090": (8, 6), "4090": (8, 9), "H200": (9, 0), "5090": (12, 0)}


def gpu(card: str = "3090") -> Gpu:
    return Gpu(card, 24268 << 20, 23868 << 20, CARDS[card])


def cuda(card: str = "3090", release: Release = V0_5_0, index: int = 0, without: tuple[str, ...] = ()) -> CudaBackend:
    return CudaBackend(index, gpu(card), release, frozenset(without))


def attention(
    type_k: str = "f16",
    type_v: str | None = None,
    *,
    head: int = 512,
    heads: int = 64,
    keys: int = 1024,
    tokens: int = 512,
    mask: bool = True,
    shared: bool = True,
    n_kv_max: int = 0,
) -> Tensor:
    """FLASH_ATTN_EXT with one KV head, as DeepSeek-V4 builds it; ``shared``: K and V are views of the same cells."""
    q = ops.permute(new_tensor(F32, head, heads, tokens), 0, 2, 1, 3)
    cells = new_tensor(BY_NAME[type_k], head, 1, keys)
    k = ops.permute(cells, 0, 2, 1, 3)
    other = cells if shared else new_tensor(BY_NAME[type_v or type_k], head, 1, keys)
    v = ops.permute(other, 0, 2, 1, 3)
    m = new_tensor(F16, keys, tokens) if mask else None
    return ops.flash_attn_ext(q, k, v, m, new_tensor(F32, heads), n_kv_max)


def moe(experts: int = 256, used: int = 6, tokens: int = 512, width: int = 4096) -> tuple[Graph, dict[str, Tensor]]:
    """Top-k gating, one expert product and the weighted sum of ``used`` experts, in graph order."""
    logits = ops.mul_mat(new_tensor(F16, width, experts), new_tensor(F32, width, tokens))
    probs = ops.sqrt(ops.unary(logits, "SOFTPLUS"))
    biased = ops.add(probs, new_tensor(F32, experts))
    ids = ops.argsort_top_k(biased, used)
    weights = ops.get_rows(ops.reshape(probs, 1, experts, tokens), ids)
    weights = ops.reshape(weights, used, tokens)
    norm = ops.div(weights, ops.clamp(ops.sum_rows(weights)))
    scaled = ops.scale(ops.reshape(norm, 1, used, tokens))
    x = ops.reshape(new_tensor(F32, width, tokens), width, 1, tokens)
    down = ops.mul_mat_id(new_tensor(BY_NAME["q2_K"], width, width, experts), x, ids)
    weighted = ops.mul(down, scaled)
    views = [ops.view_2d(weighted, width, tokens, weighted.nb[2], i * weighted.nb[1]) for i in range(used)]
    out = views[0]
    g = Graph()
    g.expand(scaled)
    g.expand(down)
    for v in views:
        g.expand(v)
    for v in views[1:]:
        out = ops.add(out, v)
    g.expand(out)
    return g, {"logits": logits, "scaled": scaled, "x": x, "down": down, "weighted": weighted, "ids": ids, "out": out}
