"""CUDA's graph optimisation: the tensors that its fusions keep alive longer than the graph alone would, and shared
experts that are computed beside the routed ones.

Follows ``ggml_backend_cuda_graph_optimize``, ``ggml_cuda_match_moe_weighted_reduction``, ``ggml_cuda_topk_moe_fusion``,
``ggml_cuda_match_shared_expert``, ``ggml_cuda_should_fuse_mul_mat`` (ggml/src/ggml-cuda/ggml-cuda.cu),
``ggml_cuda_should_use_topk_moe`` (topk-moe.cu) and ``ggml_can_fuse_subgraph_ext`` (ggml/src/ggml.c), read in v0.4.0,
v0.5.0 and b11434.

By default that is all it does: it reorders other nodes only when GGML_CUDA_GRAPH_OPT=1, whatever the number of devices
and whether CUDA graphs are used. GGML_CUDA_DISABLE_FUSION=1, which turns this off, is taken as not set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from memplan.backends.fusing import can_fuse_subgraph
from memplan.ggml.tensor import contiguous_above
from memplan.gguf.types import F32

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.releases import Release

Deps = list[tuple["Tensor", "Tensor"]]

MAX_SUMMED_EXPERTS = 15
"""MOE_WEIGHTED_REDUCTION_MAX_EXPERTS."""

_STARTS = frozenset({"MUL", "UNARY", "SOFT_MAX"})


def graph_optimize(nodes: list[Tensor], release: Release, after: Tensor | None = None) -> tuple[list[Tensor], Deps]:
    """One split's nodes in the order in which they are computed, and ``alloc_deps`` of that order.

    A shared expert's two products and its gated unit move behind those of the routed experts that read the same input
    through weights of the same quantised type, and that input and the chosen experts live until they are done.
    """
    if not release.cuda_joins_shared_experts:
        return nodes, alloc_deps(nodes, release, after)
    nodes = list(nodes)
    deps: Deps = []
    i = 0
    while i + 5 < len(nodes):
        shared = _shared_expert(nodes, i)
        if shared:
            nodes[i + 3 : shared + 3] = nodes[shared : shared + 3] + nodes[i + 3 : shared]
            up = nodes[i + 2].src[1]
            deps += [(up.src[1], nodes[i + 5]), (up.src[2], nodes[i + 5])]
            i += 5
        i += 1
    return nodes, deps + alloc_deps(nodes, release, after)


def moves_shared_expert(nodes: Sequence[Tensor], release: Release) -> bool:
    """Whether ``graph_optimize`` would put a shared expert behind routed ones among ``nodes``."""
    return release.cuda_joins_shared_experts and any(_shared_expert(nodes, i) for i in range(len(nodes) - 5))


def alloc_deps(nodes: Sequence[Tensor], release: Release, after: Tensor | None = None) -> Deps:
    """(tensor, until) for every lifetime that is stretched, in ggml's order, repeats included.

    ``nodes``: one split's, sources already replaced by the scheduler's copies; their ``uses`` are those of the whole
    graph before that. ``after``: the node that follows the split, since ggml looks one node past a top-k gating;
    without it, a gating at the very end of a split keeps nothing.
    """
    if not release.cuda_keeps_moe_sum_inputs:
        return []
    deps: Deps = []
    topk = release.cuda_keeps_topk_inputs
    behind = 0
    for i in [i for i, t in enumerate(nodes) if t.op in _STARTS]:
        if i < behind:
            continue
        if nodes[i].op == "MUL":
            found = _match_sum(nodes, i)
            if found is not None:
                kept, count = found
                if _fusable(nodes, i, count, (i + count - 1,)):
                    until = nodes[i + count - 1]
                    deps += [(t, until) for t in kept]
                    behind = i + count
        elif topk and (ops := _match_gating(nodes, i)) is not None:
            # ggml goes on behind a gating that is fused; nothing within one starts another match
            deps += _gating_deps(nodes, i, ops, after)
    return deps


def _fusable(nodes: Sequence[Tensor], start: int, count: int, outputs: tuple[int, ...]) -> bool:
    """Whether only ``outputs`` among ``count`` nodes are needed elsewhere (``ggml_can_fuse_subgraph_ext``)."""
    if start + count > len(nodes):
        return False
    return can_fuse_subgraph(nodes[start : start + count], [nodes[i] for i in outputs])


# --- shared experts -------------------------------------------------------------------------------------------------

_GATED = frozenset({"SWIGLU", "GEGLU", "SWIGLU_OAI", "SWIGLU_CLAMP"})
"""Gated units that products are fused with."""


def _shared_expert(nodes: Sequence[Tensor], i: int) -> int:
    """Where the shared expert begins that goes with the routed ones at ``nodes[i]``; 0 if there is none."""
    if nodes[i].op != "MUL_MAT_ID" or not _gates(nodes, i, "MUL_MAT_ID"):
        return 0
    for j in range(i + 3, len(nodes) - 2):
        op = nodes[j].op
        if op == "MUL_MAT_ID" and nodes[j + 1].op == op:
            return 0
        if op == "MUL_MAT" and _gates(nodes, j, op) and _go_together(nodes[i : i + 3], nodes[j : j + 3]):
            return j
    return 0


def _gates(nodes: Sequence[Tensor], i: int, op: str) -> bool:
    """Whether two products and the gated unit of both begin at ``nodes[i]`` (``ggml_cuda_should_fuse_mul_mat``)."""
    first, second, glu = nodes[i : i + 3]
    if not first.op == second.op == op or glu.op != "GLU" or glu.kind not in _GATED or len(glu.src) < 2:
        return False
    gate, up = glu.src
    if (gate, up) not in ((first, second), (second, first)):
        return False
    a, b = gate.src[0], up.src[0]
    return a.type is b.type and a.ne == b.ne and a.nb == b.nb and gate.src[1:] == up.src[1:]


def _go_together(routed: Sequence[Tensor], shared: Sequence[Tensor]) -> bool:
    """Whether one kernel can take both, whatever the batch."""
    if not can_fuse_subgraph((*routed, *shared), (routed[2], shared[2])):
        return False
    up, shared_up = routed[2].src[1], shared[2].src[1]
    weight, x = up.src[0], up.src[1]
    own, own_x = shared_up.src[0], shared_up.src[1]
    return (
        weight.buffer is not None
        and weight.type.is_quantized
        and weight.type is own.type
        and weight.ne[:2] == own.ne[:2]
        and weight.nb[1] == own.nb[1]
        and weight.ne[3] == own.ne[2] == own.ne[3] == 1
        and x.op == "RESHAPE"
        and x.src[0] is own_x
        and x.ne[1] == x.ne[3] == own_x.ne[2] == own_x.ne[3] == 1
        and all(t.is_contiguous for t in (x, own_x, own, shared[2].src[0].src[0], routed[2], shared[2]))
        and all(glu_src.src[0].op == "NONE" for glu_src in shared[2].src)
        and routed[2].kind == shared[2].kind
        and routed[2].params == shared[2].params
    )


# --- experts weighted and summed ------------------------------------------------------------------------------------


def _match_sum(nodes: Sequence[Tensor], i: int) -> tuple[list[Tensor], int] | None:
    """(experts, weights[, scale]) and the number of nodes of a weighted sum that starts at the MUL ``nodes[i]``.

    One or two MULs, a view of each expert, and the ADDs that sum them.
    """
    first = nodes[i]
    inputs = _split_mul(first)
    if inputs is None or first.type is not F32 or not first.is_contiguous:
        return None
    weighted, muls = first, 1
    if i + 1 < len(nodes):
        second = nodes[i + 1]
        if second.op == "MUL" and second.type is F32 and second.is_contiguous:
            route = _split_mul(second)
            if route is not None and route[0] is first:
                inputs = [inputs[0], route[1], inputs[1]]
                weighted, muls = second, 2
    experts = weighted.ne[1]
    tokens = weighted.ne[2] * weighted.ne[3]
    if not 2 <= experts <= MAX_SUMMED_EXPERTS or tokens <= 0:
        return None
    count = 2 * experts + muls - 1
    if i + count > len(nodes):
        return None
    shape = (weighted.ne[0], tokens, 1, 1)
    views: list[Tensor] = []
    total: Tensor | None = None
    adds = 0
    for t in nodes[i + muls : i + count]:
        if t.op == "VIEW":
            if len(views) >= experts or not _is_expert(t, weighted, shape, len(views)):
                return None
            views.append(t)
            continue
        if t.op != "ADD" or len(views) < 2 or adds + 1 >= len(views):
            return None
        left = views[0] if total is None else total
        if t.type is not F32 or t.src[0] is not left or t.src[1] is not views[adds + 1]:
            return None
        total = t
        adds += 1
    if len(views) != experts or adds != experts - 1 or total is None:
        return None
    if not total.is_contiguous or total.ne != shape:
        return None
    return inputs, count


def _split_mul(mul: Tensor) -> list[Tensor] | None:
    """The full-size source of ``mul`` and the one with a single number a row, in that order."""
    ne = mul.ne
    row_number = (1, ne[1], ne[2], ne[3])
    a, b = mul.src[0], mul.src[1]
    for full, broadcast in ((a, b), (b, a)):
        if broadcast.ne != row_number or full.ne != ne or full.type is not F32 or broadcast.type is not F32:
            continue
        if full.is_contiguous and broadcast.is_contiguous:
            return [full, broadcast]
    return None


def _is_expert(t: Tensor, weighted: Tensor, shape: tuple[int, ...], index: int) -> bool:
    return (
        t.src[0] is weighted
        and t.view_src is weighted
        and t.type is F32
        and t.ne == shape
        and t.nb[0] == weighted.nb[0]
        and t.nb[1] == weighted.nb[2]
        and t.view_offs == index * weighted.nb[1]
    )


# --- top-k gating ---------------------------------------------------------------------------------------------------


def _match_gating(nodes: Sequence[Tensor], i: int) -> tuple[str, ...] | None:
    """The ops of a top-k gating that starts at ``nodes[i]``; None if there is none.

    A gating that sorts first and normalises after (ARGSORT, ..., SOFT_MAX) is fused by ggml too, but keeps nothing.
    """
    head = nodes[i]
    at = i + 1
    ops: tuple[str, ...]
    if head.op == "UNARY":
        if head.kind == "SIGMOID":
            ops = ("UNARY",)
        elif head.kind == "SOFTPLUS" and _follows(nodes, at, "SQRT"):
            ops = ("UNARY", "SQRT")
            at += 1
        else:
            return None
    elif head.op == "SOFT_MAX":
        ops = ("SOFT_MAX",)
    else:
        return None
    probs = nodes[at - 1]
    if not _follows(nodes, at, "RESHAPE"):
        return None
    reshaped = nodes[at]
    ops += ("RESHAPE",)
    at += 1
    chosen_by = probs
    if at < len(nodes) and nodes[at].op == "ADD" and nodes[at].src[0] is probs:
        chosen_by = nodes[at]
        ops += ("ADD",)
        at += 1
    if at >= len(nodes) or nodes[at].op != "ARGSORT" or nodes[at].src[0] is not chosen_by:
        return None
    at += 1
    if not _follows(nodes, at, "VIEW"):
        return None
    at += 1
    if at >= len(nodes) or nodes[at].op != "GET_ROWS":
        return None
    if nodes[at].src[0] is not reshaped or nodes[at].src[1] is not nodes[at - 1]:
        return None
    ops += ("ARGSORT", "VIEW", "GET_ROWS")
    at += 1
    if at < len(nodes) and nodes[at].op == "RESHAPE":
        if not _is_norm(nodes, at):
            return ops
        ops += ("RESHAPE", "SUM_ROWS", "CLAMP", "DIV", "RESHAPE")
        at += 5
    if _follows(nodes, at, "SCALE"):
        ops += ("SCALE",)
    return ops


def _follows(nodes: Sequence[Tensor], at: int, op: str) -> bool:
    """Whether ``nodes[at]`` is an ``op`` of the node before it."""
    return at < len(nodes) and nodes[at].op == op and nodes[at].src[0] is nodes[at - 1]


def _is_norm(nodes: Sequence[Tensor], at: int) -> bool:
    """Whether the five nodes from ``at`` on divide the weights by their sum."""
    if not all(_follows(nodes, at + i, op) for i, op in enumerate(("RESHAPE", "SUM_ROWS", "CLAMP"))):
        return False
    if at + 3 >= len(nodes):
        return False
    div = nodes[at + 3]
    if div.op != "DIV" or div.src[0] is not nodes[at] or div.src[1] is not nodes[at + 2]:
        return False
    return _follows(nodes, at + 4, "RESHAPE")


def _gating_deps(nodes: Sequence[Tensor], i: int, ops: tuple[str, ...], after: Tensor | None) -> Deps:
    """Every node of the gating and every source of theirs, until the node behind the gating.

    That is one node later than the fusion needs; ggml's helper takes the last index as it is given.
    """
    ids = i + ops.index("VIEW")
    end = i + len(ops)
    if not _fusable(nodes, i, len(ops), (ids, end - 1)):
        return []
    if not _kernel_takes(nodes[i], nodes[end - 1], nodes[ids]):
        return []
    until = nodes[end] if end < len(nodes) else after
    if until is None:
        return []
    deps: Deps = []
    for node in nodes[i:end]:
        deps.append((node, until))
        deps += [(s, until) for s in node.src]
    return deps


def _kernel_takes(head: Tensor, weights: Tensor, ids: Tensor) -> bool:
    """Whether the fused kernel is instantiated for this gating (``ggml_cuda_should_use_topk_moe``).

    Powers of two up to 512 experts, 288 and 576: so DeepSeek-V4-Flash's 256, but not Pro's 384.
    """
    experts = ids.nb[1] // ids.nb[0]
    if (experts & (experts - 1) or experts > 512) and experts not in (288, 576):
        return False
    logits = head.src[0]
    if not contiguous_above(weights, 0) or not contiguous_above(logits, 0):
        return False
    if head.op == "SOFT_MAX":
        params = head.params or {}
        plain = params.get("scale", 1.0) == 1.0 and params.get("max_bias", 0.0) == 0.0
        return plain and len(head.src) == 1
    return True
