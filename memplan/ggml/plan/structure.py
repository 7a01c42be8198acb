"""A graph put together from parts, as flat lists of numbers: all that planning needs but sizes and homes.

Tensor ids run over the whole graph: first its inputs, then each part's nodes and leafs in turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from memplan.garbage import make_room
from memplan.ggml.backend import Buffer
from memplan.ggml.plan.parts import FIRST_INPUT, NO_BASE, GraphParts, PartStructure

Shared = tuple[tuple[int, int, int, int], ...]
"""Leafs that another part has too: position and number, and those of the first part that has it."""


class Structure:
    """The structure of a sequence of parts.

    Attributes:
        n_inputs: the graph's inputs, ids 0 and up.  first: the first id of each part.  where: part and number in it,
            by id; inputs are in part -1.  given: what is handed on to each part.
        same: ids of leafs that an earlier part has too, by part and number.
        order: node ids as they are computed.  leafs: the leafs that the allocator places, in ggml's order.
        n_leafs: all leafs.  n_given: those of them that lie in buffers of their own.
        computed: the nodes in order that are no views.  views: the others, but for views of scratch leafs.
        reads: computed nodes, in order, with the number and the id of each source.
        loose: the nodes in order that read scratch leafs or are views of some.
        srcs: sources by id.  base: the tensor that owns a view's data, -1 for what is no view.
        owns: whether the allocator places a tensor.  takes: which sources' places a node may take over.
        kept: whether a tensor is an output, which is never freed.
        n_children, n_views: how many nodes read a tensor, and how many are views of it; for what matters alone.
        matters: whether a tensor's data are the allocator's to place, its own or its base's.
        needs: by id, the sources that matter.  busy: by id, nodes that the allocator has something to do for.
        read_inputs: inputs that computed nodes read, in order.  all_inputs: these and then the others.
        position: the place of each node in ``order``.  segments: places where nodes of another part follow, or others
        of the same part than the next ones.
    """

    def __init__(self, parts: Sequence[PartStructure], n_inputs: int, shared: Shared) -> None:
        self.n_inputs = n_inputs
        self.first: list[int] = []
        self.srcs: list[tuple[int, ...]] = [()] * n_inputs
        self.base: list[int] = [-1] * n_inputs
        self.owns: list[bool] = [True] * n_inputs
        self.kept: list[bool] = [False] * n_inputs
        self.takes: list[tuple[int, ...]] = [()] * n_inputs
        self.given: list[list[int]] = []
        self.where: list[tuple[int, int]] = [(-1, i) for i in range(n_inputs)]
        computed = [False] * n_inputs
        self.same = {(at, r): self._first_of(parts, n_inputs, other) + r0 for at, r, other, r0 in shared}
        given: list[int] = []
        for at, part in enumerate(parts):
            first = len(self.srcs)
            self.first.append(first)
            self.given.append(given)
            ids = _Ids(first, given)
            ids.update({r: self.same[at, r] for r in part.shared if (at, r) in self.same})
            self.srcs += [tuple([ids[r] for r in s]) for s in part.srcs]
            for b in part.bases:
                base = -1 if b == NO_BASE else ids[b]
                self.base.append(self.base[base] if 0 <= base < first and self.base[base] >= 0 else base)
            self.owns += [b == NO_BASE for b in part.bases]
            self.takes += part.takes
            self.kept += map(bool, part.outputs)
            computed += map(bool, part.computed)
            n_leafs = len(part.kept)
            self.srcs += [()] * n_leafs
            self.base += [-1] * n_leafs
            self.owns += [not kept for kept in part.kept]
            self.takes += [()] * n_leafs
            computed += [False] * n_leafs
            self.where += [(at, i) for i in range(part.n_nodes + n_leafs)]
            given = [ids[r] for r in part.outs]
        self.order: list[int] = []
        self.leafs: list[int] = []
        self._arrange(parts)
        self.computed = [i for i in self.order if computed[i]]
        scratch = {i for i in self.leafs if i >= n_inputs}
        self.views = [i for i in self.order if not computed[i] and self.base[i] not in scratch]
        self.loose = [i for i in self.order if not scratch.isdisjoint((*self.srcs[i], self.base[i]))] if scratch else []
        self.reads = [(i, j, s) for i in self.computed for j, s in enumerate(self.srcs[i])]
        self.read_inputs = tuple(dict.fromkeys(s for _, _, s in self.reads if s < n_inputs))
        self.all_inputs = tuple(dict.fromkeys([*self.read_inputs, *[i for i in self.leafs if i < n_inputs]]))
        self.segments = [
            place
            for place, (i, before) in enumerate(zip(self.order[1:], self.order, strict=False), 1)
            if i != before + 1 or self.where[i][0] != self.where[before][0]
        ]
        self.position = {i: place for place, i in enumerate(self.order)}
        self._count()

    @staticmethod
    def _first_of(parts: Sequence[PartStructure], n_inputs: int, at: int) -> int:
        """The first id of the part at one position."""
        return n_inputs + sum(part.n_nodes + len(part.kept) for part in parts[:at])

    def _arrange(self, parts: Sequence[PartStructure]) -> None:
        """Order nodes and leafs: what a part hands on is completed when a later part, or the end, first visits it."""
        done: list[tuple[int, ...]] = [()] * len(parts)
        seen: set[int] = set()

        def visit(at: int, out: int) -> None:
            if out not in done[at]:
                done[at] += (out,)
                emit(at, parts[at].tail(done[at]))

        def emit(at: int, refs: list[int]) -> None:
            part, first = parts[at], self.first[at]
            n = part.n_nodes
            for r in refs:
                if 0 <= r < n:
                    self.order.append(first + r)
                elif -part.n_given <= r < 0:
                    visit(at - 1, -1 - r)
                else:
                    i = self.same.get((at, r), first + r) if r >= 0 else FIRST_INPUT - r
                    if i not in seen:
                        seen.add(i)
                        if self.owns[i]:
                            self.leafs.append(i)

        for at, part in enumerate(parts):
            emit(at, part.body)
        for out in range(len(parts[-1].outs)):
            visit(len(parts) - 1, out)
        self.n_leafs = len(seen)
        self.n_given = len(seen) - len(self.leafs)

    def _count(self) -> None:
        owns, base = self.owns, self.base
        self.matters = matters = [owns[b] if b >= 0 else own for own, b in zip(owns, base, strict=True)]
        self.needs = [tuple([i for i in srcs if matters[i]]) if srcs else () for srcs in self.srcs]
        self.n_children = [0] * len(self.srcs)
        self.n_views = [0] * len(self.srcs)
        for i in self.order:
            if base[i] >= 0 and matters[i]:
                self.n_views[base[i]] += 1
            for s in self.needs[i]:
                self.n_children[s] += 1
        self.busy = [owns[i] or len(needs) > 0 for i, needs in enumerate(self.needs)]

    def id(self, at: int, r: int) -> int:
        """The id of what the part at a position refers to as ``r``."""
        if r >= 0:
            return self.same.get((at, r), self.first[at] + r)
        given = self.given[at]
        return given[-1 - r] if -r <= len(given) else FIRST_INPUT - r

    def buffers(self, graph: GraphParts) -> list[Buffer | None]:
        """By id, where what is not the allocator's lies; a view's own entry says nothing."""
        found: list[Buffer | None] = [None] * self.n_inputs
        for part, buffers in zip(graph.parts, graph.buffers, strict=True):
            found += [None] * len(part.nodes)
            found += buffers
        return found


class _Ids(dict[int, int]):
    """Ids of a part's references: its own from ``first`` on, what it is ``given``, the graph's inputs."""

    def __init__(self, first: int, given: Sequence[int]) -> None:
        super().__init__({-1 - j: i for j, i in enumerate(given)})
        self.first = first

    def __missing__(self, r: int) -> int:
        i = self[r] = self.first + r if r >= 0 else FIRST_INPUT - r
        return i


KEPT = 16
"""Structures that are remembered, and lists of steps through them."""

KEPT_NODES = 100_000
"""Nodes of all that are remembered together, where graphs are long: some 300 bytes each."""

_structures: dict[tuple[object, ...], Structure] = {}


def kept_of(n_nodes: int) -> int:
    """How many structures of so many nodes are remembered; of the ways to split them, twice as many."""
    return max(2, min(KEPT, KEPT_NODES // max(1, n_nodes)))


def structure_of(graph: GraphParts) -> Structure:
    """The graph's structure, the same object for graphs that differ in sizes and places alone."""
    shared = _shared(graph)
    parts = [part.structure for part in graph.parts]
    key = (len(graph.inputs), shared, *parts)
    found = _structures.get(key)
    if found is None:
        make_room(_structures, kept_of(sum([len(part.nodes) for part in graph.parts])))
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
