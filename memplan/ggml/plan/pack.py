"""Packing a graph in parts: the allocator's steps found once, then replayed for any sizes.

What ``memplan.ggml.gallocr`` does tensor by tensor has two halves. Which tensor is placed, freed or takes over
another's place depends on the graph's structure and on where it is computed, not on sizes; that half is a list of
steps, kept for the next estimate of the same structure. Where things then lie depends on sizes, and is replayed each
time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from memplan.errors import BadHyperParameter
from memplan.ggml.backend import UNLIMITED, BufferType
from memplan.ggml.plan.optimize import Optimized
from memplan.ggml.plan.parts import Part
from memplan.ggml.plan.schedule import NOWHERE, Schedule
from memplan.ggml.plan.whole_graph import Kept
from memplan.ggml.tallocr import MAX_FREE_BLOCKS, Address, DynTallocr, OutOfFreeBlocksError, beyond_counting
from memplan.ggml.tensor import Tensor, same_layout

ALLOC, FREE, TAKE = 0, 1, 2
Step = tuple[int, int, int, int, int]
"""(ALLOC, place, backend, slot, 0), (FREE, place, backend, slot, 0) or (TAKE, place, backend, slot, the slot of the
tensor that had the place)."""

OWN, COPY, FED = 0, 1, 2

Slot = tuple[int, int, int, int]
"""What gets a place: the position of its part (-1: an input of the graph), its number there, its backend, and whether
it is itself (OWN), a copy (COPY), or reads copies of its second or third source (FED): flash attention makes room for
what it converts, and copies of K and V are no longer views of the same data. Tensors of like layers share a slot, and
so a size."""


@dataclass(slots=True, eq=False)
class Steps:
    """A graph's allocation: what is done, with which slots; ``n_places``: how many places there may be.

    ``numbers``: those of all steps in a row, until they are asked for again: tuples are quicker to go through, but
    thousands of them, perhaps never used again, are much to look after.
    """

    numbers: list[int]
    slots: list[Slot]
    n_places: int
    _asked: bool = False
    _steps: list[Step] = field(default_factory=list)

    def __iter__(self) -> Iterator[Step]:
        """All steps, in order."""
        steps: Iterator[Step] = zip(*[iter(self.numbers)] * 5)  # noqa: B905
        if not self._asked:
            self._asked = True
            return steps
        if self.numbers:
            self._steps, self.numbers = list(steps), []
        return iter(self._steps)


class StepFinder:
    """Walks a scheduled graph once, counting who still needs what (``ggml_gallocr_alloc_graph_impl``).

    Copies are tensors with ids behind the structure's. ``like`` gives, for each position, the first position of the
    same part.
    """

    def __init__(self, schedule: Schedule, n_copies: int, optimized: Optimized, like: Sequence[int]) -> None:
        self.schedule = schedule
        self.structure = structure = schedule.structure
        self.optimized = optimized
        self.n_copies = n_copies
        self.like = like
        self.needs = structure.needs.copy()
        self.takes = structure.takes.copy()
        self.base = structure.base.copy()
        self.children = structure.n_children.copy()
        self.views = structure.n_views.copy()
        self.kept = structure.kept.copy()
        self.owned = [False] * len(self.children)
        self.places = list(range(len(self.children)))
        self.slot_at: list[int] = []
        self.homes = list(schedule.homes)  # of what is placed: where it lies
        self.steps: list[int] = []
        self.slots: dict[Slot, int] = {}
        self.sources: list[int] = []  # of copies
        self.copies: dict[Kept, int] = {}
        self.fed: set[int] = set()

    def find(self) -> Steps:
        """All steps, in order."""
        schedule, order = self.schedule, self.optimized.order or self.structure.order
        self._read_copies()
        keep: dict[int, list[int]] = {}
        for until, kept in self.optimized.lifetimes:
            ids = [self.copies[tensor] if tensor[1] >= 0 else tensor[0] for tensor in kept]
            keep.setdefault(until, []).extend(ids)
            for i in ids:
                self.children[i] += 1
        self._place_leafs()
        busy = self.structure.busy.copy()
        for i in (*keep, *[node for node, _, _ in schedule.copies]):
            busy[i] = True
        for split, (start, end, _) in zip(schedule.splits, schedule.runs, strict=True):
            for source in split.inputs:
                self._release((source,))
                copy = self.copies[source, split.backend]
                if not self.owned[copy]:
                    self._place(copy, split.backend)
            self._walk([i for i in order[start:end] if busy[i]], keep)
        return Steps(self.steps, list(self.slots), len(self.places))

    def _walk(self, nodes: Iterable[int], keep: dict[int, list[int]]) -> None:
        owns, takes, computed_at = self.structure.owns, self.takes, self.schedule.homes
        children, views, kept, base, owned = self.children, self.views, self.kept, self.base, self.owned
        homes, needs, steps, release = self.homes, self.needs, self.steps, self._release
        slot_at, places = self.slot_at, self.places
        for i in nodes:
            if owns[i] and not owned[i]:
                owned[i] = True
                for p in takes[i]:
                    if owned[p] and children[p] == 1 and views[p] == 0 and not kept[p]:
                        owned[p] = False
                        home = homes[i] = homes[p]
                        if home != computed_at[i]:
                            slot_at[i] = self._slot(i, home)
                        place = places[i] = places[p]
                        steps += (TAKE, place, home, slot_at[i], slot_at[p])
                        break
                else:
                    steps += (ALLOC, i, homes[i], slot_at[i], 0)
            for s in needs[i]:
                n = children[s] - 1
                children[s] = n
                if n == 0 and views[s] == 0:
                    b = base[s]
                    if b < 0:
                        if owned[s] and not kept[s]:
                            owned[s] = False
                            steps += (FREE, places[s], homes[s], slot_at[s], 0)
                    else:
                        views[b] -= 1
                        if views[b] == 0 and children[b] == 0 and owned[b] and not kept[b]:
                            owned[b] = False
                            steps += (FREE, places[b], homes[b], slot_at[b], 0)
            if i in keep:
                release(keep[i])

    def _release(self, tensors: Sequence[int]) -> None:
        """Take one need off each of ``tensors``, and free what nothing needs any more."""
        base, children, views, owned = self.base, self.children, self.views, self.owned
        for s in tensors:
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
                    self.steps += (FREE, self.places[s], self.homes[s], self.slot_at[s], 0)

    def _place(self, i: int, home: int) -> None:
        self.owned[i] = True
        self.homes[i] = home
        slot = self.slot_at[i] = self._slot(i, home)
        self.steps += (ALLOC, i, home, slot, 0)

    # --- slots --------------------------------------------------------------------------------------------------------

    def _find_slots(self) -> None:
        """Each tensor's slot where it is computed; only what takes another's place may end up elsewhere."""
        structure, slots, homes = self.structure, self.slots, self.schedule.homes
        owns = structure.owns
        slot_at = [self._slot(i, homes[i]) for i in range(structure.n_inputs)]
        rows: dict[tuple[int, bytes], list[int]] = {}
        for first, end, like in zip(structure.first, [*structure.first[1:], len(homes)], self.like, strict=True):
            key = like, homes[first:end]
            row = rows.get(key)
            if row is None:
                row = rows[key] = [
                    slots.setdefault((like, r, home, OWN), len(slots)) if owns[first + r] and home != NOWHERE else -1
                    for r, home in enumerate(key[1])
                ]
            slot_at += row
        self.slot_at[:0] = slot_at  # copies have theirs once they are placed
        for i in self.fed:
            self.slot_at[i] = self._slot(i, homes[i])

    def _slot(self, i: int, home: int) -> int:
        ids = self.structure.at
        kind = FED if i in self.fed else OWN
        if i >= len(ids):
            i, kind = self.sources[i - len(ids)], COPY
        at, r = ids[i], self.structure.ref[i]
        return self.slots.setdefault((self.like[at] if at >= 0 else at, r, home, kind), len(self.slots))

    # --- copies -------------------------------------------------------------------------------------------------------

    def _new_copy(self, source: int) -> int:
        """An id for a copy; under pipelining copies are never freed (``ggml_set_output``)."""
        i = len(self.children)
        self.sources.append(source)
        self.base.append(-1)
        self.children.append(0)
        self.views.append(0)
        self.owned.append(False)
        self.homes.append(-1)
        self.places.append(i)
        self.slot_at.append(-1)
        self.kept.append(self.n_copies > 1)
        return i

    def _read_copies(self) -> None:
        """Let nodes read the copies of what lies elsewhere."""
        structure, matters, homes = self.structure, self.structure.matters, self.schedule.homes
        srcs: dict[int, list[int]] = {}
        for split in self.schedule.splits:
            for source in split.inputs:
                self.copies[source, split.backend] = self._new_copy(source)
                self.children[source] += 1
        for i, j, old in self.schedule.copies:
            new = self.copies[old, homes[i]]
            if matters[old]:
                self.children[old] -= 1
            self.children[new] += 1
            if i not in srcs:
                srcs[i] = list(structure.srcs[i])
            srcs[i][j] = new
            if old in self.takes[i]:
                self.takes[i] = tuple([new if s == old else s for s in self.takes[i]])
            if j in (1, 2):
                self.fed.add(i)
        for i, changed in srcs.items():
            self.needs[i] = tuple([s for s in changed if s >= len(matters) or matters[s]])
        self._find_slots()

    def _place_leafs(self) -> None:
        """Leafs come first: under pipelining all copies of inputs, then the graph's own."""
        homes = self.schedule.homes
        if self.n_copies > 1:
            for i in self.schedule.kept_inputs:
                self.kept[i] = True
                self._place(i, homes[i])
                for _ in range(self.n_copies - 1):
                    self._place(self._new_copy(i), homes[i])
            for split in self.schedule.splits:
                for source in split.inputs:
                    self._place(self.copies[source, split.backend], split.backend)
                    for _ in range(self.n_copies - 1):
                        self._place(self._new_copy(source), split.backend)
        for i in self.structure.leafs:
            if not self.owned[i]:
                self._place(i, homes[i])


def replay(
    steps: Steps, parts: Sequence[Part], inputs: Sequence[Tensor], bufts: Sequence[BufferType]
) -> list[list[int]]:
    """Bytes of each chunk of each backend's buffer when these steps are done with the sizes of these parts."""
    sizes = _sizes(steps.slots, parts, inputs, bufts)
    if min(sizes, default=1) > 0:
        with suppress(OutOfFreeBlocksError, BadHyperParameter):  # found below as well, if chunks do not prevent it
            highest = _replay_whole(steps, sizes, len(bufts))
            if all(high < min(buft.max_size, UNLIMITED) for high, buft in zip(highest, bufts, strict=True)):
                return [[high] for high in highest]
    tallocs = [DynTallocr(buft.max_size) for buft in bufts]
    places: list[Address] = [(-1, -1)] * steps.n_places
    for kind, place, home, slot, before in steps:
        talloc = tallocs[home]
        if kind == ALLOC:
            places[place] = talloc.alloc(sizes[slot])
        elif kind == FREE:
            talloc.free(places[place], sizes[slot])
        elif sizes[before] > sizes[slot]:
            chunk, offset = places[place]
            talloc.free((chunk, offset + sizes[slot]), sizes[before] - sizes[slot])
    return [talloc.filled for talloc in tallocs]


def _replay_whole(steps: Steps, sizes: list[int], n_backends: int) -> list[int]:
    """As ``DynTallocr`` does it where there is one chunk, holes and an open end, and where no tensor is empty."""
    spaces: list[tuple[list[int], list[int]]] = [([0], [UNLIMITED]) for _ in range(n_backends)]
    highest = [0] * n_backends
    offsets = [0] * steps.n_places
    for kind, place, home, slot, before in steps:
        at, left = spaces[home]
        size = sizes[slot]
        if kind == ALLOC:
            tightest = UNLIMITED
            best = -1
            for k, s in enumerate(left):
                if size <= s <= tightest:
                    best, tightest = k, s
            if best < 0:
                raise beyond_counting()
            offset = offsets[place] = at[best]
            end = offset + size
            if tightest > size:
                at[best] = end
                left[best] = tightest - size
            else:
                del at[best], left[best]
            if end > highest[home]:
                highest[home] = end
            continue
        start = offsets[place]
        if kind == TAKE:
            start += size
            size = sizes[before] - size
            if not size:
                continue
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


def _sizes(
    slots: Iterable[Slot], parts: Sequence[Part], inputs: Sequence[Tensor], bufts: Sequence[BufferType]
) -> list[int]:
    """Bytes of what stands in each slot; a copy has its source's layout but no op (``ggml_dup_tensor_layout``)."""
    found: list[int] = []
    known: dict[tuple[int, int], dict[int, int]] = {}
    for at, r, home, kind in slots:
        buft = bufts[home]
        if at < 0 or kind == COPY:
            found.append(buft.padded_size(same_layout(parts[at].tensor(r) if at >= 0 else inputs[r])))
            continue
        t = parts[at].tensor(r)
        if kind == FED and t.op == "FLASH_ATTN_EXT":
            src = [t.src[0], *map(same_layout, t.src[1:3]), *t.src[3:]]
            found.append(buft.padded_size(Tensor(t.op, t.type, t.ne, t.nb, src, params=t.params)))
            continue
        of_part = known.get((at, home))
        if of_part is None:
            of_part = known[at, home] = parts[at].sizes(buft)
        size = of_part.get(r)
        if size is None:
            size = of_part[r] = buft.padded_size(t)
        found.append(size)
    return found
