"""Parts whose leafs lie somewhere, and what the scheduler found out about them.

Parts that differ in sizes alone are scheduled alike as long as every backend computes the same of their nodes. So what
was found out for one of them is kept as rules, with all that backends were asked on the way; another part goes by the
same rules once it has given the same answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from memplan.ggml.backend import Buffer
from memplan.ggml.parts import Part
from memplan.ggml.sched import Sched
from memplan.ggml.tensor import VIEW_OPS

Buffers = tuple[Buffer | None, ...]
Homes = tuple[int, ...]

PRE, BODY, TAIL = 0, 1, 2
"""A part's stretches: before it reads its input, the rest of its body, and what is only computed for a later part."""


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


Answers = dict[tuple[int, int], bool]
"""Whether a backend computes a node, by (node, backend), in the order it was asked."""


class Rules:
    """What was found out about parts of one structure, their leafs in the same buffers.

    Attributes:
        states: homes that the tensors were seen to have; everything else goes by their numbers.
        answers: what all else but ``crossings`` rests on.
        expanded, finals, crossings: outcomes of the passes.
    """

    __slots__ = ("_numbers", "answers", "crossings", "expanded", "finals", "states")

    def __init__(self) -> None:
        self.states: list[Homes] = []
        self.answers: Answers = {}
        self.expanded: dict[tuple[int, int, int, int, bool], tuple[int, int]] = {}
        self.finals: dict[tuple[int, int], int] = {}
        self.crossings: dict[tuple[int, int], tuple[list[Crossing], ...]] = {}
        self._numbers: dict[Homes, int] = {}

    def number(self, homes: Homes) -> int:
        """The number of these homes."""
        n = self._numbers.get(homes)
        if n is None:
            n = self._numbers[homes] = len(self.states)
            self.states.append(homes)
        return n

    def with_other_answers(self, kept: int) -> Rules:
        """Rules that share the numbers of states, and the first ``kept`` answers, but no outcome that rests on more."""
        other = Rules()
        other.states = self.states.copy()
        other._numbers = self._numbers.copy()
        other.crossings = self.crossings.copy()
        other.answers = dict(islice(self.answers.items(), kept))
        return other


KEPT_RULES = 4
"""Sets of rules that are remembered for parts of one structure."""


class Case:
    """One part with its leafs in given buffers, and the rules it goes by.

    ``known`` are the rules of other parts of its structure, their leafs in the same buffers; it may add to them.
    """

    __slots__ = ("_agreed", "_known", "_starts", "buffers", "computed", "part", "rules", "sched")

    def __init__(self, part: Part, buffers: Buffers, sched: Sched, known: list[Rules]) -> None:
        self.part = part
        self.buffers = buffers
        self.sched = sched
        computed = [i for i, t in enumerate(part.nodes) if t.op not in VIEW_OPS]
        self.computed = (
            [i for i in computed if i < part.n_pre],
            [i for i in computed if part.n_pre <= i < part.n_body],
            [i for i in computed if i >= part.n_body],
        )
        self._starts: dict[tuple[int, bool], int] = {}
        self._known = known
        self._agreed = 0
        self.load()
        fitting = (rules for rules in known if all(self._asks(*key) is said for key, said in rules.answers.items()))
        self.rules = next(fitting, None) or self._keep(Rules())
        self._agreed = len(self.rules.answers)

    def _keep(self, rules: Rules) -> Rules:
        self._known.insert(0, rules)
        del self._known[KEPT_RULES:]
        return rules

    def load(self) -> None:
        """Put the part's leafs where this case has them."""
        part = self.part
        if part.loaded is not self.buffers:
            for leaf, buffer in zip(part.leafs, self.buffers, strict=True):
                leaf.buffer = buffer
            part.loaded = self.buffers

    def agree(self) -> None:
        """See that the rules hold here too when another part added to what they rest on; else take other rules."""
        rules, agreed = self.rules, self._agreed
        if agreed == len(rules.answers):
            return
        self.load()
        for key, said in islice(rules.answers.items(), agreed, None):
            if self._asks(*key) is not said:
                self.rules = self._keep(rules.with_other_answers(agreed))
                break
            agreed += 1
        self._agreed = agreed

    def _asks(self, i: int, backend: int) -> bool:
        return self.sched.backends[backend].supports_op(self.part.nodes[i])

    def supports(self, i: int, backend: int) -> bool:
        """Whether ``backend`` computes node ``i``; after ``agree``, and with the leafs loaded."""
        answers = self.rules.answers
        known = answers.get((i, backend))
        if known is None:
            known = answers[i, backend] = self._asks(i, backend)
            self._agreed += 1
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
                self.agree()
                pins = {i: pin_home for i in part.pinned if self.supports(i, pin_home)}
            if pin_host:
                pins.update(dict.fromkeys(part.on_host, len(sched.backends) - 1))
            homes = [pins[i] if i in pins else sched.from_location(t) for i, t in enumerate(part.nodes)]
            homes += [sched.from_location(t) for t in part.leafs]
            known = self._starts[key] = self.rules.number(tuple(homes))
        return known

    def expand(self, state: int, stretch: int, current: int, skip: int, backwards: bool) -> tuple[int, int]:
        """Pass 2 over one stretch, one way: unassigned nodes follow the node before, but never the backend ``skip``.

        Gives the new state and the backend that goes on.
        """
        self.agree()
        rules = self.rules
        key = (state, stretch, current, skip, backwards)
        known = rules.expanded.get(key)
        if known is None:
            self.load()
            homes = list(rules.states[state])
            nodes = self.computed[stretch]
            for i in reversed(nodes) if backwards else nodes:
                home = homes[i]
                if home >= 0:
                    current = -1 if home == skip else home
                elif current >= 0 and self.supports(i, current):
                    homes[i] = current
            known = rules.expanded[key] = (rules.number(tuple(homes)), current)
        return known
