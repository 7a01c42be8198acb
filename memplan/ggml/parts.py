"""Stretches of a graph that occur again and again, built once.

A model's layers are alike but for a few kinds, so the quick planner (``memplan.ggml.quick``) builds each kind once and
refers to its tensors by number. A part's tensors are numbered as follows: its nodes in order, then its own leafs;
``INPUT`` is the tensor that the part before hands over; inputs of the whole graph are ``-2 - number``.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from memplan.ggml.backend import SCRATCH_OPS, Backend, Buffer, BufferType
from memplan.ggml.gallocr import INPLACE_OPS
from memplan.ggml.graph import Graph
from memplan.ggml.tensor import FLAG_INPUT, VIEW_OPS, Tensor

INPUT = -1
NO_BASE = -(1 << 30)
"""``Part.bases`` of what is no view."""


@dataclass(slots=True, eq=False)
class Part:
    """One stretch.

    Attributes:
        nodes: in the order they are computed; ``n_pre`` of them before the part's input is looked at, those from
            ``n_body`` on only once a later part asks for this one's result.
        leafs: weights, caches and scratch tensors of its own.  roles: what each is for, "" for scratch.
        leaf_order: leafs and graph inputs by first use, as ids; ``pre_leafs`` and ``body_leafs`` bound the stretches.
        srcs: each node's sources.  bases: what each node is a view of.  takes: which sources' places a node may
            take.
        out: the tensor it hands on.  ids: numbers by tensor.
        number: the same for parts of equal structure, once it is asked for.  loaded: the buffers its leafs have now.
        fused: fused op and its node.  pinned: nodes that llama.cpp pins to their layer's device.  on_host: to the CPU.
    """

    nodes: list[Tensor]
    n_pre: int
    n_body: int
    leafs: list[Tensor]
    roles: tuple[str, ...]
    leaf_order: list[int]
    pre_leafs: int
    body_leafs: int
    srcs: list[tuple[int, ...]]
    bases: list[int]
    takes: list[tuple[int, ...]]
    out: int
    ids: dict[Tensor, int]
    fused: list[tuple[str, int]]
    pinned: list[int]
    on_host: list[int]
    number: int = -1
    loaded: tuple[Buffer | None, ...] | None = None
    _sizes: dict[Hashable, dict[int, int]] = field(default_factory=dict)
    _scratch: dict[Hashable, list[tuple[int, int, bool]]] = field(default_factory=dict)

    def signature(self) -> tuple[object, ...]:
        """What the order and the places of tensors depend on, sizes left out; equal for parts of equal structure."""
        return (
            tuple(self.srcs),
            tuple(self.bases),
            tuple(self.takes),
            tuple(t.op in VIEW_OPS for t in self.nodes),
            tuple(t.buffer is not None for t in self.leafs),
            tuple(self.leaf_order),
            (self.n_pre, self.n_body, self.pre_leafs, self.body_leafs, self.out),
        )

    def tensor(self, i: int) -> Tensor:
        """The tensor of one number, a node's or a leaf's."""
        n = len(self.nodes)
        return self.nodes[i] if i < n else self.leafs[i - n]

    def size(self, i: int, buft: BufferType) -> int:
        """Bytes that tensor ``i`` takes in a buffer of this type."""
        sizing = buft.sizing
        sizes = self._sizes.get(sizing)
        if sizes is None:
            sizes = self._sizes[sizing] = {}
        size = sizes.get(i)
        if size is None:
            mask = buft.alignment - 1
            size = sizes[i] = (buft.alloc_size(self.tensor(i)) + mask) & ~mask
        return size

    def scratch(self, backend: Backend) -> list[tuple[int, int, bool]]:
        """The nodes that take scratch at run time if ``backend`` computes them: (node, bytes, through cuBLAS)."""
        known = self._scratch.get(backend.scratching)
        if known is None:
            found = [(i, backend.scratch(t)) for i, t in enumerate(self.nodes) if t.op in SCRATCH_OPS]
            known = [(i, taken.nbytes, taken.cublas) for i, taken in found if taken.pieces or taken.cublas]
            self._scratch[backend.scratching] = known
        return known


class PartBuilder:
    """Cuts parts out of one graph as it is built; ``inputs`` collects the graph's inputs by number.

    ``roles`` names leafs; ``fused_nodes``, ``pinned`` and ``on_host`` are the graph builder's growing lists.
    """

    def __init__(
        self,
        graph: Graph,
        roles: Mapping[Tensor, str],
        fused_nodes: list[tuple[str, Tensor, int]],
        pinned: list[tuple[Tensor, int]],
        on_host: list[Tensor],
    ) -> None:
        self.graph = graph
        self.roles = roles
        self.fused_nodes = fused_nodes
        self.pinned = pinned
        self.on_host = on_host
        self.inputs: list[Tensor] = []
        self._input_ids: dict[Tensor, int] = {}

    def begin(self, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Start a part: stand-ins for what the part before hands on, shaped ``like`` these; none for the first part."""
        self._markers = [Tensor("NONE", t.type, t.ne, t.nb, [], name="marker") for t in like]
        self._stand_ins = tuple(Tensor("PART_INPUT", m.type, m.ne, m.nb, [m], name="input") for m in self._markers)
        graph = self.graph
        self._first = len(graph.nodes), len(graph.leafs)
        self._marks = len(self.fused_nodes), len(self.pinned), len(self.on_host)
        return self._stand_ins

    def end(self, outs: Sequence[Tensor]) -> Part:
        """The part that was built since ``begin`` and hands on ``outs``."""
        if len(outs) != 1 or len(self._stand_ins) > 1:
            raise NotImplementedError("parts that hand on several tensors")
        (out,) = outs
        stand_in = self._stand_ins[0] if self._stand_ins else None
        marker = self._markers[0] if self._markers else None
        graph = self.graph
        first, first_leaf = self._first
        marks = self._marks
        n_body = len(graph.nodes) - first
        body_leafs = len(graph.leafs) - first_leaf
        graph.expand(out)
        nodes, leafs = graph.nodes[first:], graph.leafs[first_leaf:]
        n_pre, pre_leafs = n_body, body_leafs
        if stand_in is not None and marker is not None:
            n_pre, pre_leafs = nodes.index(stand_in), leafs.index(marker)
            del nodes[n_pre], leafs[pre_leafs]
            n_body -= 1
            body_leafs -= 1
        ids = {t: i for i, t in enumerate(nodes)}
        own = [t for t in leafs if not t.flags & FLAG_INPUT]
        for i, t in enumerate(own, len(nodes)):
            ids[t] = i
        if stand_in is not None:
            ids[stand_in] = INPUT
        for t in leafs:
            if t.flags & FLAG_INPUT:
                self._input_ids[t] = -2 - len(self.inputs)
                self.inputs.append(t)
        ids.update(self._input_ids)
        return Part(
            nodes=nodes,
            n_pre=n_pre,
            n_body=n_body,
            leafs=own,
            roles=tuple([self.roles.get(t, "") for t in own]),
            leaf_order=[ids[t] for t in leafs],
            pre_leafs=pre_leafs,
            body_leafs=body_leafs,
            srcs=[tuple([ids[s] for s in t.src]) for t in nodes],
            bases=[NO_BASE if t.view_src is None else ids[t.view_src] for t in nodes],
            takes=[_takes(t) for t in nodes],
            out=ids[out],
            ids=ids,
            fused=[(op, ids[t]) for op, t, _ in self.fused_nodes[marks[0] :]],
            pinned=[ids[t] for t, il in self.pinned[marks[1] :] if il >= 0],
            on_host=[ids[t] for t in self.on_host[marks[2] :]],
        )


def _takes(t: Tensor) -> tuple[int, ...]:
    """Numbers of the sources laid out like ``t``, if ``t`` can be computed in place."""
    if t.op not in INPLACE_OPS or t.view_src is not None:
        return ()
    ne, nb, type = t.ne, t.nb, t.type
    return tuple(j for j, s in enumerate(t.src) if s.ne == ne and s.nb == nb and s.type is type)


_signatures: dict[tuple[object, ...], int] = {}


def part_number(part: Part) -> int:
    """A number for the part's structure: equal for parts that differ in sizes alone."""
    if part.number < 0:
        part.number = _signatures.setdefault(part.signature(), len(_signatures))
    return part.number
