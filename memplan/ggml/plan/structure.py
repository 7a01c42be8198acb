"""A graph put together from parts, as flat lists of numbers: all that planning needs but sizes and homes.

Tensor ids run over the whole graph: first its inputs, then each part's nodes and leafs in turn.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import itemgetter

from memplan.garbage import make_room
from memplan.ggml.backend import Buffer
from memplan.ggml.plan.part_structure import PartStructure, Stretch
from memplan.ggml.plan.parts import GraphParts

Shared = tuple[tuple[int, int, int, int], ...]
"""Leafs that another part has too: position and number, and those of the first part that has it."""


@dataclass(frozen=True, slots=True)
class _Visited:
    """The outs of each part that are ``done``, and all leafs and inputs, in the order in which they are visited."""

    done: list[tuple[int, ...]]
    leafs: dict[int, None]
    inputs: dict[int, None]


class Structure:
    """The structure of a sequence of parts.

    Attributes:
        n_inputs: the graph's inputs, ids 0 and up.  first: the first id of each part.  tables: ids of what a part
            refers to, by code.  at, ref: position of its part and number in it, by id; inputs are in part -1.
        order: node ids as they are computed.  leafs: the leafs that the allocator places, in ggml's order.
        n_leafs: all leafs.  n_given: those of them that lie in buffers of their own.
        computed: the nodes in order that are no views.  views: the others, but for views of scratch leafs.
        readers, numbers, read: of each source of the computed nodes, in order, the node, the source's number, its id.
        of_computed, of_readers, of_read: what a list by id says of these.
        loose: the nodes in order that read scratch leafs or are views of some.
        base: the tensor that owns a view's data, -1 for what is no view.
        owns: whether the allocator places a tensor.  takes: the sources whose places a node may take over.
        kept: whether a tensor is an output, which is never freed.
        n_children, n_views: how many nodes read a tensor, and how many are views of it; for what matters alone.
        matters: whether a tensor's data are the allocator's to place, its own or its base's.
        srcs: sources by id.  needs: those of them that matter.  busy: nodes that the allocator has something to do for.
        read_inputs: inputs that computed nodes read, in order.  all_inputs: these and then the others.
        rows: the same as ``order``, by nodes of one part in a row: its position, the first id, the id behind the last.
        position: the place of each node in ``order``, by id.  segments: places where nodes of another part follow, or
        others of the same part than the next ones.
    """

    def __init__(self, parts: Sequence[PartStructure], n_inputs: int, shared: Shared) -> None:
        self._parts = parts
        self.n_inputs = n_inputs
        self.first: list[int] = []
        self.tables: list[list[int]] = []
        self.at: list[int] = [-1] * n_inputs
        self.ref: list[int] = list(range(n_inputs))
        self.base: list[int] = [-1] * n_inputs
        self.owns = bytearray([True] * n_inputs)
        self.matters = bytearray([True] * n_inputs)
        self.busy = bytearray([True] * n_inputs)
        self.kept = bytearray(n_inputs)
        self.srcs: list[tuple[int, ...]] = [()] * n_inputs
        self.needs: list[tuple[int, ...]] = [()] * n_inputs
        self.takes: list[tuple[int, ...]] = [()] * n_inputs
        given: list[int] = []
        for at, part in enumerate(parts):
            first, n_own = len(self.at), part.n_own
            self.first.append(first)
            own = list(range(first, first + n_own))
            for place, r, other, r0 in shared:
                if place == at:
                    own[r] = self.first[other] + r0
            table = part.table(own, given, n_inputs)
            pairs = part.pairs(table)
            leafs: list[tuple[int, ...]] = [()] * len(part.kept)
            self.tables.append(table)
            self.at += [at] * n_own
            self.ref += range(n_own)
            self.base += map(part.table(own, list(map(self._owner, given)), n_inputs).__getitem__, part.base_codes)
            self.owns += part.owns
            self.matters += part.matters
            self.busy += part.busy
            self.kept += part.outputs
            self.srcs += [row(pairs) for row in part.rows] + leafs
            self.needs += [row(pairs) for row in part.needs] + leafs
            self.takes += [row(pairs) for row in part.taken] + leafs
            given = [table[part.code(r)] for r in part.outs]
        self.order: list[int] = []
        self.leafs: list[int] = []
        self.computed: list[int] = []
        self.views: list[int] = []
        self.loose: list[int] = []
        self.readers: list[int] = []
        self.numbers: list[int] = []
        self.read: list[int] = []
        self.segments: list[int] = []
        done = self._arrange()
        scratch = {i for i in self.leafs if i >= n_inputs}
        self.views = [i for i in self.views if self.base[i] not in scratch]
        self.loose = [i for i in self.loose if not scratch.isdisjoint((*self.srcs[i], self.base[i]))]
        starts = [0, *self.segments]
        ends = [*self.segments, len(self.order)]
        self.rows = [
            (self.at[self.order[start]], self.order[start], self.order[end - 1] + 1)
            for start, end in zip(starts, ends, strict=True)
            if start < end
        ]
        self.position = array("i", bytes(4 * len(self.at)))
        for place, i in enumerate(self.order):
            self.position[i] = place
        self.of_computed, self.of_readers, self.of_read = map(_lookup, (self.computed, self.readers, self.read))
        self._count(done)

    @cached_property
    def uses(self) -> Counter[int]:
        """How many sources name each tensor."""
        return Counter(chain.from_iterable(map(self.srcs.__getitem__, self.order)))

    def _owner(self, i: int) -> int:
        return self.base[i] if self.base[i] >= 0 else i

    def _arrange(self) -> list[tuple[int, ...]]:
        """Order nodes and leafs: what a part hands on is completed when a later part, or the end, first visits it.

        Returns the outs of each part in the order in which they are visited.
        """
        parts = self._parts
        found = _Visited([()] * len(parts), {}, {})
        for at in range(len(parts)):
            self._emit(at, found)
        for out in range(len(parts[-1].outs)):
            self._visit(len(parts) - 1, out, found)
        self.leafs = [i for i in found.leafs if self.owns[i]]
        self.n_leafs = len(found.leafs)
        self.n_given = len(found.leafs) - len(self.leafs)
        self.read_inputs = tuple(found.inputs)
        self.all_inputs = tuple(dict.fromkeys([*found.inputs, *[i for i in self.leafs if i < self.n_inputs]]))
        return found.done

    def _visit(self, at: int, out: int, found: _Visited) -> None:
        if out not in found.done[at]:
            found.done[at] += (out,)
            self._emit(at, found)

    def _emit(self, at: int, found: _Visited) -> None:
        table = self.tables[at]
        for stretch in self._parts[at].stretches(found.done[at]):
            found.leafs.update(dict.fromkeys(map(table.__getitem__, stretch.leafs)))
            self._add(at, stretch)
            found.inputs.update({i: None for code in stretch.inputs if (i := table[code]) < self.n_inputs})
            if stretch.given >= 0:
                self._visit(at - 1, stretch.given, found)

    def _add(self, at: int, stretch: Stretch) -> None:
        if not stretch.nodes:
            return
        first, start, own = self.first[at], len(self.order), self.tables[at]
        follows = start and self.order[-1] + 1 == first + stretch.nodes[0] and self.at[self.order[-1]] == at
        if start and not follows:
            self.segments.append(start)
        self.segments += map(start.__add__, stretch.breaks)
        self.order += map(own.__getitem__, stretch.nodes)
        self.computed += map(own.__getitem__, stretch.computed)
        self.views += map(own.__getitem__, stretch.views)
        self.loose += map(own.__getitem__, stretch.loose)
        self.readers += map(own.__getitem__, stretch.readers)
        self.numbers += stretch.numbers
        self.read += map(own.__getitem__, stretch.read)

    def _count(self, done: Sequence[tuple[int, ...]]) -> None:
        self.n_children = [0] * self.n_inputs
        self.n_views = [0] * self.n_inputs
        for part, outs, table in zip(self._parts, done, self.tables, strict=True):
            counts = part.counts(outs)
            self.n_children += counts.children
            self.n_views += counts.views
            for code, n in counts.others.items():
                self.n_children[table[code]] += n
            for code, n in counts.other_views.items():
                self.n_views[self._owner(table[code])] += n

    def id(self, at: int, r: int) -> int:
        """The id of what the part at a position refers to as ``r``."""
        return self.tables[at][self._parts[at].code(r)]

    def buffers(self, graph: GraphParts) -> list[Buffer | None]:
        """By id, where what is not the allocator's lies; a view's own entry says nothing."""
        found: list[Buffer | None] = [None] * self.n_inputs
        for part, buffers in zip(graph.parts, graph.buffers, strict=True):
            found += [None] * len(part.nodes)
            found += buffers
        return found


def _lookup(ids: Sequence[int]) -> Callable[[Sequence[int]], Sequence[int]]:
    """Looks all of ``ids`` up in a list, quicker than one by one."""
    return itemgetter(*ids) if len(ids) > 1 else lambda values: [values[i] for i in ids]


KEPT = 16
"""Structures that are remembered, and lists of steps through them."""

KEPT_NODES = 150_000
"""Nodes of all that are remembered together, where graphs are long, some 300 bytes each: a context of DeepSeek-V4-Pro
in b9842 takes three graphs of 50,000 in turn."""

_structures: dict[tuple[object, ...], Structure] = {}


def kept_of(n_nodes: int, least: int = 2, most: int = KEPT) -> int:
    """How many structures of so many nodes are remembered; of the ways to split them, twice as many."""
    return max(least, min(most, KEPT_NODES // max(1, n_nodes)))


def structure_of(graph: GraphParts) -> Structure:
    """The graph's structure, the same object for graphs that differ in sizes and places alone."""
    shared = _shared(graph)
    parts = [part.structure for part in graph.parts]
    key = (len(graph.inputs), shared, *parts)
    found = _structures.get(key)
    if found is None:
        make_room(_structures, kept_of(graph.n_nodes))
        found = _structures[key] = Structure(parts, len(graph.inputs), shared)
    return found


def _shared(graph: GraphParts) -> Shared:
    found: list[tuple[int, int, int, int]] = []
    first: dict[tuple[str, Buffer | None], tuple[int, int]] = {}
    for at, (part, buffers) in enumerate(zip(graph.parts, graph.buffers, strict=True)):
        n = len(part.nodes)
        for r in part.structure.shared:
            known = first.setdefault((part.roles[r - n], buffers[r - n]), (at, r))
            if known != (at, r):
                found.append((at, r, *known))
    return tuple(found)
