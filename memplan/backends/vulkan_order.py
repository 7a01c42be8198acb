"""The order in which Vulkan computes a split's nodes, and the lifetimes that its fusions stretch.

Follows ``ggml_vk_graph_optimize`` (ggml/src/ggml-vulkan/ggml-vulkan.cpp), read in builds 9840, 10362, 10819 (as v0.4.0
has it), v0.5.0 and 11434. It groups up to 20 nodes that do not wait for each other, so that no barrier stands between
them, and keeps chains together that one shader computes. GGML_VK_DISABLE_GRAPH_OPTIMIZE, which turns it off, is taken
as not set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from memplan.backends.fusing import can_fuse_subgraph
from memplan.ggml.tensor import VIEW_OPS, contiguous_above
from memplan.gguf.types import F16, F32
from memplan.releases.other_backends import VulkanOrder

if TYPE_CHECKING:
    from memplan.ggml.backend import Traits
    from memplan.ggml.tensor import Tensor

Deps = list[tuple["Tensor", "Tensor"]]
Pattern = tuple[str, ...]

WINDOW = 20
"""Nodes that are looked at, from the first that has no place yet (NUM_TO_CHECK)."""

_REACH = 15
"""How far a node is looked for that a chain is completed with."""


def _pattern(text: str) -> Pattern:
    return tuple(text.split())


_NORMALISE = "GET_ROWS RESHAPE SUM_ROWS CLAMP DIV RESHAPE"
SOFTMAX_NORM = _pattern(f"SOFT_MAX RESHAPE ARGSORT VIEW {_NORMALISE}")
SIGMOID_NORM = _pattern(f"UNARY RESHAPE ADD ARGSORT VIEW {_NORMALISE}")
SQRT_SOFTPLUS_NORM = _pattern(f"UNARY SQRT RESHAPE ADD ARGSORT VIEW {_NORMALISE}")
EARLY_SOFTMAX = _pattern("SOFT_MAX RESHAPE ARGSORT VIEW GET_ROWS")
LATE_SOFTMAX = _pattern("ARGSORT VIEW GET_ROWS RESHAPE SOFT_MAX RESHAPE")
SNAKE = _pattern("MUL SIN SQR MUL ADD")
SPARSE_TOP_K = _pattern("GET_ROWS PERMUTE CONT CPY RESHAPE ADD TOP_K")
"""``topk_qsa_pattern``: no node of it is moved, not only its first."""
NORMS_AND_ROPES = (
    _pattern("RMS_NORM MUL ADD MUL"),
    _pattern("RMS_NORM MUL ADD"),
    _pattern("RMS_NORM MUL ROPE VIEW SET_ROWS"),
    _pattern("RMS_NORM VIEW SET_ROWS"),
    _pattern("ROPE VIEW SET_ROWS"),
)
HYPER_CONNECTION_GATE = _pattern("SCALE UNARY SCALE DSV4_HC_POST")

_FUSED_WITH_MUL = frozenset({"GELU", "SIGMOID", "SILU", "SOFTPLUS"})
"""Unary operators whose product one shader computes (``ggml_vk_unary_mul_op_index``)."""

_NEXT = frozenset(
    {
        ("RMS_NORM", "MUL"),
        ("MUL_MAT", "ADD"),
        ("MUL_MAT_ID", "ADD_ID"),
        ("MUL_MAT_ID", "MUL"),
        ("ADD", "ADD"),
        ("SSM_CONV", "ADD"),
        ("SSM_CONV", "UNARY"),
    }
)
"""Pairs that are grouped although the second waits for the first, when it is the next node."""

_PAST_VIEWS = frozenset({("RMS_NORM", "MUL"), ("UNARY", "MUL")})
"""The same from v0.5.0 on, when only views and nodes that have a place lie between."""


@dataclass(frozen=True)
class OrderRules:
    """What a release does.

    ``gatings``: chains of a top-k gating, in the order in which they are tried.  ``chains``: others, after them.
    ``aliases``: nodes wait for each other too where one reads, through a view, what the other writes.
    ``past_views``: a norm is followed by its set of rows, a unary operator by its product, though views lie between;
    and what a gating reads lives until its end.  ``gates``: other chains of which the last is true.
    """

    gatings: tuple[Pattern, ...]
    chains: tuple[Pattern, ...] = (SNAKE,)
    aliases: bool = False
    past_views: bool = False
    gates: tuple[Pattern, ...] = ()

    @cached_property
    def by_first(self) -> dict[str, list[Pattern]]:
        """All chains by their first op, in the order in which they are tried."""
        found: dict[str, list[Pattern]] = {}
        for pattern in (*self.gatings, *self.chains, *self.gates):
            found.setdefault(pattern[0], []).append(pattern)
        return found


_GATINGS = (SOFTMAX_NORM, SIGMOID_NORM, EARLY_SOFTMAX, LATE_SOFTMAX)
_MORE_GATINGS = (SOFTMAX_NORM, SIGMOID_NORM, SQRT_SOFTPLUS_NORM, EARLY_SOFTMAX, LATE_SOFTMAX)
_NORMS = OrderRules(_MORE_GATINGS, (SNAKE, SPARSE_TOP_K, *NORMS_AND_ROPES), aliases=True, past_views=True)

RULES = {
    VulkanOrder.GATINGS: OrderRules(_GATINGS),
    VulkanOrder.SQRT_SOFTPLUS: OrderRules(_MORE_GATINGS),
    VulkanOrder.TOP_K: OrderRules(_MORE_GATINGS, (SNAKE, SPARSE_TOP_K), aliases=True),
    VulkanOrder.NORMS: _NORMS,
    VulkanOrder.GATES: replace(_NORMS, gates=(HYPER_CONNECTION_GATE,)),
}


def graph_optimize(nodes: Sequence[Tensor], rules: OrderRules) -> tuple[list[Tensor], Deps]:
    """The nodes of one split in their new order, and (tensor, until) for each lifetime that is stretched.

    ``nodes``: sources already replaced by the scheduler's copies; their ``uses`` are those of the whole graph before.
    """
    order = _Order(nodes, rules)
    return [nodes[i] for i in order.find()], order.deps


def traits(t: Tensor) -> Traits:
    """What of a node, beside sources, views and flags, its place in the order goes by."""
    if t.op != "MUL":
        return t.op, ()
    a, b = t.src
    return (t.op, a.op == "UNARY" and _fuses(a, t, b), b.op == "UNARY" and _fuses(b, t, a)), ()


class _Order:
    """One split on its way to a new order; nodes by number. ``used``: those that have a place, or are sure of one."""

    def __init__(self, nodes: Sequence[Tensor], rules: OrderRules) -> None:
        self.nodes = nodes
        self.rules = rules
        self.n = len(nodes)
        self.ops = [t.op for t in nodes]
        self.empty = [op in VIEW_OPS for op in self.ops]
        self.used = [False] * self.n
        self.placed: set[int] = set()  # tensors that have a place, by identity
        self.deps: Deps = []
        self.waits = self._waits()
        self.chains: dict[int, list[Pattern]] = {}
        for i, op in enumerate(self.ops):
            for pattern in rules.by_first.get(op, ()):
                if tuple(self.ops[i : i + len(pattern)]) == pattern:
                    self.chains.setdefault(i, []).append(pattern)
        self.held = {
            i + k for i, patterns in self.chains.items() if SPARSE_TOP_K in patterns for k in range(len(SPARSE_TOP_K))
        }

    def _waits(self) -> list[list[int]]:
        """For each node the earlier ones within a window that it must come after (``is_src_of``)."""
        number: dict[int, int] = {}
        of_base: dict[int, list[int]] = {}
        readers: dict[int, list[int]] = {}
        aliases, empty = self.rules.aliases, self.empty
        waits = []
        for j, t in enumerate(self.nodes):
            base = id(t.view_src or t)
            sources = [id(s.view_src or s) for s in t.src]
            found = {number.get(id(s), -1) for s in t.src}
            found.update(of_base.get(base, ())[-WINDOW:])
            if aliases and not empty[j]:
                for s in sources:
                    found.update([c for c in of_base.get(s, ())[-WINDOW:] if not empty[c]])
                found.update(readers.get(base, ())[-WINDOW:])
            waits.append([c for c in found if c > j - WINDOW and c >= 0])
            number[id(t)] = j
            of_base.setdefault(base, []).append(j)
            if aliases and not empty[j]:
                for s in sources:
                    readers.setdefault(s, []).append(j)
        return waits

    def find(self) -> list[int]:
        """The new order."""
        order: list[int] = []
        first, n, used = 0, self.n, self.used
        while first < n:
            group = self._chain(first) or self._group(first)
            order += group
            for i in group:
                used[i] = True
                self.placed.add(id(self.nodes[i]))
            while first < n and used[first]:
                first += 1
        return order

    def _unused(self, start: int, pattern: Pattern) -> bool:
        return not any(self.used[start : start + len(pattern)])

    def _chain(self, first: int) -> list[int]:
        """The chain that starts at ``first``, in its own order; nothing if there is none."""
        for pattern in self.chains.get(first, ()):
            if not self._unused(first, pattern):
                continue
            end = first + len(pattern)
            gating = self.rules.past_views and pattern in self.rules.gatings
            if gating or pattern in self.rules.gates:
                scaled = gating and end < self.n and self.ops[end] == "SCALE"
                self._stretch(first, end, self.nodes[end if scaled else end - 1])
            return list(range(first, end))
        return []

    def _stretch(self, start: int, end: int, until: Tensor) -> None:
        """What a chain reads, apart from its own nodes, lives until its end (``add_pattern_alloc_deps``)."""
        seen: set[int] = set()
        for t in self.nodes[start:end]:
            for s in t.src:
                if id(s) not in seen:
                    seen.add(id(s))
                    self.deps.append((s, until))
            seen.add(id(t))

    def _keeps(self, j: int) -> bool:
        """Whether ``j`` starts a chain that must not be moved, or stands within one that may not be parted."""
        if j in self.chains and any(self._unused(j, pattern) for pattern in self.chains[j]):
            return True
        if j not in self.held:
            return False
        starts = range(max(0, j - len(SPARSE_TOP_K) + 1), j + 1)
        return any(SPARSE_TOP_K in self.chains.get(i, ()) and self._unused(i, SPARSE_TOP_K) for i in starts)

    def _group(self, first: int) -> list[int]:
        """``first`` and the nodes of its window that need not wait: computed ones first, then views."""
        used, empty, waits = self.used, self.empty, self.waits
        group = [first]
        end = min(first + WINDOW, self.n)
        for j in range(first + 1, end):
            if used[j] or empty[j] or self._keeps(j):
                continue
            last = group[-1]
            for c in waits[j]:
                if c >= first and not used[c] and not (c == last and self._follows(c, j)):
                    break
            else:
                group.append(j)
                for k in self._pulled(j):
                    group.append(k)
                    used[k] = True
        # a view is not put between an ADD and what it may be fused with
        if self.ops[group[-1]] != "ADD":
            grouped = set(group)
            for j in range(first + 1, end):
                if used[j] or not empty[j]:
                    continue
                for c in waits[j]:
                    if c >= first and not used[c] and c not in grouped:
                        break
                else:
                    group.append(j)
                    grouped.add(j)
        return group

    def _follows(self, c: int, j: int) -> bool:
        """Whether ``j`` may be grouped with ``c`` although it waits for it, since one shader computes both."""
        pair = (self.ops[c], self.ops[j])
        if self.rules.past_views and pair in _PAST_VIEWS:
            return all(self.used[v] or self.empty[v] for v in range(c + 1, j))
        return j == c + 1 and pair in _NEXT

    # --- nodes that complete a chain are pulled up to it -----------------------------------------------------------

    def _pulled(self, j: int) -> Iterator[int]:
        """Nodes that come right behind ``j``; each is sure of its place before the next is looked for."""
        op, before = self.ops[j], self.ops[j - 1]
        rope = j
        if op == "MUL" and before == "RMS_NORM":
            for k in self._ahead(j, "ROPE"):
                t = self.nodes[k]
                if t.src[0] is self.nodes[j] and all(s.op == "NONE" for s in t.src[1:3]):
                    yield k
                    rope = k
                    break
        if self.ops[rope] == "ROPE" or (self.rules.past_views and self.ops[rope] == "RMS_NORM"):
            yield from self._set_rows(rope)
        if (op, before) in (("ADD_ID", "MUL_MAT_ID"), ("ADD", "MUL_MAT")):
            yield from self._ready(j, "MUL" if op == "ADD_ID" else "ADD")
        if op == "ADD" and before == "SSM_CONV":
            yield from [k for k in self._ahead(j, "UNARY") if self.nodes[k].src[0] is self.nodes[j]][:1]
        if op == "UNARY" and self.rules.past_views:
            yield from self._product(j)

    def _ahead(self, j: int, op: str) -> list[int]:
        return [k for k in range(j + 1, min(j + _REACH, self.n)) if self.ops[k] == op]

    def _is_ready(self, t: Tensor) -> bool:
        return t.op == "NONE" or id(t) in self.placed

    def _ready(self, j: int, op: str) -> list[int]:
        """The first ``op`` of ``j`` whose other source is a leaf or has its place."""
        found = [k for k in self._ahead(j, op) if self.nodes[k].src[0] is self.nodes[j]]
        return [k for k in found if self._is_ready(self.nodes[k].src[1])][:1]

    def _product(self, j: int) -> list[int]:
        """The first product of the unary ``j`` that one shader computes with it."""
        unary = self.nodes[j]
        for k in self._ahead(j, "MUL"):
            mul = self.nodes[k]
            a, b = mul.src
            if a is not unary and b is not unary:
                continue
            other = b if a is unary else a
            if self._is_ready(other) and _fuses(unary, mul, other):
                return [k]
        return []

    def _set_rows(self, i: int) -> list[int]:
        """The view of ``i``, and the SET_ROWS of that view."""
        t, ops, checks = self.nodes[i], self.ops, self.rules.past_views
        view = -1
        for k in range(i + 1, min(i + (_REACH if checks else 10), self.n)):
            if checks and self.used[k]:
                continue
            if view < 0 and ops[k] == "VIEW" and self.nodes[k].src[0] is t:
                view = k
            elif view >= 0 and ops[k] == "SET_ROWS" and self.nodes[k].src[0] is self.nodes[view]:
                return [view, k] if not checks or self._can_pull(i, view, k) else []
        return []

    def _can_pull(self, i: int, view: int, rows: int) -> bool:
        """Whether nothing else reads what is fused, and the set of rows waits for nothing that lies between."""
        nodes = self.nodes
        if not can_fuse_subgraph((nodes[i], nodes[view], nodes[rows]), (nodes[rows],)):
            return False
        return not any(c > i and c != view and not self.used[c] and not self.empty[c] for c in self.waits[rows])


def _fuses(unary: Tensor, mul: Tensor, other: Tensor) -> bool:
    """``ggml_vk_can_fuse_unary_mul``."""
    if unary.kind not in _FUSED_WITH_MUL or unary.type not in (F32, F16):
        return False
    if mul.type is not unary.type or other.type is not unary.type:
        return False
    if not contiguous_above(other, 1) or not contiguous_above(unary.src[0], 1):
        return False
    if mul.src[0] is unary:
        return _can_repeat(other, unary)
    return _can_repeat(unary, mul.src[0])


def _can_repeat(t: Tensor, over: Tensor) -> bool:
    """Whether ``over`` is ``t`` a whole number of times (``ggml_can_repeat``)."""
    if 0 in t.ne:
        return 0 in over.ne
    return all(b % a == 0 for a, b in zip(t.ne, over.ne, strict=True))
