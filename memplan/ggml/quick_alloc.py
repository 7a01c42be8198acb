"""Packing a graph made of parts: the allocator's steps found once, then replayed for any sizes.

What ``memplan.ggml.gallocr`` does tensor by tensor has two halves. Which tensor is placed, freed or takes over
another's place depends on the graph's structure and on where it is computed, not on sizes; that half is a list of
steps, kept for the next estimate of the same structure. Where things then lie depends on sizes, and is replayed each
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memplan.ggml.backend import BufferType
from memplan.ggml.parts import Part
from memplan.ggml.quick_sched import Place, Schedule
from memplan.ggml.tallocr import DynTallocr
from memplan.ggml.tensor import Tensor
from memplan.ggml.topology import Topology

ALLOC, FREE, TAKE = 0, 1, 2
Step = tuple[int, int, int]
"""(ALLOC, tensor, backend), (FREE, tensor, 0) or (TAKE, tensor, the tensor whose place it takes)."""

Deps = dict[Place, list[Place | tuple[Place, int]]]
"""What must outlive a node: tensors, or copies as (tensor, backend)."""


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """A graph's allocation. Ids past the topology's are copies; ``copies`` gives each one's source, by place."""

    steps: list[Step]
    copies: list[Place]
    n_ids: int


class StepFinder:
    """Walks a scheduled graph once, counting who still needs what (``ggml_gallocr_alloc_graph_impl``)."""

    def __init__(self, topology: Topology, schedule: Schedule, n_copies: int, deps: Deps) -> None:
        self.topology = topology
        self.schedule = schedule
        self.n_copies = n_copies
        self.deps = deps
        self.children = topology.n_children.copy()
        self.views = topology.n_views.copy()
        self.owned = [False] * len(self.children)
        self.kept = [False] * len(self.children)
        self.steps: list[Step] = []
        self.copies: list[Place] = []
        self.copy_ids: dict[tuple[int, int], int] = {}

    def find(self) -> Steps:
        """All steps, in order."""
        topology, schedule = self.topology, self.schedule
        srcs = self._with_copies()
        keep = {
            self._id(until): [self._copy_id(t) if isinstance(t[0], tuple) else self._id(t) for t in tensors]
            for until, tensors in self.deps.items()
        }
        for ids in keep.values():
            for i in ids:
                self.children[i] += 1
        self._leafs()
        position = {i: at for at, i in enumerate(topology.order)}
        starts = [0] + [position[self._id(split.start)] for split in schedule.splits[1:]] + [len(topology.order)]
        homes = self._homes()
        for n, split in enumerate(schedule.splits):
            for source in split.inputs:
                i = self._id(source)
                self._release((i,))
                copy = self.copy_ids[i, split.backend]
                if not self.owned[copy]:
                    self._place(copy, split.backend)
            self._walk(topology.order[starts[n] : starts[n + 1]], srcs, homes, keep)
        return Steps(self.steps, self.copies, len(self.children))

    def _walk(
        self,
        nodes: list[int],
        srcs: list[tuple[int, ...]],
        homes: list[int],
        keep: dict[int, list[int]],
    ) -> None:
        owns, takes, owned = self.topology.owns, self.topology.takes, self.owned
        children, views = self.children, self.views
        kept, base, steps, release = self.kept, self.topology.base, self.steps, self._release
        for i in nodes:
            if owns[i] and not owned[i]:
                owned[i] = True
                for j in takes[i]:
                    p = srcs[i][j]
                    if owned[p] and children[p] == 1 and views[p] == 0 and not kept[p]:
                        owned[p] = False
                        steps.append((TAKE, i, p))
                        break
                else:
                    steps.append((ALLOC, i, homes[i]))
            for s in srcs[i]:
                n = children[s] - 1
                children[s] = n
                if n == 0 and views[s] == 0:
                    b = base[s] if s < len(base) else -1
                    if b < 0:
                        if owned[s] and not kept[s]:
                            owned[s] = False
                            steps.append((FREE, s, 0))
                    else:
                        views[b] -= 1
                        if views[b] == 0 and children[b] == 0 and owned[b] and not kept[b]:
                            owned[b] = False
                            steps.append((FREE, b, 0))
            if i in keep:
                release(keep[i])

    def _release(self, sources: Sequence[int]) -> None:
        """Take one need off each of ``sources``, and free what nothing needs any more."""
        base, children, views, owned = self.topology.base, self.children, self.views, self.owned
        for s in sources:
            children[s] -= 1
            if children[s] == 0 and views[s] == 0:
                b = base[s] if s < len(base) else -1
                if b >= 0:
                    views[b] -= 1
                    if views[b] or children[b]:
                        continue
                    s = b
                if owned[s] and not self.kept[s]:
                    owned[s] = False
                    self.steps.append((FREE, s, 0))

    def _place(self, i: int, home: int) -> None:
        self.owned[i] = True
        self.steps.append((ALLOC, i, home))

    def _id(self, place: Place) -> int:
        at, i = place
        return i if at < 0 else self.topology.first[at] + i

    def _copy_id(self, copy: tuple[Place, int]) -> int:
        return self.copy_ids[self._id(copy[0]), copy[1]]

    def _new_copy(self, source: Place) -> int:
        """An id for a copy; under pipelining copies are never freed (``ggml_set_output``)."""
        i = len(self.children)
        self.copies.append(source)
        self.children.append(0)
        self.views.append(0)
        self.owned.append(False)
        self.kept.append(self.n_copies > 1)
        return i

    def _with_copies(self) -> list[tuple[int, ...]]:
        """Sources by id, with the copies that the splits read in place of what lies elsewhere."""
        srcs = self.topology.srcs.copy()
        homes = self.schedule.placed
        for split in self.schedule.splits:
            for source in split.inputs:
                i = self._id(source)
                self.copy_ids[i, split.backend] = self._new_copy(source)
                self.children[i] += 1
        for node, j, source in self.schedule.copies:
            i = self._id(node)
            old = self._id(source)
            new = self.copy_ids[old, homes[node[0]].final[node[1]]]
            self.children[old] -= 1
            self.children[new] += 1
            changed = list(srcs[i])
            changed[j] = new
            srcs[i] = tuple(changed)
        return srcs

    def _leafs(self) -> None:
        """Leafs come first: under pipelining all copies of inputs, then the graph's own."""
        cpu_home = self._input_home
        if self.n_copies > 1:
            for place in self.schedule.kept_inputs:
                i = self._id(place)
                self.kept[i] = True
                self._place(i, cpu_home)
                for _ in range(self.n_copies - 1):
                    self._place(self._new_copy(place), cpu_home)
            for split in self.schedule.splits:
                for source in split.inputs:
                    self._place(self.copy_ids[self._id(source), split.backend], split.backend)
                    for _ in range(self.n_copies - 1):
                        self._place(self._new_copy(source), split.backend)
        homes = self._homes()
        for i in self.topology.leafs:
            if not self.owned[i]:
                self._place(i, homes[i])

    @property
    def _input_home(self) -> int:
        return self.schedule.input_home

    def _homes(self) -> list[int]:
        homes = [self._input_home] * self.topology.n_inputs
        for p in self.schedule.placed:
            homes += p.final
        return homes


def replay(
    steps: Steps, topology: Topology, parts: Sequence[Part], inputs: Sequence[Tensor], bufts: Sequence[BufferType]
) -> list[int]:
    """Bytes of each backend's buffer when these steps are done with the parts' sizes."""
    tallocs: list[DynTallocr] = []
    for i, buft in enumerate(bufts):
        shared = bufts.index(buft)
        tallocs.append(tallocs[shared] if shared < i else DynTallocr(buft.max_size))
    where = topology.where
    n = len(where)
    size_of = [0] * steps.n_ids
    place: list[tuple[int, int]] = [(-1, -1)] * steps.n_ids
    home = [-1] * steps.n_ids
    for kind, i, x in steps.steps:
        if kind == ALLOC:
            if i < n:
                at, r = where[i]
                size = parts[at].size(r, bufts[x]) if at >= 0 else _padded(inputs[r], bufts[x])
            else:
                size = _copy_size(steps.copies[i - n], parts, inputs, bufts[x])
            size_of[i] = size
            home[i] = x
            place[i] = tallocs[x].alloc(size)
        elif kind == FREE:
            tallocs[home[i]].free(place[i], size_of[i])
        else:
            h = home[i] = home[x]
            chunk, offset = place[i] = place[x]
            at, r = where[i]
            size = size_of[i] = parts[at].size(r, bufts[h])
            if size_of[x] > size:
                tallocs[h].free((chunk, offset + size), size_of[x] - size)
    return [talloc.total for talloc in tallocs]


def _padded(t: Tensor, buft: BufferType) -> int:
    mask = buft.alignment - 1
    return (buft.alloc_size(t) + mask) & ~mask


def _copy_size(source: Place, parts: Sequence[Part], inputs: Sequence[Tensor], buft: BufferType) -> int:
    """A copy has its source's layout but no op of its own (``ggml_dup_tensor_layout``)."""
    at, i = source
    t = parts[at].tensor(i) if at >= 0 else inputs[i]
    return _padded(Tensor("NONE", t.type, t.ne, t.nb, []), buft)
