"""How the tensors of one part hang together: all that a graph's structure takes over of it, again and again.

A model has a few kinds of layers, so what can be found out about a part alone is found once and, for each place where
the part stands, only looked up: each reference has a code, the place of its tensor in a table that the graph makes for
the part there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Any

from memplan.garbage import make_room

FIRST_INPUT = -1000
"""The number of the graph's first input; the next one's is one less."""

NO_BASE = -(1 << 30)
"""``PartStructure.bases`` of what is no view."""

KEPT_STRUCTURES = 1024
"""Structures of parts that are remembered."""

Row = Callable[[list[Any]], Any]
"""Looks up some tensors of a part in its ``pairs``."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Nodes that are visited in a row, by number, and what they read.

    ``breaks``: places, from the second on, of nodes that do not follow the one before by number.  ``leafs``: codes of
    the leafs and inputs that are visited.  ``given``: what is then visited of the part before, -1 for nothing.
    ``computed``: nodes that are no views.  ``views``: the others.  ``loose``: nodes that read or show scratch leafs,
    or what is handed on.  ``readers``, ``numbers``, ``read``: of each source of a computed node the node, the source's
    number, its code.  ``inputs``: codes of what may be the graph's inputs among them.
    """

    nodes: tuple[int, ...]
    breaks: tuple[int, ...]
    leafs: tuple[int, ...]
    given: int
    computed: tuple[int, ...]
    views: tuple[int, ...]
    loose: tuple[int, ...]
    readers: tuple[int, ...]
    numbers: tuple[int, ...]
    read: tuple[int, ...]
    inputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Counts:
    """How many nodes read each of a part's tensors, and how many are views of it; for what the allocator places.

    ``others``, ``other_views``: the same of what is not the part's own, by code.
    """

    children: list[int]
    views: list[int]
    others: dict[int, int]
    other_views: dict[int, int]


@dataclass(frozen=True, eq=False)
class PartStructure:
    """What parts have in common that differ in sizes alone: one object for all of them.

    Attributes:
        srcs: each node's sources.  bases: what each node is a view of.  takes: which sources' places a node may take.
        computed: whether a node is no view.  outputs: whether a node or leaf is an output.  kept: whether a leaf lies
            in a buffer, and is no scratch.
        shared: leafs that belong to the whole graph: where another part has one of the same role in the same buffer,
            it is the same tensor.
        n_given: how many tensors the part before hands on.  outs: the tensors that it hands on itself.
        roots: what was expanded while the part was built, in order.
    """

    srcs: tuple[tuple[int, ...], ...]
    bases: tuple[int, ...]
    takes: tuple[tuple[int, ...], ...]
    computed: bytes
    outputs: bytes
    kept: bytes
    shared: tuple[int, ...]
    n_given: int
    outs: tuple[int, ...]
    roots: tuple[int, ...]
    _walks: dict[tuple[int, ...], list[int]] = field(init=False, default_factory=dict)
    _stretches: dict[tuple[int, ...], list[Stretch]] = field(init=False, default_factory=dict)
    _counts: dict[tuple[int, ...], Counts] = field(init=False, default_factory=dict)

    @staticmethod
    def of(*given: Any) -> PartStructure:
        """The one object with these attributes."""
        known = _structures.get(given)
        if known is None:
            make_room(_structures, KEPT_STRUCTURES)
            known = _structures[given] = PartStructure(*given)
        return known

    @property
    def n_nodes(self) -> int:
        """How many nodes there are."""
        return len(self.srcs)

    @property
    def n_own(self) -> int:
        """How many nodes and leafs there are."""
        return len(self.srcs) + len(self.kept)

    # --- codes --------------------------------------------------------------------------------------------------------

    def table(self, own: Sequence[int], given: Sequence[int], n_inputs: int) -> list[int]:
        """Ids by code: of the part's own tensors, of what is handed on to it, -1 for none, of the graph's inputs."""
        return [*own, *given, -1, *range(n_inputs)]

    def pairs(self, table: Sequence[int]) -> list[Any]:
        """Each id of a table, and a tuple of it alone: what a ``Row`` is looked up in."""
        found: list[Any] = [None] * (2 * len(table))
        found[::2] = table
        found[1::2] = zip(table)
        found[2 * self._none + 1] = ()
        return found

    def code(self, r: int) -> int:
        """The place in a table of what the part refers to as ``r``."""
        if r >= 0:
            return r
        if r == NO_BASE:
            return self._none
        return self._none + 1 + FIRST_INPUT - r if r <= FIRST_INPUT else self.n_own - 1 - r

    @cached_property
    def _none(self) -> int:
        return self.n_own + self.n_given

    def _row(self, refs: Sequence[int]) -> Row:
        codes = [2 * self.code(r) for r in refs]
        if len(codes) > 1:
            return itemgetter(*codes)
        return itemgetter(codes[0] + 1 if codes else 2 * self._none + 1)

    # --- by tensor ----------------------------------------------------------------------------------------------------

    @cached_property
    def rows(self) -> list[Row]:
        """Each node's sources."""
        return [self._row(refs) for refs in self.srcs]

    @cached_property
    def needs(self) -> list[Row]:
        """Those of each node's sources that the allocator places."""
        return [self._row([r for r in refs if self._matters(r)]) for refs in self.srcs]

    @cached_property
    def taken(self) -> list[Row]:
        """The sources whose places a node may take."""
        return [self._row([refs[j] for j in takes]) for refs, takes in zip(self.srcs, self.takes, strict=True)]

    @cached_property
    def base_codes(self) -> list[int]:
        """What each tensor is a view of."""
        return [*map(self.code, self.bases), *[self._none] * len(self.kept)]

    @cached_property
    def owns(self) -> bytes:
        """Whether the allocator places a tensor."""
        return bytes([*[b == NO_BASE for b in self.bases], *[not kept for kept in self.kept]])

    @cached_property
    def matters(self) -> bytes:
        """Whether a tensor's data are the allocator's to place, its own or its base's."""
        return bytes([self._matters(r) for r in range(self.n_own)])

    @cached_property
    def busy(self) -> bytes:
        """Tensors that the allocator has something to do for."""
        needs = [any(map(self._matters, refs)) for refs in self.srcs] + [False] * len(self.kept)
        return bytes([own or need for own, need in zip(self.owns, needs, strict=True)])

    def _matters(self, r: int) -> bool:
        """Only leafs in buffers do not, and their views; a part cannot hand one on."""
        if 0 <= r < self.n_nodes and self.bases[r] != NO_BASE:
            r = self.bases[r]
        return r < self.n_nodes or not self.kept[r - self.n_nodes]

    # --- in order -----------------------------------------------------------------------------------------------------

    def stretches(self, done: tuple[int, ...]) -> list[Stretch]:
        """What is visited while the part is built; or, of outs that are ``done``, what visiting the last then adds."""
        known = self._stretches.get(done)
        if known is None:
            known = self._stretches[done] = list(self._cut(self._walk(done)))
        return known

    def counts(self, done: tuple[int, ...]) -> Counts:
        """Who reads what when these outs were visited."""
        known = self._counts.get(done)
        if known is None:
            refs = [r for n in range(len(done) + 1) for r in self._walk(done[:n])]
            nodes = [r for r in refs if 0 <= r < self.n_nodes]
            children = Counter(self.code(s) for r in nodes for s in self.srcs[r] if self._matters(s))
            views = Counter(self.code(b) for r in nodes if (b := self.bases[r]) != NO_BASE and self._matters(r))
            own = range(self.n_own)
            known = self._counts[done] = Counts(
                [children.pop(c, 0) for c in own], [views.pop(c, 0) for c in own], dict(children), dict(views)
            )
        return known

    def _walk(self, done: tuple[int, ...]) -> list[int]:
        """Nodes, leafs, inputs and what is handed on to the part, in the order in which they are visited."""
        known = self._walks.get(done)
        if known is None:
            seen: set[int] = set()
            for n in range(len(done)):
                seen.update(self._walk(done[:n]))
            roots = (self.outs[done[-1]],) if done else self.roots
            known = self._walks[done] = [r for root in roots for r in self._visit(root, seen)]
        return known

    def _visit(self, root: int, seen: set[int]) -> list[int]:
        """What is added for ``root``, sources first, left to right, as ``Graph.expand`` does it."""
        if root in seen:
            return []
        seen.add(root)
        found: list[int] = []
        srcs, n = self.srcs, len(self.srcs)
        stack = [(root, iter(srcs[root] if 0 <= root < n else ()))]
        while stack:
            node, sources = stack[-1]
            for r in sources:
                if r not in seen:
                    seen.add(r)
                    if 0 <= r < n:
                        stack.append((r, iter(srcs[r])))
                        break
                    found.append(r)
            else:
                stack.pop()
                found.append(node)
        return found

    def _cut(self, refs: Sequence[int]) -> Iterator[Stretch]:
        nodes: list[int] = []
        leafs: list[int] = []
        for r in refs:
            if 0 <= r < self.n_nodes:
                nodes.append(r)
            elif -self.n_given <= r < 0:
                yield self._stretch(nodes, leafs, -1 - r)
                nodes, leafs = [], []
            else:
                leafs.append(self.code(r))
        if nodes or leafs:
            yield self._stretch(nodes, leafs, -1)

    def _stretch(self, nodes: Sequence[int], leafs: Sequence[int], given: int) -> Stretch:
        computed = [r for r in nodes if self.computed[r]]
        reads = [(r, j, s) for r in computed for j, s in enumerate(self.srcs[r])]
        return Stretch(
            nodes=tuple(nodes),
            breaks=tuple([place for place in range(1, len(nodes)) if nodes[place] != nodes[place - 1] + 1]),
            leafs=tuple(leafs),
            given=given,
            computed=tuple(computed),
            views=tuple([r for r in nodes if not self.computed[r]]),
            loose=tuple([r for r in nodes if any(map(self._may_be_scratch, (*self.srcs[r], self.bases[r])))]),
            readers=tuple([r for r, _, _ in reads]),
            numbers=tuple([j for _, j, _ in reads]),
            read=tuple([self.code(s) for _, _, s in reads]),
            inputs=tuple(dict.fromkeys(self.code(s) for _, _, s in reads if s < 0)),
        )

    def _may_be_scratch(self, r: int) -> bool:
        return FIRST_INPUT < r < 0 or (r >= self.n_nodes and not self.kept[r - self.n_nodes])


_structures: dict[tuple[Any, ...], PartStructure] = {}
