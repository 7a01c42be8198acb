"""Graphs cut anywhere: parts that hand on several tensors, or pass them through, plan as the whole graph does."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan.ggml import ops
from memplan.ggml.backend import Backend, Buffer, Optimized
from memplan.ggml.graph import Graph
from memplan.ggml.plan.parts import GraphParts, Part, PartBuilder, PartError
from memplan.ggml.plan.planner import QuickPlanner
from memplan.ggml.plan.structure import structure_of
from memplan.ggml.sched import Sched
from memplan.ggml.tensor import FLAG_OUTPUT, VIEW_OPS, Tensor
from memplan.gguf.types import F32
from tests.ggml.toys import HOST, ToyBackend, ToyBuffer

GPUS = ToyBuffer("GPU0"), ToyBuffer("GPU1")
PLACES = [Buffer(buft, weights=True) for buft in (*GPUS, HOST)]
SHAPE = (8, 4)

Step = tuple[str, int, int, bool]
"""An op, which of the tensors there are it reads, and whether it is expanded at once."""

OPS = ("SQRT", "NORM", "ADD", "ADD", "PRODUCT", "WIDE", "RESHAPE", "SCRATCH", "SHARED", "PINNED", "OUTPUT")


@dataclass(frozen=True)
class Kind:
    """How one stretch is built: ``outs`` are the tensors that it hands on, of those that it was given or has made."""

    steps: tuple[Step, ...]
    outs: tuple[int, ...]


@dataclass
class Toy:
    """A graph in the making, whole or in parts: two inputs, and weights that lie where their stretch does."""

    places: list[int]
    graph: Graph = field(default_factory=Graph)
    roles: dict[Tensor, str] = field(default_factory=dict)
    shared: set[Tensor] = field(default_factory=set)
    pinned: list[tuple[Tensor, int]] = field(default_factory=list)
    by_place: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.inputs = [ops.new_input(F32, *SHAPE) for _ in range(2)]

    def weight(self, role: str, at: int, *dims: int) -> Tensor:
        t = ops.new(F32, *dims, name=role)
        t.buffer = place(role, self.places[at])
        self.roles[t] = role
        return t

    def common(self, at: int, in_parts: bool) -> Tensor:
        if in_parts:
            t = self.weight("common", at, *SHAPE)
            self.shared.add(t)
            return t
        where = self.places[at]
        if where not in self.by_place:
            self.by_place[where] = self.weight("common", at, *SHAPE)
        return self.by_place[where]

    def build(self, kind: Kind, at: int, given: tuple[Tensor, ...], in_parts: bool) -> tuple[Tensor, ...]:
        have = [*given, *self.inputs]
        common = None
        for i, (op, a, b, now) in enumerate(kind.steps):
            x, y = have[a % len(have)], have[b % len(have)]
            if op == "NORM":
                t = ops.rms_norm(x)
            elif op == "ADD":
                t = ops.add(x, y)
            elif op == "PRODUCT":
                t = ops.mul_mat(self.weight(f"w{i}", at, 8, 8), x)
            elif op == "WIDE":
                t = ops.mul_mat(self.weight(f"up{i}", at, 8, 48), x)
                t = ops.mul_mat(self.weight(f"down{i}", at, 48, 8), t)
            elif op == "RESHAPE":
                t = ops.reshape(ops.reshape(x, 4, 8), *SHAPE)
            elif op == "SCRATCH":
                t = ops.add(x, ops.new(F32, *SHAPE))
            elif op == "SHARED":
                common = common or self.common(at, in_parts)
                t = ops.add(x, common)
            else:
                t = ops.sqrt(x)
            if op == "PINNED":
                self.pinned.append((t, at))
            if op == "OUTPUT":
                t.flags |= FLAG_OUTPUT
            have.append(t)
            if now:
                self.graph.expand(t)
        return tuple([have[i % len(have)] for i in kind.outs])


def place(role: str, where: int) -> Buffer:
    """Wide stretches have one weight on the host."""
    return PLACES[2] if role.startswith("up") and where == 1 else PLACES[where]


@dataclass(frozen=True)
class Case:
    kinds: tuple[Kind, ...]
    sequence: tuple[int, ...]
    places: tuple[int, ...]

    def whole(self) -> Toy:
        toy = Toy(list(self.places))
        outs: tuple[Tensor, ...] = ()
        for at, kind in enumerate(self.sequence):
            outs = toy.build(self.kinds[kind], at, outs, in_parts=False)
        for out in outs:
            toy.graph.expand(out)
        return toy

    def in_parts(self) -> GraphParts:
        toy = Toy(list(self.places))
        builder = PartBuilder(toy.graph, toy.roles, [], toy.pinned, [], toy.shared)
        known: dict[tuple[int, int], tuple[Part, tuple[Tensor, ...]]] = {}
        parts = []
        outs: tuple[Tensor, ...] = ()
        for at, kind in enumerate(self.sequence):
            if (kind, len(outs)) not in known:
                built = toy.build(self.kinds[kind], at, builder.begin(outs), in_parts=True)
                known[kind, len(outs)] = builder.end(built), built
            part, outs = known[kind, len(outs)]
            parts.append(part)
        buffers = [
            tuple([place(role, where) if role else None for role in part.roles])
            for part, where in zip(parts, self.places, strict=True)
        ]
        return GraphParts(parts, buffers, builder.inputs, range(len(parts)))


class FromTheEnd(ToyBackend):
    """Computes a split from its end wherever that is possible, and keeps each node's sources until the next node."""

    def graph_optimize(self, nodes: list[Tensor], after: Tensor | None = None) -> Optimized:
        order: list[Tensor] = []
        left = list(nodes)
        while left:
            waiting = set(left)
            t = next(t for t in reversed(left) if not waiting & {*t.src, t.view_src})
            order.append(t)
            left.remove(t)
        deps = [(s, until) for t, until in pairwise(order) if t.op not in VIEW_OPS for s in t.src]
        return order, deps


class WholeFromTheEnd(FromTheEnd):
    def looks_far(self, nodes: list[Tensor]) -> bool:
        return True


class Keeping(ToyBackend):
    """Keeps the sources of each sum until the node after it."""

    def graph_optimize(self, nodes: list[Tensor], after: Tensor | None = None) -> Optimized:
        following = [*nodes[1:], after]
        return nodes, [(s, n) for t, n in zip(nodes, following, strict=True) if t.op == "ADD" and n for s in t.src]


steps = st.tuples(st.sampled_from(OPS), st.integers(0, 40), st.integers(0, 40), st.booleans())
kinds = st.builds(
    Kind,
    st.lists(steps, min_size=1, max_size=9).map(tuple),
    st.lists(st.integers(0, 40), min_size=1, max_size=3).map(tuple),
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    several = tuple(draw(st.lists(kinds, min_size=1, max_size=3)))
    sequence = tuple(draw(st.lists(st.integers(0, len(several) - 1), min_size=1, max_size=7)))
    places = tuple(draw(st.lists(st.integers(0, 2), min_size=len(sequence), max_size=len(sequence))))
    return Case(several, sequence, places)


def scheds(kind: type[ToyBackend], refuses: frozenset[str], parallel: bool) -> Sched:
    backends: list[Backend] = [
        kind("GPU0", GPUS[0], refuses, frozenset({"MUL_MAT"})),
        kind("GPU1", GPUS[1]),
        ToyBackend("CPU", HOST),
    ]
    return Sched(backends, [b.buft for b in backends], parallel, True)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    cases(),
    st.sampled_from([ToyBackend, Keeping, WholeFromTheEnd]),
    st.sampled_from([frozenset(), frozenset({"RMS_NORM"}), frozenset({"ADD", "SQRT"})]),
    st.booleans(),
)
def test_a_graph_in_parts_plans_as_the_whole(
    case: Case, kind: type[ToyBackend], refuses: frozenset[str], parallel: bool
) -> None:
    whole, parts = case.whole(), case.in_parts()
    structure = structure_of(parts)
    nodes = [(structure.at[i], structure.ref[i]) for i in structure.order]
    assert [parts.parts[at].nodes[r].op for at, r in nodes] == [t.op for t in whole.graph.nodes]
    assert structure.n_leafs == len(whole.graph.leafs)

    plain = scheds(kind, refuses, parallel)
    quick = QuickPlanner(scheds(kind, refuses, parallel))
    layer_home = [at % 3 for at in range(len(case.sequence))]
    for t, il in whole.pinned:
        if plain.backends[layer_home[il]].supports_op(t):
            t.backend = layer_home[il]
    plain.split_graph(whole.graph)
    schedule = quick.schedule(parts, layer_home, True, False)
    assert [split.backend for split in schedule.splits] == [split.backend for split in plain.splits]

    whole = case.whole()
    sizes = plain.reserve_size(whole.graph)
    for _ in range(2):  # found, then remembered
        schedule = quick.schedule(parts, layer_home, False, False)
        assert [(x.backend, x.start, len(x.inputs)) for x in schedule.splits] == [
            (x.backend, x.start, len(x.inputs)) for x in plain.splits
        ]
        assert [sum(chunks) for chunks in quick.sizes(parts, schedule)] == sizes


@settings(max_examples=100, deadline=None)
@given(cases(), st.booleans())
def test_a_whole_graph_is_a_part_as_well(case: Case, parallel: bool) -> None:
    outs: tuple[Tensor, ...] = ()
    toy = Toy(list(case.places))
    builder = PartBuilder(toy.graph, toy.roles, [], toy.pinned, [])
    builder.begin(())
    for at, kind in enumerate(case.sequence):
        outs = toy.build(case.kinds[kind], at, outs, in_parts=False)
    part = builder.end(outs)
    buffers = tuple([t.buffer for t in part.leafs])
    graph = GraphParts([part], [buffers], builder.inputs, [-1])
    quick = QuickPlanner(scheds(Keeping, frozenset(), parallel))
    schedule = quick.schedule(graph, [], False, False)
    plain = scheds(Keeping, frozenset(), parallel)
    sizes = [sum(chunks) for chunks in quick.sizes(graph, schedule)]
    assert sizes == plain.reserve_size(case.whole().graph)
    assert len(schedule.splits) == len(plain.splits)


def built(*stretches: Kind) -> list[str]:
    """The ops of a graph made of these stretches, each of its own kind."""
    case = Case(stretches, tuple(range(len(stretches))), (0,) * len(stretches))
    graph = case.in_parts()
    structure = structure_of(graph)
    ops_of = [graph.parts[at].nodes[r].op for at, r in ((structure.at[i], structure.ref[i]) for i in structure.order)]
    assert ops_of == [t.op for t in case.whole().graph.nodes]
    return ops_of


def test_what_is_handed_on_is_computed_when_it_is_first_asked_for() -> None:
    head = Kind((("NORM", 0, 0, False), ("SQRT", 0, 0, False)), (2, 3))
    assert built(head, Kind((("ADD", 0, 1, True),), (4,))) == ["RMS_NORM", "SQRT", "ADD"]
    assert built(head, Kind((("ADD", 1, 0, True),), (4,))) == ["SQRT", "RMS_NORM", "ADD"]


def test_what_is_passed_through_waits_and_what_nothing_reads_is_not_computed() -> None:
    head = Kind((("NORM", 0, 0, False), ("SQRT", 0, 0, False)), (2, 3))
    through = Kind((("SCRATCH", 1, 0, True),), (0, 4))
    assert built(head, through, Kind((("ADD", 1, 0, True),), (4,))) == ["SQRT", "ADD", "RMS_NORM", "ADD"]
    assert built(head, through, Kind((("SQRT", 1, 0, True),), (4,))) == ["SQRT", "ADD", "SQRT"]


def test_what_cannot_be_cut_is_a_fault() -> None:
    toy = Toy([0])
    builder = PartBuilder(toy.graph, toy.roles, [], [], [])
    builder.begin(())
    x, y = ops.sqrt(toy.inputs[0]), ops.rms_norm(toy.inputs[0])
    toy.graph.expand(y)
    first = builder.end((x,))
    assert [t.op for t in first.nodes] == ["RMS_NORM", "SQRT"]
    (stand_in,) = builder.begin((x,))
    with pytest.raises(PartError, match="belongs to another part"):
        builder.end((ops.add(stand_in, y),))
    builder.begin((x,))
    with pytest.raises(PartError, match="lies in a buffer"):
        builder.end((toy.weight("w", 0, 8, 8),))
