"""The scheduler's passes over a graph in parts: what ``memplan.ggml.sched`` does tensor by tensor, done on numbers.

Follows ``ggml_backend_sched_split_graph`` (ggml/src/ggml-backend.cpp, v0.5.0) as ``memplan.ggml.sched`` does, and
``tests/ggml/plan`` holds the two to the same results.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import ne
from weakref import WeakKeyDictionary

from memplan.garbage import make_room
from memplan.ggml.plan.part_structure import PartStructure
from memplan.ggml.plan.parts import Buffers, GraphParts, Part
from memplan.ggml.plan.structure import Structure, kept_of, structure_of
from memplan.ggml.sched import Sched, SchedAbortError

Pins = tuple[tuple[int, ...], bool]
"""What llama.cpp assigns while it builds the graph: the backends of a part's pinned nodes' layers, where these compute
them, and whether what reads caches goes to the CPU in any case."""

Answers = tuple["bool | None", ...]
"""Whether a backend computes each node of a part; None for those about which it is not asked."""

Asked = dict[tuple[int, int], Answers]
"""What backends said, by the part's position and the backend."""

Expanded = tuple["array[int] | None", int, tuple[tuple[int, Answers], ...], bool]
"""The backends of nodes in a row, None where none was changed; the last node's; what backends were asked; and whether
a node is left without one."""

NOWHERE = 255
"""In ``Schedule.homes``, -1 as a byte: the tensor is not in the graph, since nothing asks for it."""


@dataclass(frozen=True, slots=True)
class Split:
    """A run of nodes on one backend from a place in the structure's order on; ``inputs`` are copied there."""

    backend: int
    start: int
    inputs: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Where each tensor of a structure is computed, by id, and where the graph is split.

    ``copies``: (node, source number, source) of what is read from a copy.  ``kept_inputs``: inputs of the graph that
    pipelining has copies of.  One object for all graphs and devices for which it is the same.
    """

    structure: Structure
    homes: bytes
    splits: tuple[Split, ...]
    copies: tuple[tuple[int, int, int], ...]
    kept_inputs: tuple[int, ...]

    @property
    def n_nodes(self) -> int:
        """Nodes of the whole graph."""
        return len(self.structure.order)

    @property
    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Each split's first place in the structure's order, the place behind its last, its backend."""
        ends = [split.start for split in self.splits[1:]] + [self.n_nodes]
        return ((split.start, end, split.backend) for split, end in zip(self.splits, ends, strict=True))

    def homes_of(self, at: int) -> bytes:
        """The backend of each tensor of the part at a position."""
        first = self.structure.first
        return self.homes[first[at] : first[at + 1] if at + 1 < len(first) else None]


class Case:
    """A part with its leafs in given buffers and nodes pinned, and what backends say about it.

    ``start``: pass 1, the backend of each tensor by pins, weights or place, -1 for the rest.  ``number``: equal for
    parts of one structure that are alike in all this. It does not hold the part, which would keep both forever.
    """

    __slots__ = ("_answers", "_expanded", "buffers", "number", "sched", "start")

    def __init__(self, part: Part, buffers: Buffers, pins: Pins, sched: Sched) -> None:
        self.buffers = buffers
        self.sched = sched
        self.number = -1
        self._answers: dict[int, Answers] = {}
        self._expanded: dict[tuple[int, bytes, int, bool, int], Expanded] = {}
        part.locate(buffers)
        homes, on_host = pins
        wished = zip(part.pinned, homes, strict=True) if homes else ()
        pinned = {i: home for (i, _), home in wished if sched.backends[home].supports_op(part.nodes[i])}
        if on_host:
            pinned.update(dict.fromkeys(part.on_host, len(sched.backends) - 1))
        nodes = [pinned[i] if i in pinned else sched.from_location(t) for i, t in enumerate(part.nodes)]
        self.start = array("b", [*nodes, *map(sched.from_location, part.leafs)])

    def answers(self, part: Part, backend: int) -> Answers:
        """Whether ``backend`` computes each node that is not assigned from the start."""
        known = self._answers.get(backend)
        if known is None:
            part.locate(self.buffers)
            asks = part.asks(self.sched.backends[backend])
            known = tuple(
                [
                    asks(i) if computed and home < 0 else None
                    for i, (computed, home) in enumerate(zip(part.structure.computed, self.start, strict=False))
                ]
            )
            self._answers[backend] = known
        return known

    def expand(self, part: Part, first: int, homes: bytes, skip: int, forward: bool, current: int) -> Expanded:
        """Pass 2, one way, over nodes in a row from ``first`` on, whose backends are ``homes`` so far.

        Unassigned nodes follow the node before, which ``current`` has computed, but never the backend ``skip``.
        """
        key = first, homes, skip, forward, current
        known = self._expanded.get(key)
        if known is None:
            make_room(self._expanded, KEPT_EXPANDED)
            found = array("b", homes)
            computed = part.structure.computed
            asked: dict[int, Answers] = {}
            for k in range(len(found)) if forward else reversed(range(len(found))):
                home = found[k]
                if not computed[first + k]:
                    continue
                if home >= 0:
                    current = -1 if home == skip else home
                elif current >= 0:
                    if current not in asked:
                        asked[current] = self.answers(part, current)
                    if asked[current][first + k]:
                        found[k] = current
            left = any([home < 0 and computed[first + k] for k, home in enumerate(found)])
            changed = found if found.tobytes() != homes else None
            known = self._expanded[key] = changed, current, tuple(asked.items()), left
        return known


KEPT_EXPANDED = 256
"""Stretches of a case that were expanded and are remembered."""

KEPT_CASES = 64
"""Cases of one part that are remembered, as long as the part is."""

_schedules: dict[tuple[object, ...], Schedule] = {}


class Scheduler:
    """Schedules graphs in parts on the backends of a plain scheduler."""

    def __init__(self, sched: Sched) -> None:
        self.sched = sched
        self._cases: WeakKeyDictionary[Part, dict[tuple[Buffers, Pins], Case]] = WeakKeyDictionary()
        self._numbers: dict[tuple[PartStructure, Buffers, bytes], int] = {}
        self._last: tuple[Schedule | None, Sequence[Buffers]] = None, ()
        self._known: dict[tuple[Structure, tuple[int, ...]], list[tuple[Asked, Schedule]]] = {}

    def schedule(self, graph: GraphParts, layer_home: Sequence[int], pin_nodes: bool, pin_host: bool) -> Schedule:
        """Assign and split.

        ``pin_nodes``: norms and last nodes go to their layer's device, ``layer_home``.  ``pin_host``: what reads caches
        to the CPU.
        """
        structure = structure_of(graph)
        cases = []
        for part, buffers, layer in zip(graph.parts, graph.buffers, graph.layers, strict=True):
            homes = tuple([layer_home[il if layer < 0 else layer] for _, il in part.pinned]) if pin_nodes else ()
            cases.append(self._case(part, buffers, (homes, pin_host)))
        passes = _Passes(self.sched, graph, structure, cases)
        # where a split made room, that counts for the graphs that follow as well
        if self.sched.room:
            passes.assign()
            return passes.split()
        key = structure, tuple([case.number for case in cases])
        for asked, schedule in self._known.get(key, ()):
            if all(cases[at].answers(graph.parts[at], backend) == said for (at, backend), said in asked.items()):
                return schedule
        passes.assign()
        last, located = self._last
        if last is not None and passes.leads_to(last) and located == graph.buffers:
            schedule = last  # a pin or a batch that changes nothing
        else:
            schedule = passes.split()
            self._last = schedule if not self.sched.room else None, graph.buffers
        if passes.asked_all and not self.sched.room:
            make_room(self._known, 2 * kept_of(len(schedule.homes)))
            self._known.setdefault(key, []).append((passes.asked, schedule))
        return schedule

    def _case(self, part: Part, buffers: Buffers, pins: Pins) -> Case:
        cases = self._cases.get(part)
        if cases is None:
            cases = self._cases[part] = {}
        case = cases.get((buffers, pins))
        if case is None:
            make_room(cases, KEPT_CASES)
            case = cases[buffers, pins] = Case(part, buffers, pins, self.sched)
            alike = part.structure, buffers, case.start.tobytes()
            case.number = self._numbers.setdefault(alike, len(self._numbers))
        return case


class _Passes:
    """The passes over one graph.

    ``asked``: what backends said on the way, by part's position; ``asked_all``: whether that is all that they said.
    """

    def __init__(self, sched: Sched, graph: GraphParts, structure: Structure, cases: Sequence[Case]) -> None:
        self.sched = sched
        self.graph = graph
        self.structure = structure
        self.cases = cases
        self.cpu = len(sched.backends) - 1
        self.homes: list[int] = []
        self.asked: Asked = {}
        self.asked_all = True

    def leads_to(self, schedule: Schedule) -> bool:
        """Whether the nodes are assigned as in a schedule."""
        return self.structure is schedule.structure and array("b", self.homes).tobytes() == schedule.homes

    def assign(self) -> None:
        """All passes between the first, which is done a part at a time, and the last."""
        structure = self.structure
        self.buffers = structure.buffers(self.graph)
        homes = array("b", [self.cpu] * structure.n_inputs)
        for case in self.cases:
            homes += case.start
        for skip in (self.cpu, -1):
            self._expand(homes, skip, True)
            left = self._expand(homes, skip, False)
            if not left:
                break
        self.homes = homes.tolist()
        if left:
            for i in structure.computed:
                if self.homes[i] < 0:
                    self._choose(i)
        self._place_rest()

    def _answers(self, at: int, backend: int) -> Answers:
        said = self.asked.get((at, backend))
        if said is None:
            said = self.asked[at, backend] = self.cases[at].answers(self.graph.parts[at], backend)
        return said

    def _expand(self, homes: array[int], skip: int, forward: bool) -> bool:
        """Pass 2, one way; whether a node is left without a backend."""
        cases, parts, firsts, rows = self.cases, self.graph.parts, self.structure.first, self.structure.rows
        current = -1
        some_left = False
        for at, start, end in rows if forward else reversed(rows):
            before = homes[start:end].tobytes()
            changed, current, asked, left = cases[at].expand(
                parts[at], start - firsts[at], before, skip, forward, current
            )
            if changed is not None:
                homes[start:end] = changed
            for backend, said in asked:
                self.asked[at, backend] = said
            some_left = some_left or left
        return some_left

    def _readable(self, i: int, backend: int) -> bool:
        base = self.structure.base[i]
        buffer = self.buffers[base if base >= 0 else i]
        if buffer is not None:
            return self.sched.backends[backend].supports_buft(buffer.buft)
        home = self.homes[i]
        if home < 0 <= base:
            home = self.homes[base]
        return home >= 0 and self.sched.reads[backend][home]

    def _choose(self, i: int) -> None:
        """Pass 3: the backend that reads most of the node's sources."""
        best = -1
        for backend in range(self.cpu + 1):
            if self._answers(self.structure.at[i], backend)[self.structure.ref[i]]:
                n = sum([self._readable(s, backend) for s in self.structure.srcs[i]])
                if n > best:
                    best, self.homes[i] = n, backend
        if best < 0:
            raise SchedAbortError("GGML_ASSERT(*cur_backend_id != -1) failed")

    def _place_rest(self) -> None:
        """Pass 4: views go where their data are, scratch leafs to the first that reads them."""
        homes, base = self.homes, self.structure.base
        for i in self.structure.views:
            if homes[i] < 0:
                homes[i] = homes[base[i]]
        for i in self.structure.loose:
            if homes[i] < 0 <= base[i]:
                homes[i] = homes[base[i]]
            home = homes[i]
            for s in self.structure.srcs[i]:
                if homes[s] < 0:
                    homes[s] = home if base[s] < 0 else homes[base[s]]
            if home < 0:
                homes[i] = self._any(i)

    def _any(self, i: int) -> int:
        """The first backend that computes a node, a view of what has no place yet."""
        at, r = self.structure.at[i], self.structure.ref[i]
        part = self.graph.parts[at]
        part.locate(self.graph.buffers[at])
        self.asked_all = False
        for backend in range(self.cpu + 1):
            if self.sched.backends[backend].supports_op(part.nodes[r]):
                return backend
        raise SchedAbortError("GGML_ASSERT(*cur_backend_id != -1) failed")

    def split(self) -> Schedule:
        """Pass 5."""
        sched, structure, homes, computed = self.sched, self.structure, self.homes, self.structure.computed
        readers, numbers, read = structure.readers, structure.numbers, structure.read
        elsewhere = map(ne, structure.of_readers(homes), structure.of_read(homes))
        far = [(readers[k], numbers[k], read[k]) for k in compress(range(len(read)), elsewhere)]
        unread = {read for read in {(s, homes[i]) for i, _, s in far} if not self._readable(*read)}
        copies = tuple([copy for copy in far if (copy[2], homes[copy[0]]) in unread])
        weights = {s for s, _ in unread if self._is_weight(s)}
        made: dict[int, list[int]] = {}  # by the first node that reads it there
        for i, _, s in copies:
            if (s, homes[i]) in unread:
                unread.remove((s, homes[i]))
                made.setdefault(i, []).append(s)
        brings = {i for i, _, s in copies if s in weights}
        computed_at = structure.of_computed(homes)
        turns = compress(computed[1:], map(ne, computed_at, computed_at[1:]))
        splits: list[tuple[int, int, list[int]]] = []
        current = -1
        inputs: list[int] = []
        # no other node can begin a split
        for i in sorted({*computed[:1], *turns, *brings, *made}, key=structure.position.__getitem__):
            new = made.get(i, ())
            full = new and sched.is_full(len(splits) - 1, len(inputs))
            if homes[i] != current or (inputs and i in brings) or full:
                current, inputs = homes[i], []
                splits.append((current, structure.position[i] if splits else 0, inputs))
            for s in new:
                inputs.append(s)
                sched.make_room(len(splits) - 1, len(inputs))
        kept: tuple[int, ...] = ()
        if sched.n_copies > 1:
            kept = structure.all_inputs if sched.copies_unread_inputs else structure.read_inputs
        sched.check_graph_inputs(len(kept))
        done = tuple([Split(backend, start, tuple(inputs)) for backend, start, inputs in splits or [(self.cpu, 0, [])]])
        schedule = Schedule(structure, array("b", homes).tobytes(), done, copies, kept)
        key = (structure, schedule.homes, done, kept)
        if key not in _schedules:
            make_room(_schedules, 2 * kept_of(len(homes)))
        return _schedules.setdefault(key, schedule)

    def _is_weight(self, i: int) -> bool:
        buffer = self.buffers[i]
        return buffer is not None and buffer.weights
