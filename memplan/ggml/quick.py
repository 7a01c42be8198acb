"""The quick planner: graphs made of parts, scheduled and packed without making every tensor.

It gives what ``memplan.ggml.sched.Sched`` gives for the whole graph, number for number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memplan.ggml.parts import Part, part_number
from memplan.ggml.quick_alloc import StepFinder, Steps, replay
from memplan.ggml.quick_cases import Buffers
from memplan.ggml.quick_deps import DepFinder
from memplan.ggml.quick_sched import QuickSched, Schedule
from memplan.ggml.sched import Sched
from memplan.ggml.tensor import Tensor
from memplan.ggml.topology import Topology


@dataclass(frozen=True, slots=True)
class GraphParts:
    """A graph in parts: each position's part and its leafs' buffers; ``layers``: its layer, -1 for none."""

    parts: Sequence[Part]
    buffers: Sequence[Buffers]
    inputs: Sequence[Tensor]
    layers: Sequence[int]

    @property
    def n_leafs(self) -> int:
        """Leafs of the whole graph, its inputs among them."""
        return len(self.inputs) + sum(len(part.leafs) for part in self.parts)

    @property
    def n_given(self) -> int:
        """Leafs that lie in buffers of their own: weights, caches, states."""
        return sum(len(part.roles) - part.roles.count("") for part in self.parts)

    @property
    def n_nodes(self) -> int:
        """Nodes of the whole graph."""
        return sum(len(part.nodes) for part in self.parts)


class QuickPlanner:
    """Plans on the backends of a plain scheduler."""

    def __init__(self, sched: Sched) -> None:
        self.sched = sched
        self.quick = QuickSched(sched)
        self.deps = DepFinder(sched)

    @property
    def usable(self) -> bool:
        """Whether every backend has memory of its own, and none changes the order of nodes."""
        sched = self.sched
        return len(set(sched.bufts)) == len(sched.bufts) and not any(b.reorders for b in sched.backends)

    def schedule(self, graph: GraphParts, layer_home: Sequence[int], pin_nodes: bool, pin_host: bool) -> Schedule:
        """Homes and splits; pins are llama.cpp's assignments while it builds the graph."""
        homes = [layer_home[il] if il >= 0 and pin_nodes else -1 for il in graph.layers]
        return self.quick.schedule(graph.parts, graph.buffers, homes, pin_host)

    def sizes(self, graph: GraphParts, schedule: Schedule) -> list[int]:
        """Bytes of each backend's compute buffer."""
        topology = topology_of(graph)
        deps = self.deps.find(schedule)
        first: dict[Part, int] = {}
        like = tuple([first.setdefault(part, at) for at, part in enumerate(graph.parts)])
        key = (
            id(topology),
            like,
            self.sched.n_copies,
            schedule.outcome.number,
            tuple([(until, tuple(kept)) for until, kept in deps.items()]),
        )
        steps = _steps.get(key)
        if steps is None:
            if len(_steps) >= KEPT:
                del _steps[next(iter(_steps))]
            steps = _steps[key] = StepFinder(topology, schedule, self.sched.n_copies, deps, like).find()
        return replay(steps, graph.parts, graph.inputs, self.sched.bufts)


KEPT = 16
"""Topologies, and lists of steps, that are remembered."""

_topologies: dict[tuple[int, ...], Topology] = {}
_steps: dict[tuple[object, ...], Steps] = {}


def topology_of(graph: GraphParts) -> Topology:
    """The graph's structure, shared by all graphs of the same structure."""
    key = (len(graph.inputs), *(part_number(part) for part in graph.parts))
    topology = _topologies.get(key)
    if topology is None:
        if len(_topologies) >= KEPT:
            _topologies.clear()
            _steps.clear()
        topology = _topologies[key] = Topology(graph.parts, len(graph.inputs))
    return topology
