"""The scheduler's passes over parts: what ``memplan.ggml.sched`` does tensor by tensor, done once for equal parts.

Two parts of a graph that were built alike, whose weights lie alike and whose surroundings are alike, are assigned
alike; so each pass is computed for each distinct case and remembered. ``tests/ggml/test_quick.py`` holds the results
against the plain scheduler's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from memplan.ggml.backend import Buffer
from memplan.ggml.parts import INPUT, NO_BASE, Part
from memplan.ggml.sched import Sched, SchedAbortError
from memplan.ggml.tensor import VIEW_OPS

Buffers = tuple[Buffer | None, ...]
Homes = tuple[int, ...]
Place = tuple[int, int]
"""A tensor: the part's position and the number in it; inputs of the graph are (-1, number)."""

PRE, TAIL, BODY = 0, 1, 2


@dataclass(slots=True, eq=False)
class Placed:
    """A part in its place in the graph: where its leafs lie, and (in the end) the backend of each of its tensors."""

    part: Part
    buffers: Buffers
    pin_home: int
    case: Case
    homes: list[int]
    final: Homes = ()


@dataclass(slots=True)
class QuickSplit:
    """A run of nodes on one backend, from node ``start``; ``inputs`` are copied there first."""

    backend: int
    start: Place
    inputs: list[Place] = field(default_factory=list)


@dataclass(slots=True)
class Schedule:
    """The outcome: ``splits``; ``copies``: (node, source number, source); ``kept_inputs``: under pipelining."""

    placed: list[Placed]
    splits: list[QuickSplit]
    copies: list[tuple[Place, int, Place]]
    kept_inputs: list[Place]
    input_home: int


class Case:
    """What is known of one part with its leafs in given buffers."""

    __slots__ = ("bufs", "crossings", "finals", "part", "sched", "starts", "supported")

    def __init__(self, part: Part, buffers: Buffers, sched: Sched) -> None:
        self.part = part
        self.bufs = buffers
        self.sched = sched
        self.supported: dict[tuple[int, int], bool] = {}
        self.starts: dict[tuple[int, bool, bool], list[int]] = {}
        self.finals: dict[tuple[Homes, int], Homes] = {}
        self.crossings: dict[tuple[Homes, int], tuple[list[Crossing], ...]] = {}

    def load(self) -> None:
        """Put the part's leafs where this case has them."""
        for leaf, buffer in zip(self.part.leafs, self.bufs, strict=True):
            leaf.buffer = buffer

    def supports(self, i: int, backend: int) -> bool:
        """Whether ``backend`` computes node ``i``."""
        key = (i, backend)
        known = self.supported.get(key)
        if known is None:
            self.load()
            known = self.supported[key] = self.sched.backends[backend].supports_op(self.part.nodes[i])
        return known

    def located(self, pin_home: int, pin_nodes: bool, pin_host: bool) -> list[int]:
        """Pass 1: homes by location, weights and pins, -1 for the rest."""
        key = (pin_home if pin_nodes else -1, pin_nodes, pin_host)
        known = self.starts.get(key)
        if known is None:
            part, sched = self.part, self.sched
            self.load()
            cpu = len(sched.backends) - 1
            pins: dict[int, int] = {}
            if pin_nodes:
                pins = {i: pin_home for i in part.pinned if self.supports(i, pin_home)}
            if pin_host:
                pins.update(dict.fromkeys(part.on_host, cpu))
            known = [pins[i] if i in pins else sched.from_location(t) for i, t in enumerate(part.nodes)]
            known += [sched.from_location(t) for t in part.leafs]
            self.starts[key] = known
        return known.copy()


@dataclass(slots=True)
class Crossing:
    """A computed node at which the scheduler may have something to do.

    ``brings``: it reads a weight that its backend cannot.  ``foreign``: sources to copy, as (source number, reference).
    ``inputs``: sources that are inputs of the graph.
    """

    node: int
    home: int
    brings: bool
    foreign: list[tuple[int, int]]
    inputs: list[int]


class QuickSched:
    """Schedules graphs made of parts on the backends of a plain scheduler."""

    def __init__(self, sched: Sched) -> None:
        self.sched = sched
        self._cases: dict[tuple[Part, Buffers], Case] = {}
        self._computed: dict[Part, tuple[list[int], list[int], list[int]]] = {}

    def schedule(
        self,
        parts: Sequence[Part],
        buffers: Sequence[Buffers],
        pin_homes: Sequence[int],
        *,
        pin_nodes: bool,
        pin_host: bool,
    ) -> Schedule:
        """Assign and split; ``pin_homes`` is each part's device, -1 for parts that are no layer."""
        placed = []
        for part, bufs, pin_home in zip(parts, buffers, pin_homes, strict=True):
            case = self._case(part, bufs)
            homes = case.located(pin_home, pin_nodes and pin_home >= 0, pin_host)
            placed.append(Placed(part, bufs, pin_home, case, homes))
        stretches = self._stretches(placed)
        backwards = [(p, list(reversed(nodes))) for p, nodes in reversed(stretches)]
        cpu = len(self.sched.backends) - 1
        for skip in (cpu, -1):
            self._expand(stretches, skip)
            self._expand(backwards, skip)
        for at, p in enumerate(placed):
            self._finish(p, placed[at - 1] if at else None)
        return self._split(placed)

    def _case(self, part: Part, buffers: Buffers) -> Case:
        case = self._cases.get((part, buffers))
        if case is None:
            case = self._cases[part, buffers] = Case(part, buffers, self.sched)
        return case

    def _nodes(self, part: Part) -> tuple[list[int], list[int], list[int]]:
        """Computed nodes: before the input, of the body, of the tail."""
        known = self._computed.get(part)
        if known is None:
            computed = [i for i, t in enumerate(part.nodes) if t.op not in VIEW_OPS]
            known = self._computed[part] = (
                [i for i in computed if i < part.n_pre],
                [i for i in computed if part.n_pre <= i < part.n_body],
                [i for i in computed if i >= part.n_body],
            )
        return known

    def _stretches(self, placed: list[Placed]) -> list[tuple[Placed, list[int]]]:
        out = []
        for at, p in enumerate(placed):
            pre, body, _ = self._nodes(p.part)
            out.append((p, pre))
            if at:
                before = placed[at - 1]
                out.append((before, self._nodes(before.part)[2]))
            out.append((p, body))
        return out

    @staticmethod
    def _expand(stretches: list[tuple[Placed, list[int]]], skip: int) -> None:
        """Pass 2 in one direction: unassigned nodes follow the node before, but never the backend ``skip``."""
        current = -1
        for p, nodes in stretches:
            homes, supports = p.homes, p.case.supports
            for i in nodes:
                home = homes[i]
                if home >= 0:
                    current = -1 if home == skip else home
                elif current >= 0 and supports(i, current):
                    homes[i] = current

    def _finish(self, p: Placed, before: Placed | None) -> None:
        """Passes 3 and 4: the best backend for what is left, then views and leafs."""
        given = -1
        if before is not None:
            # the part before is finished up to here; what it hands on is a computed node
            given = before.final[before.part.out]
        key = (tuple(p.homes), given)
        final = p.case.finals.get(key)
        if final is None:
            final = p.case.finals[key] = self._settle(p, given)
        p.final = final

    def _settle(self, p: Placed, given: int) -> Homes:
        part, homes, sched = p.part, p.homes, self.sched
        p.case.load()
        cpu = len(sched.backends) - 1

        def home_of(r: int) -> int:
            return homes[r] if r >= 0 else given if r == INPUT else cpu

        def readable(r: int, backend: int) -> bool:
            base = part.bases[r] if 0 <= r < len(part.nodes) else NO_BASE
            owner = r if base == NO_BASE else base
            buffer = part.tensor(owner).buffer if owner >= 0 else None
            if buffer is not None:
                return sched.backends[backend].supports_buft(buffer.buft)
            home = home_of(r)
            if home < 0:
                home = home_of(owner)
            return home >= 0 and sched.reads[backend][home]

        for i, t in enumerate(part.nodes):
            if t.op not in VIEW_OPS and homes[i] < 0:
                best = -1
                for b in range(len(sched.backends)):
                    if p.case.supports(i, b):
                        n = sum(1 for r in part.srcs[i] if readable(r, b))
                        if n > best:
                            best, homes[i] = n, b
        for i in range(len(part.nodes)):
            base = part.bases[i]
            if homes[i] < 0 and base != NO_BASE:
                homes[i] = home_of(base)
            for r in part.srcs[i]:
                if r >= 0 and homes[r] < 0:
                    base = part.bases[r] if r < len(part.nodes) else NO_BASE
                    homes[r] = homes[i] if base == NO_BASE else home_of(base)
            if homes[i] < 0:
                homes[i] = next((b for b in range(len(sched.backends)) if p.case.supports(i, b)), -1)
            if homes[i] < 0:
                raise SchedAbortError("GGML_ASSERT(*cur_backend_id != -1) failed")
        return tuple(homes)

    def _crossings(self, p: Placed, given: int) -> tuple[list[Crossing], ...]:
        """Where pass 5 may act: each stretch's first computed node, changes of home, sources that lie elsewhere."""
        key = (p.final, given)
        known = p.case.crossings.get(key)
        if known is None:
            p.case.load()
            known = p.case.crossings[key] = tuple(self._find(p, nodes, given) for nodes in self._nodes(p.part))
        return known

    def _find(self, p: Placed, nodes: list[int], given: int) -> list[Crossing]:
        part, homes, sched = p.part, p.final, self.sched
        cpu = len(sched.backends) - 1
        pipelined = sched.n_copies > 1
        found = []
        last = -1
        for i in nodes:
            home = homes[i]
            brings = False
            foreign = []
            inputs = []
            for j, r in enumerate(part.srcs[i]):
                src_home = homes[r] if r >= 0 else given if r == INPUT else cpu
                if pipelined and r <= -2:
                    inputs.append(r)
                if src_home != home:
                    owner = part.bases[r] if 0 <= r < len(part.nodes) and part.bases[r] != NO_BASE else r
                    buffer = part.tensor(owner).buffer if owner >= 0 else None
                    if buffer is not None:
                        if sched.backends[home].supports_buft(buffer.buft):
                            continue
                        brings = brings or (owner == r and buffer.weights)
                    elif sched.reads[home][src_home]:
                        continue
                    foreign.append((j, r))
            if home != last or brings or foreign or inputs:
                found.append(Crossing(i, home, brings, foreign, inputs))
            last = home
        return found

    def _split(self, placed: list[Placed]) -> Schedule:
        """Pass 5."""
        splits: list[QuickSplit] = []
        copies: list[tuple[Place, int, Place]] = []
        kept: dict[Place, None] = {}
        made: set[tuple[Place, int]] = set()
        limit = self.sched.max_split_inputs
        current = -1
        split = QuickSplit(-1, (0, 0))
        stretches: list[tuple[int, list[Crossing]]] = []

        def source(at: int, r: int) -> Place:
            return (at, r) if r >= 0 else (at - 1, placed[at - 1].part.out) if r == INPUT else (-1, -2 - r)

        crossings = [
            self._crossings(p, placed[at - 1].final[placed[at - 1].part.out] if at else -1)
            for at, p in enumerate(placed)
        ]
        for at in range(len(placed)):
            stretches.append((at, crossings[at][0]))
            if at:
                stretches.append((at - 1, crossings[at - 1][2]))
            stretches.append((at, crossings[at][1]))
        for at, found in stretches:
            for c in found:
                full = limit is not None and len(split.inputs) >= limit
                if (
                    c.home != current
                    or (c.brings and split.inputs)
                    or (full and any((source(at, r), current) not in made for _, r in c.foreign))
                ):
                    current = c.home
                    split = QuickSplit(current, (at, c.node))
                    splits.append(split)
                for r in c.inputs:
                    kept[-1, -2 - r] = None
                for j, r in c.foreign:
                    place = source(at, r)
                    if (place, current) not in made:
                        made.add((place, current))
                        split.inputs.append(place)
                    copies.append(((at, c.node), j, place))
        return Schedule(placed, splits, copies, list(kept), len(self.sched.backends) - 1)
