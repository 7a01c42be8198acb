"""The scheduler's passes over parts: what ``memplan.ggml.sched`` does tensor by tensor, done once for equal parts.

Two parts of a graph that were built alike, whose weights lie alike and whose surroundings are alike, are assigned
alike; so each pass is computed for each distinct case and remembered. ``tests/ggml/test_quick.py`` holds the results
against the plain scheduler's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

from memplan.ggml.parts import INPUT, NO_BASE, Part, part_number
from memplan.ggml.quick_cases import BODY, PRE, TAIL, Buffers, Case, Crossing, Homes, Rules
from memplan.ggml.sched import Sched, SchedAbortError
from memplan.ggml.tensor import VIEW_OPS

Place = tuple[int, int]
"""A tensor: the part's position and the number in it; inputs of the graph are (-1, number)."""


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
        return self.case.rules.states[self.state]


@dataclass(slots=True)
class QuickSplit:
    """A run of nodes on one backend, from node ``start``; ``inputs`` are copied there first."""

    backend: int
    start: Place
    inputs: list[Place] = field(default_factory=list)


@dataclass(slots=True)
class Splits:
    """The outcome for all graphs whose parts are of like structure and go by like rules.

    ``states`` number each part's homes.  ``number`` is equal for equal homes and splits.
    ``copies``: (node, source number, source).  ``kept_inputs``: under pipelining.
    """

    states: list[int]
    number: int
    splits: list[QuickSplit]
    copies: list[tuple[Place, int, Place]]
    kept_inputs: list[Place]


@dataclass(slots=True)
class Schedule:
    """Homes and splits of one graph; ``input_home``: the backend of its inputs."""

    placed: list[Placed]
    outcome: Splits
    input_home: int

    @property
    def splits(self) -> list[QuickSplit]:
        """Runs of nodes on one backend, in order."""
        return self.outcome.splits

    @property
    def copies(self) -> list[tuple[Place, int, Place]]:
        """What nodes read copies of."""
        return self.outcome.copies


KEPT_CASES = 384
"""Cases that a scheduler remembers."""

KEPT_OUTCOMES = 32
"""Ways to split a graph that are remembered."""


class QuickSched:
    """Schedules graphs made of parts on the backends of a plain scheduler."""

    def __init__(self, sched: Sched) -> None:
        self.sched = sched
        self._cases: dict[tuple[Part, Buffers], Case] = {}
        self._rules: dict[tuple[int, Buffers], list[Rules]] = {}
        self._outcomes: dict[tuple[tuple[Rules, int], ...], Splits] = {}

    def schedule(
        self, parts: Sequence[Part], buffers: Sequence[Buffers], pin_homes: Sequence[int], pin_host: bool
    ) -> Schedule:
        """Assign and split; ``pin_homes`` is the device that each part's pinned nodes are assigned to, -1 for none."""
        placed = []
        for part, bufs, pin_home in zip(parts, buffers, pin_homes, strict=True):
            case = self._case(part, bufs)
            placed.append(Placed(case, case.start(pin_home, pin_host)))
        for p in placed:
            p.case.agree()
        starts = tuple([(p.case.rules, p.state) for p in placed])
        room = self.sched.room
        # where a split made room, that counts for the graphs that follow as well
        known = None if room else self._outcomes.get(starts)
        if known is not None:
            for p, state in zip(placed, known.states, strict=True):
                p.state = state
        else:
            self._assign(placed)
            known = self._split(placed)
            if not room and all(p.case.rules is rules for p, (rules, _) in zip(placed, starts, strict=True)):
                if len(self._outcomes) >= KEPT_OUTCOMES:
                    self._outcomes.clear()
                self._outcomes[starts] = known
        return Schedule(placed, known, len(self.sched.backends) - 1)

    def _assign(self, placed: list[Placed]) -> None:
        """Passes 2 to 4."""
        stretches = self._stretches(placed)
        for skip in (len(self.sched.backends) - 1, -1):
            for backwards in (False, True):
                current = -1
                for p, stretch in reversed(stretches) if backwards else stretches:
                    p.state, current = p.case.expand(p.state, stretch, current, skip, backwards)
        given = -1
        for p in placed:
            p.case.agree()
            key = (p.state, given)
            final = p.case.rules.finals.get(key)
            if final is None:
                final = self._settle(p, given)
                p.case.rules.finals[key] = final
            p.state = final
            given = p.final[p.part.out]

    def _case(self, part: Part, buffers: Buffers) -> Case:
        case = self._cases.get((part, buffers))
        if case is None:
            if len(self._cases) >= KEPT_CASES:
                self._cases.clear()
                self._rules.clear()
            known = self._rules.setdefault((part_number(part), buffers), [])
            case = self._cases[part, buffers] = Case(part, buffers, self.sched, known)
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
        return p.case.rules.number(tuple(homes))

    def _crossings(self, p: Placed, given: int) -> tuple[list[Crossing], ...]:
        """Where pass 5 may act: each stretch's first computed node, changes of home, sources that lie elsewhere."""
        key = (p.state, given)
        known = p.case.rules.crossings.get(key)
        if known is None:
            p.case.load()
            known = p.case.rules.crossings[key] = tuple(self._find(p, nodes, given) for nodes in p.case.computed)
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

    def _split(self, placed: list[Placed]) -> Splits:
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
        if sched.copies_unread_inputs and sched.n_copies > 1:
            kept.update(dict.fromkeys((-1, -2 - r) for p in placed for r in p.part.leaf_order if r < INPUT))
        sched.check_graph_inputs(len(kept))
        return Splits([p.state for p in placed], _number(placed, splits, kept), splits, copies, list(kept))


_numbers: dict[tuple[object, ...], int] = {}
_next_number = count()


def _number(placed: list[Placed], splits: list[QuickSplit], kept: Iterable[Place]) -> int:
    """A number for homes, splits and kept inputs, the same on other devices and for another release."""
    key = (
        tuple([part_number(p.part) for p in placed]),
        tuple([p.final for p in placed]),
        tuple([(s.backend, s.start, tuple(s.inputs)) for s in splits]),
        tuple(kept),
    )
    number = _numbers.get(key)
    if number is None:
        if len(_numbers) >= KEPT_OUTCOMES:
            _numbers.clear()
        number = _numbers[key] = next(_next_number)
    return number
