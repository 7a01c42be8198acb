"""The order in which Metal computes a split's nodes, and the lifetimes that its fusions stretch. Read, never compared.

Follows ``ggml_graph_optimize`` (ggml/src/ggml-metal/ggml-metal-common.cpp), read in builds 9840 to v0.5.0, and from
v0.5.0 on ggml-metal-fusion.cpp: ``ggml_metal_fusion_max``, ``ggml_metal_fusion_add_alloc_deps``. Nodes that one kernel
computes are packed together; a pack that neither reads nor writes what others write is pulled up to those that run at
once. GGML_METAL_GRAPH_OPTIMIZE_DISABLE and GGML_METAL_FUSION_DISABLE are taken as not set. Of tensors that lie side by
side in one buffer, llama.cpp takes the lower one for written when the upper one is; here each tensor stands for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from memplan.backends.fusing import can_fuse_subgraph
from memplan.ggml.tensor import FLAG_COMPUTE, FLAG_OUTPUT, VIEW_OPS
from memplan.gguf.types import F32

if TYPE_CHECKING:
    from memplan.ggml.backend import Traits
    from memplan.ggml.tensor import Tensor

Deps = list[tuple["Tensor", "Tensor"]]
Pack = list["Tensor"]

MAX_FUSED = 16
"""GGML_METAL_FUSION_MAX."""

FORWARD = 64
"""Packs that are looked at beyond the first that has to wait (N_FORWARD)."""

_PACKED = ("ADD", "MUL", "NORM", "RMS_NORM")
_NORMS = ("NORM", "RMS_NORM")
_MOVED = frozenset(
    {
        *("MUL_MAT", "MUL_MAT_ID", "ROPE", "NORM", "RMS_NORM", "GROUP_NORM", "L2_NORM", "SUM_ROWS", "SSM_CONV"),
        *("SSM_SCAN", "CLAMP", "TRI", "DIAG", "MUL", "ADD", "SUB", "DIV", "GLU", "SCALE", "UNARY", "GET_ROWS"),
        *("SET_ROWS", "SET", "CPY", "CONT", "REPEAT", *VIEW_OPS),
    }
)
"""Ops that may be pulled up; the search for others ends at any that is not among them (``h_safe``)."""

_GATING = ("SOFT_MAX", "RESHAPE", "ARGSORT", "VIEW", "GET_ROWS")
_NORMALISED = (*_GATING, "RESHAPE", "SUM_ROWS", "CLAMP", "DIV", "RESHAPE")
_GATINGS = (_GATING, (*_GATING, "SCALE"), _NORMALISED, (*_NORMALISED, "SCALE"))
_SUMS = tuple([("MUL", *["VIEW"] * n, *["ADD"] * (n - 1)) for n in range(2, 9)])
_CHAINS = (
    *[(norm, *rest) for norm in _NORMS for rest in (("MUL",), ("MUL", "ADD"), ("SCALE",))],
    *[("ADD",) * n for n in range(2, 8)],
    ("MUL", "SIN", "SQR", "MUL", "ADD"),
    ("GATED_DELTA_NET", "CPY"),
    ("SSM_CONV", "UNARY"),
)
FUSIONS: tuple[tuple[str, ...], ...] = (*_CHAINS, *_GATINGS, *_SUMS)
"""All chains that one kernel may compute (``ggml_metal_fusions``), views among them."""


def graph_optimize(nodes: Sequence[Tensor], table: bool) -> tuple[list[Tensor], Deps]:
    """The nodes of one split in their new order, and (tensor, until) for each lifetime that is stretched.

    ``table``: v0.5.0's table of fusions; before, chains of sums, products and norms alone are packed, and nothing lives
    longer.
    """
    packs = list(_packs(nodes, _span if table else _span_of_sums))
    order = [t for i in _reorder(packs, table) for t in packs[i]]
    return order, list(_stretched(nodes)) if table else []


_BY_FIRST: dict[str, list[tuple[tuple[str, ...], tuple[str, ...]]]] = {}
for _ops in FUSIONS:
    _BY_FIRST.setdefault(_ops[0], []).append((_ops, tuple([op for op in _ops if op not in VIEW_OPS])))

_SEEN_AFTER = {
    **dict.fromkeys(VIEW_OPS, ("MUL", "SOFT_MAX", "ARGSORT", "GET_ROWS", "DIV", "GATED_DELTA_NET")),
    **dict.fromkeys(("GET_ROWS", "ARGSORT", "SUM_ROWS", "CLAMP"), ("RESHAPE", "SOFT_MAX", "SUM_ROWS")),
    "CPY": ("VIEW",),
}
"""Ops of chains whose shapes are looked at, if at all, behind others of the chain."""


def traits(t: Tensor) -> Traits:
    """What of a node, beside sources, views and flags, its place in the order goes by."""
    src, empty = t.src, 0 in t.ne
    of = src[0] if src else None
    if t.op == "MUL" and (src[1].ne[0] != 1 or src[0].ne[3] != 1):  # weighs no experts
        return _in_chains(t)
    if t.op == "SOFT_MAX" and len(src) > 1:  # gates none
        return (t.op, empty), ()
    if t.op in ("ADD", "SCALE", "UNARY", *_NORMS):
        return _in_chains(t)
    if t.op not in _BY_FIRST and t.op != "DIV":
        behind = of is not None and of.op in _SEEN_AFTER.get(t.op, ())
        if behind and t.op in ("CPY", "GET_ROWS"):
            base = of.view_src if of is not None else None
            behind = base is not None and base.op in ("GATED_DELTA_NET", "SOFT_MAX")
        if not behind:
            return (t.op, empty), ()
    return (t.op, t.kind, t.type.name, t.ne, t.nb, t.view_offs, *[(s.type.name, s.ne, s.nb) for s in src[:2]]), (t.ne,)


def _in_chains(t: Tensor) -> Traits:
    """Of a node of ``_CHAINS``: its own shape and the layout of what is added or multiplied are only compared."""
    exact = t.op, t.kind, t.type.name, 0 in t.ne, t.is_contiguous_rows
    if len(t.src) < 2:
        return exact, (t.ne,)
    b = t.src[1]
    return (*exact, b.ne[0] == t.ne[0], b.is_contiguous_rows, b.type.name), (t.ne, (b.ne, b.nb))


def _packs(nodes: Sequence[Tensor], span: Callable[[Sequence[Tensor], int], int]) -> Iterator[Pack]:
    i = 0
    while i < len(nodes):
        n = span(nodes, i)
        yield list(nodes[i : i + n])
        i += n


def _base(t: Tensor) -> int:
    return id(t.view_src or t)


class _Accesses:
    """What each pack reads and writes, by the tensors that own the memory."""

    def __init__(self, packs: Sequence[Pack], table: bool) -> None:
        self.reads: list[set[int]] = []
        self.writes: list[set[int]] = []
        for pack in packs:
            inside = {id(t) for t in pack} if table else set()
            self.reads.append({_base(s) for t in pack for s in t.src if id(s) not in inside})
            self.writes.append({_base(t) for t in (pack if table else pack[-1:])})


class _Ranges:
    """What a set of packs reads and writes (``ggml_mem_ranges``)."""

    def __init__(self, of: _Accesses) -> None:
        self.of = of
        self.read: set[int] = set()
        self.written: set[int] = set()

    def add(self, pack: int) -> None:
        self.read |= self.of.reads[pack]
        self.written |= self.of.writes[pack]

    def allows(self, pack: int) -> bool:
        """Whether a pack may run at the same time."""
        reads, writes, written = self.of.reads[pack], self.of.writes[pack], self.written
        return reads.isdisjoint(written) and writes.isdisjoint(written) and writes.isdisjoint(self.read)


def _reorder(packs: Sequence[Pack], table: bool) -> Iterator[int]:
    """Packs by number in their new order (``ggml_metal_graph_optimize_reorder``)."""
    accesses = _Accesses(packs, table)
    ops = [pack[0].op for pack in packs]
    used = [False] * len(packs)
    running = _Ranges(accesses)
    for i, op in enumerate(ops):
        if used[i]:
            continue
        if op not in VIEW_OPS and not running.allows(i):
            passed = _Ranges(accesses)
            passed.add(i)
            for k in range(i + 1, min(i + FORWARD, len(packs))):
                if used[k]:
                    continue
                if ops[k] not in _MOVED:
                    break
                if (ops[k] in VIEW_OPS or running.allows(k)) and passed.allows(k):
                    running.add(k)
                    used[k] = True
                    yield k
                else:
                    passed.add(k)
            running = _Ranges(accesses)
        running.add(i)
        yield i


# --- what is packed together ------------------------------------------------------------------------------------------


def _span_of_sums(nodes: Sequence[Tensor], i: int) -> int:
    """Nodes of the longest chain of sums, products and norms from ``i`` on, each read by the next one alone."""
    if nodes[i].op not in ("ADD", *_NORMS):
        return 1
    end = i + 1
    while end < min(len(nodes), i + MAX_FUSED) and nodes[end].op in _PACKED and _feeds(nodes[end - 1], nodes[end]):
        end += 1
    return end - i


def _feeds(t: Tensor, following: Tensor) -> bool:
    """Whether ``following`` alone reads ``t``, in its shape (``ggml_can_fuse``)."""
    alone = t.uses == 1 and t.view_src is None and not t.flags & FLAG_OUTPUT
    both = t.flags & following.flags & FLAG_COMPUTE
    return alone and bool(both) and any(s is t for s in following.src[:2]) and t.ne == following.ne


def _span(nodes: Sequence[Tensor], i: int) -> int:
    """Nodes, views among them, of all fusions that follow one another from ``i`` on."""
    if nodes[i].op not in _BY_FIRST or 0 in nodes[i].ne:
        return 1
    at: list[int] = []
    for k in range(i, len(nodes)):
        if nodes[k].op not in VIEW_OPS and 0 not in nodes[k].ne:
            at.append(k)
            if len(at) == MAX_FUSED:
                break
    done = 0
    while done < len(at):
        n = max((n for n in _fused(nodes, at[done:])), default=0)
        if not n or done + n > MAX_FUSED:
            break
        done += n
    return min(MAX_FUSED, at[done - 1] - i + 1) if done else 1


def _fused(nodes: Sequence[Tensor], at: Sequence[int]) -> Iterator[int]:
    """How many of the computed nodes at these numbers each fusion takes that begins with the first."""
    for ops, computed in _BY_FIRST.get(nodes[at[0]].op, ()):
        n = len(computed)
        if n > len(at) or any(nodes[k].op != op for k, op in zip(at, computed, strict=False)):
            continue
        group = [nodes[k] for k in at[:n]]
        if ops in _GATINGS:
            fits = _is_gating(nodes, at[0], ops)
        elif ops in _SUMS:
            fits = _is_sum(nodes, at[0], ops)
        elif ops[0] == "GATED_DELTA_NET":
            fits = _writes_cache(*group)
        else:
            fits = (
                all(_chained(group[k - 1], group[k]) for k in range(1, n))
                and can_fuse_subgraph(group, group[-1:])
                and _is_chain(group)
            )
        if fits:
            yield n


def _chained(t: Tensor, following: Tensor) -> bool:
    return any(s is t for s in following.src[:2]) and t.ne == following.ne


def _is_chain(group: Sequence[Tensor]) -> bool:
    """The checks of chains that only the last node of which is read."""
    first, rest = group[0], group[1:]
    if first.op in _NORMS:
        if rest[0].op == "SCALE":
            return rest[0].type is F32
        return all(
            t.src[0] is before and t.src[1].ne[0] == first.ne[0] and t.src[1].is_contiguous_rows and t.type is F32
            for before, t in zip(group, rest, strict=False)
        )
    if first.op == "ADD":
        pairs = zip(group, rest, strict=False)
        return all(t.src[0] is before and _same_layout(t.src[1], before.src[1]) for before, t in pairs)
    if first.op == "SSM_CONV":
        silu = rest[0]
        return silu.kind == "SILU" and silu.src[0] is first and silu.type is F32 and silu.is_contiguous_rows
    return False  # a snake, which is no part of these models


def _same_layout(a: Tensor, b: Tensor) -> bool:
    return a.type is b.type and a.ne == b.ne and a.nb == b.nb


def _writes_cache(net: Tensor, copy: Tensor) -> bool:
    """Whether a gated delta net writes its states into the cache itself (``ggml_metal_fusion_check_gdn_cache``)."""
    states, cache = copy.src[0], copy.src[1]
    head, heads, tokens, seqs = net.src[2].ne
    if net.flags & FLAG_OUTPUT or copy.flags & FLAG_OUTPUT or states.op != "VIEW" or states.view_src is not net:
        return False
    size = head * head * heads
    kept = (net.nelements - head * heads * tokens * seqs) // (size * seqs)
    shape = (size, seqs, min(tokens, kept), 1)
    tail = F32.type_size * head * heads * tokens * seqs
    if states.view_offs != tail or not states.is_contiguous or cache.type is not F32 or cache.ne != shape:
        return False
    return cache.nb[:2] == (F32.type_size, F32.type_size * size)


def _is_gating(nodes: Sequence[Tensor], i: int, ops: Sequence[str]) -> bool:
    """A plain softmax whose largest are taken out, and perhaps divided by their sum."""
    group = nodes[i : i + len(ops)]
    if tuple([t.op for t in group]) != tuple(ops):
        return False
    softmax, rows, sort, ids, taken = group[:5]
    logits, out, params = softmax.src[0], group[-1], softmax.params or {}
    plain = params.get("scale", 1.0) == 1.0 and params.get("max_bias", 0.0) == 0.0 and len(softmax.src) == 1
    linked = rows.src[0] is softmax and sort.src[0] is softmax and ids.src[0] is sort
    linked = linked and taken.src[0] is rows and taken.src[1] is ids
    linked = linked and all(group[k].src[0] is group[k - 1] for k in range(5, len(ops)) if group[k].op != "DIV")
    if len(ops) > 6:
        linked = linked and group[8].src[0] is group[5] and group[8].src[1] is group[7]
    if not plain or not linked or logits.type is not F32 or max(logits.ne[0], ids.ne[0]) > 1024:
        return False
    if not logits.is_contiguous or not out.is_contiguous or out.ne[0] != 1 or out.ne[1] != ids.ne[0]:
        return False
    return can_fuse_subgraph(group, (ids, out))


def _is_sum(nodes: Sequence[Tensor], i: int, ops: Sequence[str]) -> bool:
    """Experts times weights, a view of each, and their sum (``ggml_metal_fusion_match_moe_reduce``)."""
    group = nodes[i : i + len(ops)]
    if tuple([t.op for t in group]) != tuple(ops):
        return False
    n = len(ops) // 2
    mul, views, adds = group[0], group[1 : n + 1], group[n + 1 :]
    experts, weights, total = mul.src[0], mul.src[1], group[-1]
    if any(t.type is not F32 or not t.is_contiguous for t in (experts, weights, total)) or 0 in experts.ne:
        return False
    embd, used, tokens, _ = experts.ne
    if used != n or experts.ne[3] != 1 or weights.ne != (1, n, tokens, 1) or total.ne != (embd, tokens, 1, 1):
        return False
    for k, view in enumerate(views):
        own = view.view_src is mul and view.src[0] is mul and view.view_offs == k * mul.nb[1]
        if not own or view.ne[:2] != (embd, tokens) or view.nb[1] != mul.nb[2]:
            return False
    left = views[0]
    for add, right in zip(adds, views[1:], strict=True):
        if add.src[0] is not left or add.src[1] is not right:
            return False
        left = add
    return can_fuse_subgraph(group, group[-1:])


# --- lifetimes --------------------------------------------------------------------------------------------------------


def _stretched(nodes: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """What each chain of the table reads lives until its end, by its ops alone, whether it is then fused or not."""
    by_first: dict[str, list[tuple[str, ...]]] = {}
    for ops in sorted(FUSIONS, key=len, reverse=True):
        by_first.setdefault(ops[0], []).append(ops)
    names = [t.op for t in nodes]
    i = 0
    while i < len(nodes):
        n = next((len(ops) for ops in by_first.get(names[i], ()) if tuple(names[i : i + len(ops)]) == ops), 1)
        seen: set[int] = set()
        for t in nodes[i : i + n] if n > 1 else ():
            for s in t.src:
                if id(s) not in seen:
                    seen.add(id(s))
                    yield s, nodes[i + n - 1]
            seen.add(id(t))
        i += n
