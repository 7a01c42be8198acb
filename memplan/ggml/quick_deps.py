"""Lifetimes that backends' fusions stretch, found once for equal parts; see ``Backend.graph_optimize``."""

from __future__ import annotations

from memplan.ggml.backend import Backend
from memplan.ggml.parts import INPUT, Part
from memplan.ggml.quick_cases import Buffers
from memplan.ggml.quick_sched import KEPT_OUTCOMES, Place, Schedule
from memplan.ggml.sched import Sched
from memplan.ggml.tensor import Tensor

Kept = Place | tuple[Place, int]
"""A tensor, or the copy of one on a backend."""

Found = list[tuple[int, list[tuple[int, int]]]]
"""(node, tensors to keep until then as (reference, backend of the copy or -1))."""

Run = tuple[int, int, int]
"""Nodes of a part from one to another on one backend."""

Copies = tuple[tuple[int, int, int], ...]
"""Sources of which a run reads copies: (node, source number, backend)."""

KEPT_RUNS = 768
"""Runs that a finder remembers."""


class DepFinder:
    """Asks each split's backend, part by part."""

    def __init__(self, sched: Sched) -> None:
        self.sched = sched
        self.asks = [type(b).graph_optimize is not Backend.graph_optimize for b in sched.backends]
        self._known: dict[tuple[Part, Buffers, Run, Copies], Found] = {}
        self._stretches: dict[int, list[tuple[int, Run, Copies]]] = {}

    def find(self, schedule: Schedule) -> dict[Place, list[Kept]]:
        """What must outlive which node."""
        number = schedule.outcome.number
        stretches = self._stretches.get(number)
        if stretches is None:
            if len(self._stretches) >= KEPT_OUTCOMES:
                self._stretches.clear()
            stretches = self._stretches[number] = self._find(schedule)
        deps: dict[Place, list[Kept]] = {}
        for at, run, copies in stretches:
            case = schedule.placed[at].case
            key = (case.part, case.buffers, run, copies)
            found = self._known.get(key)
            if found is None:
                if len(self._known) >= KEPT_RUNS:
                    self._known.clear()
                found = self._known[key] = self._ask(case.part, run, copies)
            for until, tensors in found:
                keep = deps.setdefault((at, until), [])
                keep += [self._kept(schedule, at, r, backend) for r, backend in tensors]
        return deps

    def _find(self, schedule: Schedule) -> list[tuple[int, Run, Copies]]:
        """Where a backend that fuses anything is to be asked: each run, its part's position, the copies it reads."""
        copies: dict[int, list[tuple[int, int, int]]] = {}
        for (at, node), j, _ in schedule.copies:
            copies.setdefault(at, []).append((node, j, schedule.placed[at].final[node]))
        return [
            (at, run, tuple([c for c in copies.get(at, ()) if run[0] <= c[0] < run[1]]))
            for at, run in self._runs(schedule)
            if self.asks[run[2]]
        ]

    @staticmethod
    def _kept(schedule: Schedule, at: int, r: int, backend: int) -> Kept:
        if r >= 0:
            place = (at, r)
        elif r == INPUT:
            place = (at - 1, schedule.placed[at - 1].part.out)
        else:
            place = (-1, -2 - r)
        return place if backend < 0 else (place, backend)

    @staticmethod
    def _runs(schedule: Schedule) -> list[tuple[int, Run]]:
        """Each part's nodes in order, cut where a split starts."""
        starts: dict[int, list[tuple[int, int]]] = {}
        for split in schedule.splits[1:]:
            starts.setdefault(split.start[0], []).append((split.start[1], split.backend))
        runs: list[tuple[int, Run]] = []
        backend = schedule.splits[0].backend if schedule.splits else 0
        for at, p in enumerate(schedule.placed):
            part = p.part
            stretches = [(at, 0, part.n_pre), (at, part.n_pre, part.n_body)]
            if at:
                before = schedule.placed[at - 1].part
                stretches.insert(1, (at - 1, before.n_body, len(before.nodes)))
            for owner, start, end in stretches:
                for node, next_backend in sorted(starts.get(owner, ())):
                    if start <= node < end:
                        runs.append((owner, (start, node, backend)))
                        start, backend = node, next_backend
                runs.append((owner, (start, end, backend)))
        return [(at, run) for at, run in runs if run[0] < run[1]]

    def _ask(self, part: Part, run: Run, copies: Copies) -> Found:
        start, end, backend = run
        names: dict[Tensor, tuple[int, int]] = {}
        replaced: list[tuple[Tensor, int, Tensor]] = []
        made: dict[tuple[int, int], Tensor] = {}
        for node, j, home in copies:
            t = part.nodes[node]
            r = part.srcs[node][j]
            src = t.src[j]
            copy = made.get((r, home))
            if copy is None:
                copy = made[r, home] = Tensor("NONE", src.type, src.ne, src.nb, [], name=src.name)
                names[copy] = (r, home)
            replaced.append((t, j, src))
            t.src[j] = copy
        after = part.nodes[end] if end < len(part.nodes) and end != part.n_body else None
        found: dict[int, dict[tuple[int, int], None]] = {}
        for tensor, until in self.sched.backends[backend].graph_optimize(part.nodes[start:end], after)[1]:
            name = names.get(tensor) or (part.ids[tensor], -1)
            found.setdefault(part.ids[until], {})[name] = None
        for t, j, src in replaced:
            t.src[j] = src
        return [(until, list(tensors)) for until, tensors in found.items()]
