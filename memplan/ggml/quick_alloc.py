"""Packing a graph made of parts: the allocator's steps found once, then replayed for any sizes.

What ``memplan.ggml.gallocr`` does tensor by tensor has two halves. Which tensor is placed, freed or takes over
another's place depends on the graph's structure and on where it is computed, not on sizes; that half is a list of
steps, kept for the next estimate of the same structure. Where things then lie depends on sizes, and is replayed each
time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from memplan.ggml.backend import UNLIMITED, BufferType
from memplan.ggml.parts import Part
from memplan.ggml.quick_cases import Rules
from memplan.ggml.quick_sched import Place, Schedule
from memplan.ggml.tallocr import MAX_FREE_BLOCKS, Address, DynTallocr, OutOfFreeBlocksError
from memplan.ggml.tensor import Tensor
from memplan.ggml.topology import Topology

ALLOC, FREE, TAKE = 0, 1, 2
Step = tuple[int, int, int, int, int]
"""(ALLOC, tensor, backend, slot, 0), (FREE, tensor, backend, 0, 0) or (TAKE, tensor, backend, slot, the tensor whose
place it takes)."""

OWN, COPY, FED = 0, 1, 2

Slot = tuple[int, int, int, int]
"""What gets a place: the position of its part (-1: an input of the graph), its number there, its backend, and whether
it is itself (OWN), a copy (COPY), or reads copies of its second or third source (FED): flash attention makes room for
what it converts, and copies of K and V are no longer views of the same data. Tensors of like layers share a slot, and
so a size."""

Deps = dict[Place, list[Place | tuple[Place, int]]]
"""What must outlive a node: tensors, or copies as (tensor, backend)."""


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """A graph's allocation: what is done, with which slots; ``n_tensors``: how many there are."""

    steps: list[Step]
    slots: list[Slot]
    n_tensors: int


class StepFinder:
    """Walks a scheduled graph once, counting who still needs what (``ggml_gallocr_alloc_graph_impl``)."""

    def __init__(self, topology: Topology, schedule: Schedule, n_copies: int, deps: Deps, like: Sequence[int]) -> None:
        """``like`` gives, for each position, the first position of the same part."""
        self.topology = topology
        self.like = like
        self.schedule = schedule
        self.n_copies = n_copies
        self.deps = deps
        self.needs = topology.needs.copy()
        self.base = topology.base.copy()
        self.children = topology.n_children.copy()
        self.views = topology.n_views.copy()
        self.owned = [False] * len(self.children)
        self.kept = [False] * len(self.children)
        self.steps: list[Step] = []
        self.homes = [-1] * len(self.children)
        self.slots: dict[Slot, int] = {}
        self.slot_at: list[int] = []
        self.copies: list[Place] = []
        self.copy_ids: dict[tuple[int, int], int] = {}
        self.fed: set[int] = set()

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
        self._find_slots()
        self._leafs()
        position = topology.position
        walk, walked = topology.walk, topology.walked
        needed = {*keep, *(self._id(node) for node, _, _ in schedule.copies)}
        if not needed <= topology.visited:
            # a node that asks nothing of the allocator in itself reads a copy, or something is kept until then
            walk, walked = topology.order, list(range(len(topology.order) + 1))
        starts = [0] + [walked[position[self._id(split.start)]] for split in schedule.splits[1:]] + [len(walk)]
        homes = self._homes()
        for n, split in enumerate(schedule.splits):
            for source in split.inputs:
                i = self._id(source)
                self._release((i,))
                copy = self.copy_ids[i, split.backend]
                if not self.owned[copy]:
                    self._place(copy, split.backend)
            self._walk(walk[starts[n] : starts[n + 1]], srcs, homes, keep)
        return Steps(self.steps, list(self.slots), len(self.children))

    def _walk(
        self,
        nodes: list[int],
        srcs: list[tuple[int, ...]],
        homes: list[int],
        keep: dict[int, list[int]],
    ) -> None:
        owns, takes, owned = self.topology.owns, self.topology.takes, self.owned
        children, views = self.children, self.views
        kept, base, steps, release = self.kept, self.base, self.steps, self._release
        home_of, needs, slot_at = self.homes, self.needs, self.slot_at
        for i in nodes:
            if owns[i] and not owned[i]:
                owned[i] = True
                for j in takes[i]:
                    p = srcs[i][j]
                    if owned[p] and children[p] == 1 and views[p] == 0 and not kept[p]:
                        owned[p] = False
                        home = home_of[i] = home_of[p]
                        slot = slot_at[i] if home == homes[i] else self._slot(i, home)
                        steps.append((TAKE, i, home, slot, p))
                        break
                else:
                    home = home_of[i] = homes[i]
                    steps.append((ALLOC, i, home, slot_at[i], 0))
            for s in needs[i]:
                n = children[s] - 1
                children[s] = n
                if n == 0 and views[s] == 0:
                    b = base[s]
                    if b < 0:
                        if owned[s] and not kept[s]:
                            owned[s] = False
                            steps.append((FREE, s, home_of[s], 0, 0))
                    else:
                        views[b] -= 1
                        if views[b] == 0 and children[b] == 0 and owned[b] and not kept[b]:
                            owned[b] = False
                            steps.append((FREE, b, home_of[b], 0, 0))
            if i in keep:
                release(keep[i])

    def _release(self, sources: Sequence[int]) -> None:
        """Take one need off each of ``sources``, and free what nothing needs any more."""
        base, children, views, owned = self.base, self.children, self.views, self.owned
        for s in sources:
            children[s] -= 1
            if children[s] == 0 and views[s] == 0:
                b = base[s]
                if b >= 0:
                    views[b] -= 1
                    if views[b] or children[b]:
                        continue
                    s = b
                if owned[s] and not self.kept[s]:
                    owned[s] = False
                    self.steps.append((FREE, s, self.homes[s], 0, 0))

    def _place(self, i: int, home: int) -> None:
        self.owned[i] = True
        self.homes[i] = home
        self.steps.append((ALLOC, i, home, self._slot(i, home), 0))

    def _find_slots(self) -> None:
        """Each tensor's slot where it is computed; only what takes another's place may end up elsewhere."""
        owns, first, slots = self.topology.owns, self.topology.first, self.slots
        self.slot_at = [self._slot(i, self._input_home) for i in range(self.topology.n_inputs)]
        rows: dict[tuple[int, Rules, int], list[int]] = {}
        for at, p in enumerate(self.schedule.placed):
            like = self.like[at]
            key = (like, p.case.rules, p.state)
            row = rows.get(key)
            if row is None:
                row = rows[key] = [
                    slots.setdefault((like, r, home, OWN), len(slots)) if owns[first[at] + r] else -1
                    for r, home in enumerate(p.final)
                ]
            self.slot_at += row
        homes = self._homes()
        for i in self.fed:
            self.slot_at[i] = self._slot(i, homes[i])

    def _slot(self, i: int, home: int) -> int:
        where = self.topology.where
        is_copy = i >= len(where)
        at, r = self.copies[i - len(where)] if is_copy else where[i]
        kind = COPY if is_copy else FED if i in self.fed else OWN
        slot = (self.like[at] if at >= 0 else at, r, home, kind)
        return self.slots.setdefault(slot, len(self.slots))

    def _id(self, place: Place) -> int:
        at, i = place
        return i if at < 0 else self.topology.first[at] + i

    def _copy_id(self, copy: tuple[Place, int]) -> int:
        return self.copy_ids[self._id(copy[0]), copy[1]]

    def _new_copy(self, source: Place) -> int:
        """An id for a copy; under pipelining copies are never freed (``ggml_set_output``)."""
        i = len(self.children)
        self.copies.append(source)
        self.base.append(-1)
        self.children.append(0)
        self.views.append(0)
        self.owned.append(False)
        self.homes.append(-1)
        self.kept.append(self.n_copies > 1)
        return i

    def _with_copies(self) -> list[tuple[int, ...]]:
        """Sources by id, with the copies that the splits read in place of what lies elsewhere."""
        srcs = self.topology.srcs.copy()
        homes = self.schedule.placed
        matters, known = self.topology.matters, len(self.topology.matters)
        for split in self.schedule.splits:
            for source in split.inputs:
                i = self._id(source)
                self.copy_ids[i, split.backend] = self._new_copy(source)
                self.children[i] += 1
        for node, j, source in self.schedule.copies:
            i = self._id(node)
            old = self._id(source)
            new = self.copy_ids[old, homes[node[0]].final[node[1]]]
            if matters[old]:
                self.children[old] -= 1
            self.children[new] += 1
            changed = list(srcs[i])
            changed[j] = new
            srcs[i] = tuple(changed)
            self.needs[i] = tuple([s for s in changed if s >= known or matters[s]])
            if j in (1, 2):
                self.fed.add(i)
        return srcs

    def _leafs(self) -> None:
        """Leafs come first: under pipelining all copies of inputs, then the graph's own."""
        cpu_home = self._input_home
        if self.n_copies > 1:
            for place in self.schedule.outcome.kept_inputs:
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


def replay(steps: Steps, parts: Sequence[Part], inputs: Sequence[Tensor], bufts: Sequence[BufferType]) -> list[int]:
    """Bytes of each backend's buffer when these steps are done with the sizes of these parts."""
    sizes = [_size(slot, parts, inputs, bufts) for slot in steps.slots]
    if all(buft.max_size >= UNLIMITED for buft in bufts):
        return _replay_whole(steps, sizes, len(bufts))
    tallocs = [DynTallocr(buft.max_size) for buft in bufts]
    places: list[tuple[Address, int]] = [((-1, -1), 0)] * steps.n_tensors
    for kind, i, home, slot, x in steps.steps:
        talloc = tallocs[home]
        if kind == ALLOC:
            places[i] = talloc.alloc(sizes[slot]), sizes[slot]
        elif kind == FREE:
            talloc.free(*places[i])
        else:
            (chunk, offset), size = places[x]
            places[i] = (chunk, offset), sizes[slot]
            if size > sizes[slot]:
                talloc.free((chunk, offset + sizes[slot]), size - sizes[slot])
    return [talloc.total for talloc in tallocs]


def _replay_whole(steps: Steps, sizes: list[int], n_backends: int) -> list[int]:
    """As ``DynTallocr`` does it where buffers may be of any size, so that there is one chunk: holes and an open end."""
    spaces: list[tuple[list[int], list[int]]] = [([0], [UNLIMITED]) for _ in range(n_backends)]
    highest = [0] * n_backends
    places = [(0, 0)] * steps.n_tensors
    for kind, i, home, slot, x in steps.steps:
        at, left = spaces[home]
        if kind == ALLOC:
            size = tightest = sizes[slot]
            best = -1
            for k, s in enumerate(left):
                if s >= size and (s <= tightest or best < 0):
                    best, tightest = k, s
            offset = at[best]
            places[i] = offset, size
            end = offset + size
            if tightest > size:
                at[best] = end
                left[best] = tightest - size
            else:
                del at[best], left[best]
            if end > highest[home]:
                highest[home] = end
            continue
        if kind == FREE:
            start, size = places[i]
        else:
            start, size = places[x]
            taken = sizes[slot]
            places[i] = start, taken
            if size == taken:
                continue
            start += taken
            size -= taken
        k = bisect_left(at, start)
        joins = k > 0 and at[k - 1] + left[k - 1] == start
        if k < len(at) and at[k] == start + size:
            if joins:
                left[k - 1] += size + left[k]
                del at[k], left[k]
            else:
                at[k] = start
                left[k] += size
        elif joins:
            left[k - 1] += size
        else:
            if len(at) >= MAX_FREE_BLOCKS:
                raise OutOfFreeBlocksError("out of free blocks")
            at.insert(k, start)
            left.insert(k, size)
    return highest


def _size(slot: Slot, parts: Sequence[Part], inputs: Sequence[Tensor], bufts: Sequence[BufferType]) -> int:
    """Bytes of what stands in a slot; a copy has its source's layout but no op (``ggml_dup_tensor_layout``)."""
    at, r, home, kind = slot
    buft = bufts[home]
    if at >= 0 and kind != COPY:
        t = parts[at].tensor(r)
        if kind == OWN or t.op != "FLASH_ATTN_EXT":
            return parts[at].size(r, buft)
        t = Tensor(t.op, t.type, t.ne, t.nb, [t.src[0], *map(_copy, t.src[1:3]), *t.src[3:]], params=t.params)
    else:
        t = _copy(parts[at].tensor(r) if at >= 0 else inputs[r])
    mask = buft.alignment - 1
    return (buft.alloc_size(t) + mask) & ~mask


def _copy(t: Tensor) -> Tensor:
    return Tensor("NONE", t.type, t.ne, t.nb, [])
