"""The graphs of one model: like halves of layers are built once, and put together for each context and placement."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, Protocol

from memplan.garbage import make_room
from memplan.ggml.plan.part_structure import FIRST_INPUT
from memplan.ggml.plan.parts import Buffers, GraphParts, Part, PartBuilder
from memplan.ggml.plan.structure import kept_of
from memplan.ggml.tensor import Tensor, new_tensor
from memplan.llama.batch import NOTHING_GIVEN, Batch, GivenOut
from memplan.llama.context import FLASH_ATTN, GATED_DELTA_NET, Fused, Paths, Probe
from memplan.llama.graph.base import H
from memplan.models.base import many, rest_of_layer

if TYPE_CHECKING:
    from memplan.ggml.backend import Buffer, BufferType
    from memplan.llama.memory.base import Memory
    from memplan.llama.weights import ModelTensor, ModelTensors
    from memplan.models.base import Architecture, ModelGraph
    from memplan.releases import Release

PartBuffers = dict[tuple[tuple[str, ...], int], Buffers]
"""Where the leafs of a part lie, by their roles and the layer that the part stands for."""


class BufferMap(Protocol):
    """Says where weights and caches lie; ``parts``: what was found so far, the same for all graphs of a placement."""

    parts: PartBuffers

    def weight(self, role: str) -> Buffer:
        """A weight's buffer."""

    def cache(self, buft: BufferType) -> Buffer:
        """The buffer of caches and states in memory of this type."""


LENT = frozenset({"token_embd.weight", "output.weight", "output.scale"})
"""Weights that a drafter takes from the model that it drafts for."""

KEPT_SIZES = 32
"""Batches and contexts whose parts a model remembers."""

LEAST_SIZES = 3
"""The same, however many nodes unlike layers have: as many as one estimate asks for."""

KEPT_SECONDS = 64
"""Second halves of layers that a model remembers."""

FEED_FORWARD = ("ffn_", "exp_probs_b", "hc_ffn_")
"""Starts of the names of weights that no attention reads."""

Half = tuple[Part, tuple[Tensor, ...]]
"""A stretch, and what it hands on."""


class ModelGraphs(Generic[H]):
    """What stays the same for all estimates of one model: its weights, which layers are alike, parts built."""

    def __init__(self, arch: Architecture[H], hp: H, tensors: ModelTensors, other: ModelTensors | None = None) -> None:
        """``other``: those of the model that this one drafts for, which it takes where it has none (``ctx_other``)."""
        self.arch = arch
        self.hp = hp
        self.weights: Mapping[str, ModelTensor] = tensors.by_role()
        if other is not None:
            lent = {t.role: t for t in other.tensors if t.role in LENT}
            self.weights = {**lent, **self.weights}
        self.layers = arch.graph.layers(hp)
        attends: dict[int, list[object]] = {il: [hp.of_layer(il), arch.layer_kind(hp, il)] for il in self.layers}
        feeds: dict[int, list[object]] = {il: [] for il in self.layers}
        for t in tensors.tensors:
            if t.layer in feeds and t.role.startswith("blk."):
                name = t.role.split(".", 2)[2]
                of_layer = feeds if name.startswith(FEED_FORWARD) else attends
                of_layer[t.layer].append((name, t.type, t.ne))
        self.attends = _numbered(attends)
        """A number for each layer, the same for those that attend alike."""
        self.kinds = _numbered({il: [self.attends[il], *kind] for il, kind in feeds.items()})
        """A number for each layer, the same for those with like weights."""
        self._parts: dict[tuple[object, ...], tuple[list[Part], list[int], list[Tensor]]] = {}
        self._seconds: dict[Hashable, tuple[Half, Hashable]] = {}

    def at(
        self,
        memory: Memory,
        buffers: BufferMap,
        release: Release,
        paths: Paths,
        n_tokens: int,
        n_tensors: int,
        given_out: GivenOut = NOTHING_GIVEN,
    ) -> PlacedGraphs[H]:
        """The model with its caches, in one placement.

        ``paths``: which fused ops are asked for or ruled out.  ``n_tokens``: of the largest batch.  ``n_tensors``:
        weights that are made.
        """
        max_nodes = self.arch.max_nodes(n_tokens, n_tensors)
        return PlacedGraphs(self, memory, buffers, release, paths, max_nodes, given_out)

    def parts(self, batch: Batch, fused: Fused, graphs: PlacedGraphs[H]) -> tuple[list[Part], list[int], list[Tensor]]:
        """The part at each position, its layer, and the graph's inputs; like parts are the same."""
        key = (batch, fused, graphs.memory.shape, graphs.release, graphs.given_out)
        known = self._parts.get(key)
        if known is None:
            known = _InParts(self, graphs.start(batch, fused)).build()
            n_nodes = sum([len(part.nodes) for part in {*known[0]}])
            make_room(self._parts, kept_of(n_nodes, LEAST_SIZES, KEPT_SIZES))
            self._parts[key] = known
        return known

    def second_half(self, key: Hashable, inputs: Sequence[Tensor]) -> Half | None:
        """A second half that another graph has already; ``inputs``: those of this one."""
        half, read = self._seconds.get(key, (None, ()))
        return half if half is not None and read == _read(half, inputs) else None

    def keep_second_half(self, key: Hashable, half: Half, inputs: Sequence[Tensor], il: int) -> None:
        """Remember a second half that knows nothing of the memory: it is the same for every context."""
        if all(not role or _name(role, il) in self.weights for role in half[0].roles):
            make_room(self._seconds, KEPT_SECONDS)
            self._seconds[key] = half, _read(half, inputs)


class _InParts(Generic[H]):
    """One graph as it is built in parts."""

    def __init__(self, model: ModelGraphs[H], graph: ModelGraph[H]) -> None:
        graph.shares = False
        self.model = model
        self.graph = graph
        self.builder = PartBuilder(
            graph.graph, graph.roles, graph.fused_nodes, graph.pinned, graph.on_host, graph.shared
        )

    def build(self) -> tuple[list[Part], list[int], list[Tensor]]:
        """The part at each position, its layer, and the graph's inputs."""
        graph, builder, model, memory = self.graph, self.builder, self.model, self.graph.memory
        builder.begin(())
        given = many(graph.head())
        graph.hand_over(model.layers.start, given)
        parts, layers = [builder.end(given)], [-1]
        built: dict[Hashable, list[Half]] = {}
        attended: dict[Hashable, Half] = {}
        for il in model.layers:
            about = graph.is_last(il), il + 1 in graph.given_out.layer_inputs
            read = about, memory.of_layer(memory_layer(memory, il)), _shapes(given)
            kind, attends = (model.kinds[il], read), (model.attends[il], read)
            halves = built.get(kind)
            if halves is None:
                halves = built[kind] = self._layer(il, given, about, attended.get(attends))
                if len(halves) > 1 and not any(role.startswith(FEED_FORWARD) for role in halves[0][0].roles):
                    attended[attends] = halves[0]
            parts += [part for part, _ in halves]
            layers += [il] * len(halves)
            _, given = halves[-1]
        parts.append(builder.end((graph.end(builder.begin(given)),)))
        return parts, [*layers, -1], builder.inputs

    def _layer(self, il: int, given: tuple[Tensor, ...], about: Hashable, first: Half | None) -> list[Half]:
        """A layer's halves, or all of it in one; ``first``: where another layer attends alike."""
        graph, builder = self.graph, self.builder
        second = None if first is None else self._known(il, about, first)
        if first is not None and second is not None:
            return [first, second]
        step = graph.layer(il, *builder.begin(given))
        if not isinstance(step, Generator):
            return [self._end(il, many(step))]
        crossing = next(step)
        if first is None:
            outs = many(crossing)
            first = builder.end(outs), outs
            second = self._known(il, about, first)
        if second is None:
            n_inputs = len(builder.inputs)
            given = builder.begin(first[1])
            second = self._end(il, rest_of_layer(step, given if isinstance(crossing, tuple) else given[0]))
            if n_inputs == len(builder.inputs):
                self.model.keep_second_half(self._key(il, about, first), second, builder.inputs, il)
        return [first, second]

    def _known(self, il: int, about: Hashable, first: Half) -> Half | None:
        return self.model.second_half(self._key(il, about, first), self.builder.inputs)

    def _key(self, il: int, about: Hashable, first: Half) -> Hashable:
        """What a second half depends on, but for inputs."""
        return self.model.kinds[il], about, self.graph.fused, self.graph.release, _shapes(first[1])

    def _end(self, il: int, outs: tuple[Tensor, ...]) -> Half:
        self.graph.hand_over(il + 1, outs)
        return self.builder.end(outs), outs


def _numbered(kinds: Mapping[int, Sequence[object]]) -> dict[int, int]:
    """A number for each, the same for what is alike."""
    numbers: dict[tuple[object, ...], int] = {}
    return {il: numbers.setdefault(tuple(kind), len(numbers)) for il, kind in kinds.items()}


def _read(half: Half, inputs: Sequence[Tensor]) -> Hashable:
    """The graph's inputs that a half reads."""
    read = {FIRST_INPUT - r for srcs in half[0].structure.srcs for r in srcs if r <= FIRST_INPUT}
    return tuple([(i, inputs[i].name, _shapes([inputs[i]])) for i in sorted(read) if i < len(inputs)])


def _shapes(tensors: Sequence[Tensor]) -> Hashable:
    return tuple([(t.type, t.ne, t.nb) for t in tensors])


def memory_layer(memory: Memory, il: int) -> int:
    """The layer whose cache a layer uses: its own, or another's that it shares."""
    return next((at for cache in memory.caches.values() if (at := cache.layer(il)) != il), il)


class PlacedGraphs(Generic[H]):
    """Builds the graphs of one model in one placement (``memplan.llama.context.Graphs``)."""

    def __init__(
        self,
        model: ModelGraphs[H],
        memory: Memory,
        buffers: BufferMap,
        release: Release,
        paths: Paths,
        max_nodes: int,
        given_out: GivenOut,
    ) -> None:
        self.model = model
        self.memory = memory
        self.buffers = buffers
        self.release = release
        self.paths = paths
        self.max_nodes = max_nodes
        """Nodes that a graph has room for."""
        self.given_out = given_out

    def fused(self, flash_attn: str) -> Fused:
        """What is fused before any probe: what the release has ops for, if not ruled out."""
        fused = self.model.arch.fused(self.release, self.paths)
        return fused if flash_attn == "off" else fused | {FLASH_ATTN.op}

    def probes(self, flash_attn: str) -> tuple[Probe, ...]:
        """The fused ops that are tried, in llama.cpp's order."""
        return (
            *((FLASH_ATTN,) if flash_attn == "auto" else ()),
            *(GATED_DELTA_NET if self.release.gated_delta_net_probe else ()),
            *self.model.arch.probes(self.release, self.paths),
        )

    def start(self, batch: Batch, fused: Fused) -> ModelGraph[H]:
        """A graph that nothing is in yet."""
        graph = self.model.arch.graph_of(self.release)
        return graph(self.model.hp, batch, fused, self.memory, self.release, self, self.max_nodes, self.given_out)

    def whole(self, batch: Batch, fused: Fused) -> ModelGraph[H]:
        """Every tensor of the graph."""
        graph = self.start(batch, fused)
        graph.build()
        return graph

    def in_parts(self, batch: Batch, fused: Fused) -> GraphParts:
        """The same graph, like layers built once."""
        parts, layers, inputs = self.model.parts(batch, fused, self)
        buffers = [self.buffers_of(part.roles, il) for part, il in zip(parts, layers, strict=True)]
        return GraphParts(parts, buffers, inputs, layers)

    def buffers_of(self, roles: tuple[str, ...], il: int) -> Buffers:
        """Where the leafs of a part lie when it stands for layer ``il``."""
        known = self.buffers.parts.get((roles, il))
        if known is None:
            known = self.buffers.parts[roles, il] = tuple([self._buffer(role, il) if role else None for role in roles])
        return known

    def is_shared(self, role: str, il: int) -> bool:
        """Whether a layer's weight is one that no layer is named in."""
        w = self.model.weights.get(_name(role, il)) if il >= 0 else None
        return w is not None and w.name != w.role

    def has(self, role: str, il: int) -> bool:
        """Whether the model has a weight, cache or state (``memplan.llama.graph.Source``)."""
        return _name(role, il) in self.model.weights or self.memory.has(role, il)

    def leaf(self, role: str, il: int) -> Tensor:
        """A new leaf for a weight, cache or state, in its buffer."""
        name = _name(role, il)
        w = self.model.weights.get(name)
        if w is not None:
            t = new_tensor(w.type, *w.ne, name=w.name)
            t.buffer = self.buffers.weight(name)
        else:
            c = self.memory.tensor(role, il)
            t = new_tensor(c.type, *c.ne, name=c.name)
            t.buffer = self.buffers.cache(c.buft)
        return t

    def _buffer(self, role: str, il: int) -> Buffer:
        name = _name(role, il)
        if name in self.model.weights:
            return self.buffers.weight(name)
        return self.buffers.cache(self.memory.tensor(role, il).buft)


def _name(role: str, il: int) -> str:
    return role if il < 0 else f"blk.{il}.{role}"
