"""The quick planner: it gives what ``memplan.ggml.sched.Sched`` gives for the whole graph, number for number."""

from __future__ import annotations

from collections.abc import Sequence

from memplan.garbage import make_room
from memplan.ggml.plan.optimize import Optimizer
from memplan.ggml.plan.pack import StepFinder, Steps, replay
from memplan.ggml.plan.parts import GraphParts, Part
from memplan.ggml.plan.schedule import Schedule, Scheduler
from memplan.ggml.plan.structure import kept_of
from memplan.ggml.sched import Sched

_steps: dict[tuple[object, ...], Steps] = {}


class QuickPlanner:
    """Plans on the backends of a plain scheduler."""

    def __init__(self, sched: Sched) -> None:
        self.sched = sched
        self._scheduler = Scheduler(sched)
        self._optimizer = Optimizer(sched)

    @property
    def usable(self) -> bool:
        """Whether every backend has memory of its own; where two share one, ``Sched`` may move nodes between them."""
        return len(set(self.sched.bufts)) == len(self.sched.bufts)

    def schedule(self, graph: GraphParts, layer_home: Sequence[int], pin_nodes: bool, pin_host: bool) -> Schedule:
        """Homes and splits; pins are llama.cpp's assignments while it builds the graph."""
        return self._scheduler.schedule(graph, layer_home, pin_nodes, pin_host)

    def sizes(self, graph: GraphParts, schedule: Schedule) -> list[list[int]]:
        """Bytes of each chunk of each backend's compute buffer."""
        optimized = self._optimizer.optimize(graph, schedule)
        first: dict[Part, int] = {}
        like = tuple([first.setdefault(part, at) for at, part in enumerate(graph.parts)])
        key = schedule, self.sched.n_copies, like, optimized
        steps = _steps.get(key)
        if steps is None:
            make_room(_steps, kept_of(graph.n_nodes))
            steps = _steps[key] = StepFinder(schedule, self.sched.n_copies, optimized, like).find()
        return replay(steps, graph.parts, graph.inputs, self.sched.bufts)
