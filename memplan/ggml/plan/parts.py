"""Stretches of a graph that occur again and again, built once.

A model's layers are alike but for a few kinds, so each kind is built once, and a graph is a sequence of parts. A part
refers to tensors by number: its nodes in order, then its own leafs; ``-1``, ``-2``, ... are the tensors that the part
before hands on; ``FIRST_INPUT`` and below are inputs of the whole graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from itertools import count

from memplan.garbage import make_room
from memplan.ggml.backend import SCRATCH_OPS, Backend, Buffer, BufferType, Traits
from memplan.ggml.gallocr import INPLACE_OPS
from memplan.ggml.graph import Graph
from memplan.ggml.plan.part_structure import FIRST_INPUT, KEPT_STRUCTURES, NO_BASE, PartStructure
from memplan.ggml.tensor import FLAG_INPUT, FLAG_OUTPUT, VIEW_OPS, Tensor

Buffers = tuple["Buffer | None", ...]
"""Where a part's leafs lie, None for what the allocator places."""


class PartError(Exception):
    """A fault of what builds a graph: it cannot be cut as it was."""


_numbers: dict[tuple[Hashable, ...], int] = {}
_next_number = count()


@dataclass(eq=False)
class Part:
    """One stretch.

    Attributes:
        nodes: in the order in which they are computed, if ``outs`` are asked for in order.  leafs: its weights, caches
            and scratch tensors.  roles: what each leaf is for, "" for scratch.
        structure: how they hang together.
        ids: numbers by tensor.
        fused: fused op, its node, its layer.  pinned: node and layer of what llama.cpp pins to the layer's device.
        on_host: nodes that are pinned to the CPU when caches are not offloaded.
    """

    nodes: list[Tensor]
    leafs: list[Tensor]
    roles: tuple[str, ...]
    structure: PartStructure
    ids: dict[Tensor, int]
    fused: list[tuple[str, int, int]]
    pinned: list[tuple[int, int]]
    on_host: list[int]
    _sizes: dict[Hashable, dict[int, int]] = field(default_factory=dict)
    _computes: dict[Hashable, dict[int, bool]] = field(default_factory=dict)
    _alike: dict[Callable[[Tensor], Traits], tuple[int, tuple[Hashable, ...]]] = field(default_factory=dict)
    _scratch: dict[Hashable, list[tuple[int, int, bool]]] = field(default_factory=dict)

    def alike(self, traits: Callable[[Tensor], Traits]) -> tuple[int, tuple[Hashable, ...]]:
        """A number and what was only compared: parts of one number are alike if these are the same among themselves.

        ``traits``: what of each node counts.
        """
        known = self._alike.get(traits)
        if known is None:
            compared: dict[Hashable, int] = {}
            signature: list[Hashable] = [self.structure, traits]
            for t in self.nodes:
                exact, others = traits(t)
                signature += (exact, *[compared.setdefault(value, len(compared)) for value in others])
            make_room(_numbers, KEPT_STRUCTURES)
            number = _numbers.setdefault(tuple(signature), next(_next_number))
            known = self._alike[traits] = number, tuple(compared)
        return known

    def asks(self, backend: Backend) -> Callable[[int], bool]:
        """Whether a backend computes a node; remembered where that depends on nobody's memory."""
        nodes, supports = self.nodes, backend.supports_op
        if backend.computing is None:
            return lambda i: supports(nodes[i])
        known = self._computes.setdefault(backend.computing, {})

        def ask(i: int) -> bool:
            answer = known.get(i)
            if answer is None:
                answer = known[i] = supports(nodes[i])
            return answer

        return ask

    def tensor(self, i: int) -> Tensor:
        """The tensor of one number, a node's or a leaf's."""
        n = len(self.nodes)
        return self.nodes[i] if i < n else self.leafs[i - n]

    def locate(self, buffers: Buffers) -> None:
        """Put the leafs where they lie at one place of one graph; to be done before a backend is asked anything."""
        for leaf, buffer in zip(self.leafs, buffers, strict=True):
            leaf.buffer = buffer

    def sizes(self, buft: BufferType) -> dict[int, int]:
        """Bytes that tensors take in a buffer of this type, by number, as far as they are known; to be added to."""
        return self._sizes.setdefault(buft.sizing, {})

    def scratch(self, backend: Backend) -> list[tuple[int, int, bool]]:
        """The nodes that take scratch at run time if ``backend`` computes them: (node, bytes, through cuBLAS)."""
        known = self._scratch.get(backend.scratching)
        if known is None:
            found = [(i, backend.scratch(t)) for i, t in enumerate(self.nodes) if t.op in SCRATCH_OPS]
            known = [(i, taken.nbytes, taken.cublas) for i, taken in found if taken.pieces or taken.cublas]
            self._scratch[backend.scratching] = known
        return known


@dataclass(frozen=True, slots=True)
class GraphParts:
    """A graph in parts: each place's part, where its leafs lie, and the layer that it stands for.

    ``inputs``: the whole graph's.  ``layers``: -1 for a part that stands for the layers that it was built with.
    """

    parts: Sequence[Part]
    buffers: Sequence[Buffers]
    inputs: Sequence[Tensor]
    layers: Sequence[int]

    @property
    def n_nodes(self) -> int:
        """Nodes of all parts."""
        return sum([len(part.nodes) for part in self.parts])


class PartBuilder:
    """Cuts parts out of one graph as it is built; ``inputs`` collects the graph's inputs by number.

    ``roles`` names leafs; ``fused_nodes``, ``pinned``, ``on_host`` and ``shared`` are the graph builder's growing
    collections; ``shared`` has the leafs that belong to no layer.
    """

    def __init__(
        self,
        graph: Graph,
        roles: Mapping[Tensor, str],
        fused_nodes: list[tuple[str, Tensor, int]],
        pinned: list[tuple[Tensor, int]],
        on_host: list[Tensor],
        shared: Collection[Tensor] = (),
    ) -> None:
        self.graph = graph
        self.roles = roles
        self.fused_nodes = fused_nodes
        self.pinned = pinned
        self.on_host = on_host
        self.shared = shared
        self.inputs: list[Tensor] = []
        self._growing: tuple[Sized, ...] = (graph.nodes, graph.leafs, graph.expanded, fused_nodes, pinned, on_host)
        self._input_ids: dict[Tensor, int] = {}
        self._given: tuple[Tensor, ...] = ()
        self._marks: tuple[int, ...] = ()

    def begin(self, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Start a part: stand-ins for what the part before hands on, shaped ``like`` these; none for the first part."""
        self._given = tuple([Tensor("PART_INPUT", t.type, t.ne, t.nb, [], name="input") for t in like])
        self._marks = tuple([len(growing) for growing in self._growing])
        return self._given

    def end(self, outs: Sequence[Tensor]) -> Part:
        """The part that was built since ``begin`` and hands on ``outs``, stand-ins that it passes through among them.

        Raises:
            PartError: it reads a tensor of another part that was not handed on to it, or hands on what has a buffer.
        """
        graph, given = self.graph, set(self._given)
        node, leaf, root, fused, pinned, on_host = self._marks
        roots = graph.expanded[root:]
        for out in outs:
            graph.expand(out)
            out.uses += 1  # for the part that reads it
        nodes = [t for t in graph.nodes[node:] if t not in given]
        leafs = [t for t in graph.leafs[leaf:] if not t.flags & FLAG_INPUT]
        new = set(leafs)
        if self.shared:
            leafs += dict.fromkeys(s for t in nodes for s in t.src if s in self.shared and s not in new)
        for t in graph.leafs[leaf:]:
            if t.flags & FLAG_INPUT:
                self._input_ids[t] = FIRST_INPUT - len(self.inputs)
                self.inputs.append(t)
        roles = tuple([self.roles.get(t, "") for t in leafs])
        ids = {t: i for i, t in enumerate([*nodes, *leafs])}
        ids.update({t: -1 - i for i, t in enumerate(self._given)})
        ids.update(self._input_ids)
        for out in outs:
            base = out.view_src or out
            if base.buffer is not None:
                raise PartError(f"{out.name} lies in a buffer of its own and cannot be handed on to the next part")
        try:
            structure = PartStructure.of(
                tuple([tuple([ids[s] for s in t.src]) for t in nodes]),
                tuple([NO_BASE if t.view_src is None else ids[t.view_src] for t in nodes]),
                tuple(map(_takes, nodes)),
                bytes([t.op not in VIEW_OPS for t in nodes]),
                bytes([t.flags & FLAG_OUTPUT != 0 for t in (*nodes, *leafs)]),
                bytes([role != "" for role in roles]),
                tuple([i for i, t in enumerate(leafs, len(nodes)) if t in self.shared]),
                len(given),
                tuple([ids[t] for t in outs]),
                tuple([ids[t] for t in roots]),
            )
            return Part(
                nodes=nodes,
                leafs=leafs,
                roles=roles,
                structure=structure,
                ids=ids,
                fused=[(op, ids[t], il) for op, t, il in self.fused_nodes[fused:] if t in ids],
                pinned=[(ids[t], il) for t, il in self.pinned[pinned:] if il >= 0 and t in ids],
                on_host=[ids[t] for t in self.on_host[on_host:] if t in ids],
            )
        except KeyError as fault:
            raise PartError(f"{fault.args[0]!r} belongs to another part, which does not hand it on") from None


def _takes(t: Tensor) -> tuple[int, ...]:
    """Numbers of the sources laid out like ``t``, if ``t`` can be computed in place."""
    if t.op not in INPLACE_OPS or t.view_src is not None:
        return ()
    ne, nb, type = t.ne, t.nb, t.type
    return tuple(j for j, s in enumerate(t.src) if s.ne == ne and s.nb == nb and s.type is type)
