"""What backends make of the splits of a graph in parts: orders of nodes, and lifetimes that fusions stretch.

See ``Backend.graph_optimize``. A backend is asked about the nodes of one part at a time, and the answer holds for the
same part elsewhere. One that looks further (``Backend.looks_far``) is given splits made anew, tensor by tensor.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple
from weakref import WeakKeyDictionary

from memplan.garbage import make_room
from memplan.ggml.backend import Backend, Traits
from memplan.ggml.plan.parts import Buffers, GraphParts, Part
from memplan.ggml.plan.schedule import Schedule
from memplan.ggml.plan.structure import kept_of
from memplan.ggml.plan.whole_graph import Kept, SplitForm, WholeGraph
from memplan.ggml.sched import Sched
from memplan.ggml.tensor import Tensor, same_layout

Backends = frozenset[int]

Lifetimes = tuple[tuple[int, tuple[Kept, ...]], ...]
"""Nodes, and what must outlive each."""


@dataclass(frozen=True, slots=True)
class Optimized:
    """The order in which nodes are computed, empty where it is the structure's, and stretched lifetimes."""

    order: tuple[int, ...]
    lifetimes: Lifetimes


Answer = tuple["tuple[int, ...]", Lifetimes]
"""The new order of some nodes, empty where it is the old one, and the lifetimes that are stretched among them."""


class Run(NamedTuple):
    """Nodes of a part from one to another on one backend.

    ``follows``: whether a node comes after them.  ``copies``: what they read copies of, as (node, source number).
    """

    start: int
    end: int
    backend: int
    follows: bool
    copies: tuple[tuple[int, int], ...]


_AFTER = -(1 << 30)
"""The node after a run, in place of a number."""

SplitAnswer = tuple["tuple[int, ...]", "tuple[tuple[int, tuple[int, ...]], ...]"]
"""The same about a split, its tensors numbered as in ``SplitForm.kept``; the order in full."""

KEPT_SPLITS = 512
"""Answers about splits that are remembered."""

KEPT_ANSWERS = 128
"""Answers about one part that are remembered, as long as the part is."""


class Optimizer:
    """Asks the backends of a scheduler."""

    def __init__(self, sched: Sched) -> None:
        self.sched = sched
        self._asks = [type(b).graph_optimize is not Backend.graph_optimize for b in sched.backends]
        self._runs: dict[tuple[Schedule, Backends], list[tuple[int, int, int, Run]]] = {}
        self._answers: WeakKeyDictionary[Part, dict[tuple[Buffers, Run], Answer]] = WeakKeyDictionary()
        self._wholes: dict[tuple[object, ...], list[tuple[int, Answer]]] = {}
        self._splits: dict[tuple[int, Hashable], SplitAnswer] = {}
        self._far: WeakKeyDictionary[Part, dict[Buffers, Backends]] = WeakKeyDictionary()
        backends = sched.backends
        self._may_look_far = [b for b, of in enumerate(backends) if type(of).looks_far is not Backend.looks_far]

    def optimize(self, graph: GraphParts, schedule: Schedule) -> Optimized:
        """What is computed when, and what must outlive which node."""
        order: list[int] = []
        lifetimes: dict[int, dict[Kept, None]] = {}
        far: Backends = frozenset()
        if self._may_look_far:
            far = far.union(*map(self._looking_far, graph.parts, graph.buffers))
        answers = (*self._of_runs(graph, schedule, far), *self._of_splits(graph, schedule, far))
        for place, (changed, stretched) in answers:
            if changed:
                order = order or list(schedule.structure.order)
                order[place : place + len(changed)] = changed
            for until, kept in stretched:
                lifetimes.setdefault(until, {}).update(dict.fromkeys(kept))
        return Optimized(tuple(order), tuple([(until, tuple(kept)) for until, kept in lifetimes.items()]))

    def _looking_far(self, part: Part, buffers: Buffers) -> Backends:
        """The backends whose answers about a part may depend on other parts."""
        known = self._far.setdefault(part, {})
        far = known.get(buffers)
        if far is None:
            make_room(known, KEPT_ANSWERS)
            part.locate(buffers)
            backends = self.sched.backends
            far = known[buffers] = frozenset([b for b in self._may_look_far if backends[b].looks_far(part.nodes)])
        return far

    # --- a part at a time ---------------------------------------------------------------------------------------------

    def _of_runs(self, graph: GraphParts, schedule: Schedule, far: Backends) -> Iterator[tuple[int, Answer]]:
        """What each run comes to, and its place in the graph's order."""
        runs = self._runs.get((schedule, far))
        if runs is None:
            make_room(self._runs, 2 * kept_of(len(schedule.homes)))
            runs = self._runs[schedule, far] = list(self._find_runs(schedule, far))
        structure = schedule.structure
        for at, place, after, run in runs:
            part, buffers = graph.parts[at], graph.buffers[at]
            known = self._answers.setdefault(part, {})
            answer = known.get((buffers, run))
            if answer is None:
                make_room(known, KEPT_ANSWERS)
                answer = known[buffers, run] = self._ask(part, buffers, run)
            changed, stretched = answer
            if not changed and not stretched:
                continue
            number = partial(structure.id, at)
            lifetimes = tuple(
                [
                    (after if until == _AFTER else number(until), tuple([(number(r), home) for r, home in kept]))
                    for until, kept in stretched
                ]
            )
            yield place, (tuple(map(number, changed)), lifetimes)

    def _find_runs(self, schedule: Schedule, far: Backends) -> Iterator[tuple[int, int, int, Run]]:
        """Where backends are to be asked a part at a time: the part's position, the run's place, the node after it."""
        structure = schedule.structure
        order, refs, segments = structure.order, structure.ref, structure.segments
        read_at = [structure.position[i] for i, _, _ in schedule.copies]
        for split_start, split_end, backend in schedule.runs:
            if not self._asks[backend] or backend in far:
                continue
            inside = segments[bisect_right(segments, split_start) : bisect_left(segments, split_end)]
            for start, end in pairwise((split_start, *inside, split_end)):
                at, r = structure.at[order[start]], refs[order[start]]
                copies = schedule.copies[bisect_left(read_at, start) : bisect_left(read_at, end)]
                reads = tuple([(refs[i], j) for i, j, _ in copies])
                follows = end < len(order)
                run = Run(r, r + end - start, backend, follows, reads)
                yield at, start, order[end] if follows else -1, run

    def _ask(self, part: Part, buffers: Buffers, run: Run) -> Answer:
        """What a backend makes of a run, by the part's own numbers; no order where it is left as it is."""
        part.locate(buffers)
        names = {t: (r, -1) for t, r in part.ids.items()}
        made: dict[int, Tensor] = {}
        for i, j in run.copies:
            r = part.structure.srcs[i][j]
            if r not in made:
                made[r] = same_layout(part.nodes[i].src[j])
                names[made[r]] = (r, run.backend)
        after = same_layout(part.nodes[0]) if run.follows else None
        read = [(part.nodes[i], j, part.nodes[i].src[j]) for i, j in run.copies]
        for (t, j, _), (i, _) in zip(read, run.copies, strict=True):
            t.src[j] = made[part.structure.srcs[i][j]]
        nodes = part.nodes[run.start : run.end]
        try:
            order, deps = self.sched.backends[run.backend].graph_optimize(nodes, after)
        finally:
            for t, j, src in read:
                t.src[j] = src
        kept: dict[int, dict[Kept, None]] = {}
        for tensor, until in deps:
            kept.setdefault(_AFTER if until is after else part.ids[until], {})[names[tensor]] = None
        changed = tuple([part.ids[t] for t in order]) if order != nodes else ()
        return changed, tuple([(until, tuple(tensors)) for until, tensors in kept.items()])

    # --- whole splits -------------------------------------------------------------------------------------------------

    def _of_splits(self, graph: GraphParts, schedule: Schedule, far: Backends) -> list[tuple[int, Answer]]:
        """What each split comes to that must be seen whole, and its place in the graph's order."""
        traits = {self.sched.backends[backend].traits for _, _, backend in schedule.runs if backend in far}
        if not traits:
            return []
        key = schedule, *[_alike(graph.parts, of) for of in sorted(traits, key=id)]
        known = self._wholes.get(key)
        if known is None:
            make_room(self._wholes, 2 * kept_of(len(schedule.homes)))
            known = self._wholes[key] = list(self._ask_whole(graph, schedule, far))
        return known

    def _ask_whole(self, graph: GraphParts, schedule: Schedule, far: Backends) -> Iterator[tuple[int, Answer]]:
        whole = WholeGraph(graph, schedule)
        for start, end, backend in schedule.runs:
            if backend not in far:
                continue
            form = whole.form(start, end, backend, self.sched.backends[backend].traits)
            known = self._splits.get((backend, form.key))
            if known is None:
                make_room(self._splits, KEPT_SPLITS)
                known = self._splits[backend, form.key] = self._ask_split(whole, form)
            order, stretched = known
            kept = form.kept
            yield (
                start,
                (
                    tuple([kept[n][0] for n in order]),
                    tuple([(kept[until][0], tuple([kept[n] for n in tensors])) for until, tensors in stretched]),
                ),
            )
        whole.forget()

    def _ask_split(self, whole: WholeGraph, form: SplitForm) -> SplitAnswer:
        nodes, after = whole.nodes(form)
        numbers = {kept: n for n, kept in enumerate(form.kept)}
        names = whole.names
        tensors, deps = self.sched.backends[form.backend].graph_optimize(nodes, after)
        kept: dict[int, dict[int, None]] = {}
        for tensor, until in deps:
            kept.setdefault(numbers[names[until]], {})[numbers[names[tensor]]] = None
        stretched = tuple([(until, tuple(found)) for until, found in kept.items()])
        return tuple([numbers[names[t]] for t in tensors]), stretched


def _alike(parts: Sequence[Part], traits: Callable[[Tensor], Traits]) -> Hashable:
    """Equal for graphs of like parts in which the same things are the same."""
    names: dict[Hashable, int] = {}
    of_parts = [part.alike(traits) for part in parts]
    return tuple([(number, *[names.setdefault(v, len(names)) for v in compared]) for number, compared in of_parts])
