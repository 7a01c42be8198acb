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

PRE, BODY, TAIL = 0, 1, 2
"""A part's stretches: before it reads its input, the rest of its body, and what is only computed for a later part."""


@dataclass(slots=True, eq=False)
class Placed:
    """A part in its place in the graph; ``state`` numbers the homes of its tensors among its case's."""

    case: Case
    state: int

    @property
    def part(self) -> Part:
        """What stands here."""
        return self.case.part

    @property
    def final(self) -> Homes:
        """The backend of each of the part's tensors."""
        return self.case.states[self.state]


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
    """What is known of one part with its leafs in given buffers.

    ``states`` numbers the homes that its tensors were seen to have, so that passes can be remembered by number.
    """

    __slots__ = (
        "_numbers",
        "_starts",
        "_supported",
        "buffers",
        "computed",
        "crossings",
        "expanded",
        "finals",
        "part",
        "sched",
        "states",
    )

    def __init__(self, part: Part, buffers: Buffers, sched: Sched) -> None:
        self.part = part
        self.buffers = buffers
        self.sched = sched
        self.states: list[Homes] = []
        self.expanded: dict[tuple[int, int, int, int, bool], tuple[int, int]] = {}
        self.finals: dict[tuple[int, int], int] = {}
        self.crossings: dict[tuple[int, int], tuple[list[Crossing], ...]] = {}
        computed = [i for i, t in enumerate(part.nodes) if t.op not in VIEW_OPS]
        self.computed = (
            [i for i in computed if i < part.n_pre],
            [i for i in computed if part.n_pre <= i < part.n_body],
            [i for i in computed if i >= part.n_body],
        )
        self._numbers: dict[Homes, int] = {}
        self._supported: dict[tuple[int, int], bool] = {}
        self._starts: dict[tuple[int, bool], int] = {}

    def load(self) -> None:
        """Put the part's leafs where this case has them."""
        part = self.part
        if part.loaded is not self.buffers:
            for leaf, buffer in zip(part.leafs, self.buffers, strict=True):
                leaf.buffer = buffer
            part.loaded = self.buffers

    def number(self, homes: Homes) -> int:
        """The number of these homes."""
        n = self._numbers.get(homes)
        if n is None:
            n = self._numbers[homes] = len(self.states)
            self.states.append(homes)
        return n

    def supports(self, i: int, backend: int) -> bool:
        """Whether ``backend`` computes node ``i``."""
        key = (i, backend)
        known = self._supported.get(key)
        if known is None:
            self.load()
            known = self._supported[key] = self.sched.backends[backend].supports_op(self.part.nodes[i])
        return known

    def start(self, pin_home: int, pin_host: bool) -> int:
        """Pass 1: homes by location, weights and pins, -1 for the rest; ``pin_home`` -1 pins no nodes."""
        key = (pin_home, pin_host)
        known = self._starts.get(key)
        if known is None:
            part, sched = self.part, self.sched
            self.load()
            pins: dict[int, int] = {}
            if pin_home >= 0:
                pins = {i: pin_home for i in part.pinned if self.supports(i, pin_home)}
            if pin_host:
                pins.update(dict.fromkeys(part.on_host, len(sched.backends) - 1))
            homes = [pins[i] if i in pins else sched.from_location(t) for i, t in enumerate(part.nodes)]
            homes += [sched.from_location(t) for t in part.leafs]
            known = self._starts[key] = self.number(tuple(homes))
        return known

    def expand(self, state: int, stretch: int, current: int, skip: int, backwards: bool) -> tuple[int, int]:
        """Pass 2 over one stretch, one way: unassigned nodes follow the node before, but never the backend ``skip``.

        Gives the new state and the backend that goes on.
        """
        key = (state, stretch, current, skip, backwards)
        known = self.expanded.get(key)
        if known is None:
            homes = list(self.states[state])
            nodes = self.computed[stretch]
            for i in reversed(nodes) if backwards else nodes:
                home = homes[i]
                if home >= 0:
                    current = -1 if home == skip else home
                elif current >= 0 and self.supports(i, current):
                    homes[i] = current
            known = self.expanded[key] = (self.number(tuple(homes)), current)
        return known


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


KEPT_CASES = 384
"""Cases that a scheduler remembers."""


class QuickSched:
    """Schedules graphs made of parts on the backends of a plain scheduler."""

    def __init__(self, sched: Sched) -> None:
        self.sched = sched
        self._cases: dict[tuple[Part, Buffers], Case] = {}

    def schedule(
        self, parts: Sequence[Part], buffers: Sequence[Buffers], pin_homes: Sequence[int], pin_host: bool
    ) -> Schedule:
        """Assign and split; ``pin_homes`` is the device that each part's pinned nodes are assigned to, -1 for none."""
        placed = []
        for part, bufs, pin_home in zip(parts, buffers, pin_homes, strict=True):
            case = self._case(part, bufs)
            placed.append(Placed(case, case.start(pin_home, pin_host)))
        stretches = self._stretches(placed)
        for skip in (len(self.sched.backends) - 1, -1):
            for backwards in (False, True):
                current = -1
                for p, stretch in reversed(stretches) if backwards else stretches:
                    p.state, current = p.case.expand(p.state, stretch, current, skip, backwards)
        given = -1
        for p in placed:
            key = (p.state, given)
            final = p.case.finals.get(key)
            if final is None:
                final = p.case.finals[key] = self._settle(p, given)
            p.state = final
            given = p.final[p.part.out]
        return self._split(placed)

    def _case(self, part: Part, buffers: Buffers) -> Case:
        case = self._cases.get((part, buffers))
        if case is None:
            if len(self._cases) >= KEPT_CASES:
                self._cases.clear()
            case = self._cases[part, buffers] = Case(part, buffers, self.sched)
        return case

    @staticmethod
    def _stretches(placed: list[Placed]) -> list[tuple[Placed, int]]:
        """The order of the whole graph: what lies before a part's input, the tail of the part before, the body."""
        out: list[tuple[Placed, int]] = []
        for at, p in enumerate(placed):
            out.append((p, PRE))
            if at:
                out.append((placed[at - 1], TAIL))
            out.append((p, BODY))
        return [(p, stretch) for p, stretch in out if p.case.computed[stretch]]

    def _settle(self, p: Placed, given: int) -> int:
        """Passes 3 and 4: the best backend for what is left, then views and leafs; ``given`` is the input's home."""
        part, sched = p.part, self.sched
        homes = list(p.final)
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
        return p.case.number(tuple(homes))

    def _crossings(self, p: Placed, given: int) -> tuple[list[Crossing], ...]:
        """Where pass 5 may act: each stretch's first computed node, changes of home, sources that lie elsewhere."""
        key = (p.state, given)
        known = p.case.crossings.get(key)
        if known is None:
            p.case.load()
            known = p.case.crossings[key] = tuple(self._find(p, nodes, given) for nodes in p.case.computed)
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
        sched = self.sched
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
            stretches.append((at, crossings[at][PRE]))
            if at:
                stretches.append((at - 1, crossings[at - 1][TAIL]))
            stretches.append((at, crossings[at][BODY]))
        for at, found in stretches:
            for c in found:
                full = sched.is_full(len(splits) - 1, len(split.inputs))
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
                        sched.make_room(len(splits) - 1, len(split.inputs))
                    copies.append(((at, c.node), j, place))
        sched.check_graph_inputs(len(kept))
        return Schedule(placed, splits, copies, list(kept), len(sched.backends) - 1)
