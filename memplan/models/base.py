"""What an architecture is: a file that says which hyper-parameters, weights, memory and graph its models have.

As in llama.cpp an architecture answers ``load_arch_hparams``, ``load_arch_tensors``, its case of ``create_memory`` and
``build_arch_graph``. docs/new-architecture.md goes through one from the first key to exact answers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Protocol

from memplan.garbage import make_room
from memplan.ggml.plan.parts import Buffers, GraphParts, Part, PartBuilder
from memplan.ggml.tensor import FLAG_OUTPUT, Tensor, new_tensor
from memplan.llama.context import FLASH_ATTN, GATED_DELTA_NET, NOTHING_GIVEN, Batch, Fused, GivenOut, Paths, Probe
from memplan.llama.graph import Crossing, GraphContext
from memplan.llama.graph.base import H
from memplan.llama.memory.kv import CacheBuilder, kv_memory

if TYPE_CHECKING:
    from memplan.ggml.backend import Buffer, BufferType
    from memplan.gguf.header import Header, TensorInfo
    from memplan.llama.flags import Flags
    from memplan.llama.keys import Keys
    from memplan.llama.memory.base import Memory
    from memplan.llama.refusals import Refusal
    from memplan.llama.weights import ModelTensor, ModelTensors, Wanted
    from memplan.releases import Release

Cuts = Generator[Crossing, Any, Crossing]
"""A layer that cuts itself: ``h = yield h`` hands on what crosses the cut, and goes on with what comes back."""


class ModelGraph(GraphContext[H]):
    """A graph that is made of a head, layers and a tail, so that like layers need be built only once."""

    def head(self) -> Crossing:
        """Inputs and embeddings: what the first layer reads."""
        raise NotImplementedError

    def layer(self, il: int, *given: Tensor) -> Crossing | Cuts:
        """One layer, from what crossed over to it to what it hands on; a generator may cut it further."""
        raise NotImplementedError

    def tail(self, *given: Tensor) -> Tensor:
        """From the last layer to the logits; by default the last norm and one product."""
        return self.build_output(*given)

    def is_last(self, il: int) -> bool:
        """Whether ``il`` is the last layer that runs, after which only the tokens that are asked for are needed."""
        return il == self.hp.n_layer - 1

    @classmethod
    def layers(cls, hp: H) -> range:
        """The layers that it runs."""
        return range(hp.n_layer)

    def build(self) -> None:
        """The whole graph (``build_arch_graph``, ``llama_model::build_graph``)."""
        given = _many(self.head())
        for il in self.layers(self.hp):
            self.hand_over(il, given)
            given = _many(_through(self.layer(il, *given)))
        self.hand_over(il + 1, given)
        self.end(given)

    def hand_over(self, il: int, given: tuple[Tensor, ...]) -> None:
        """What layer ``il`` is about to read is given out, if a drafter wants it (``t_layer_inp``)."""
        if il in self.given_out.layer_inputs:
            self.give_input(il, given)

    def give_input(self, il: int, given: tuple[Tensor, ...]) -> None:
        """Mark a layer's input as an output."""
        given[0].flags |= FLAG_OUTPUT

    def end(self, given: tuple[Tensor, ...]) -> Tensor:
        """The tail, and what is sampled of it."""
        logits = self.tail(*given)
        if self.given_out.sampled:
            self.build_sampling(logits, self.given_out.sampled)
        return logits


class KVGraph(ModelGraph[H]):
    """A graph whose layers all attend over one cache of keys and values, and hand on nothing but embeddings."""

    def head(self) -> Tensor:
        """Embeddings."""
        cur = self.build_inp_embd()
        self.inp_pos = self.build_inp_pos()
        self.inp_attn = self.build_attn_inp_kv(self.kv_cache())
        self.inp_out_ids = self.build_inp_out_ids()
        return cur


def _many(crossing: Any) -> tuple[Tensor, ...]:
    return crossing if isinstance(crossing, tuple) else (crossing,)


def _through(step: Crossing | Cuts) -> Crossing:
    """What a layer hands on, cut or not."""
    if not isinstance(step, Generator):
        return step
    crossing = next(step)
    try:
        while True:
            crossing = step.send(crossing)
    except StopIteration as stop:
        result: Crossing = stop.value
        return result


class Architecture(ABC, Generic[H]):
    """One architecture. ``name``: as ``general.architecture`` has it.  ``graph``: what builds its graph."""

    name: str
    graph: type[ModelGraph[H]]
    since: int = 0
    """The first build seen that knows it, where the oldest that are followed do not (``LLM_ARCH_NAMES``); of an MTP
    block, that has its graph."""
    paths: tuple[str, ...] = ()
    """Parts that can be fused or not, by the names that ``--path`` takes."""
    graph_followed = True
    """Whether the graph is known, and with it compute buffers."""

    def of_file(self, header: Header) -> Architecture[Any]:
        """The form that a file's models have, where there are several."""
        return self

    def graph_of(self, release: Release) -> type[ModelGraph[H]]:
        """What builds the graph in a release."""
        return self.graph

    @abstractmethod
    def load_hparams(self, k: Keys, release: Release) -> H:
        """The hyper-parameters (``load_arch_hparams``). Raises MissingKey and BadHyperParameter."""

    @abstractmethod
    def tensors(self, hp: H, have: Mapping[str, TensorInfo], load_mtp: bool, release: Release) -> Iterator[Wanted]:
        """The weights that are asked for, in order (``load_arch_tensors``); ``have``: those of the file."""

    def memory(self, hp: H, build: CacheBuilder, release: Release) -> Memory:
        """What a context remembers (``create_memory``)."""
        return kv_memory(build)

    def layer_kind(self, hp: H, il: int) -> Hashable:
        """What tells a layer's graph from others', beside its weights, its cache and its own hyper-parameters."""
        return ()

    def fused(self, release: Release, paths: Paths) -> Fused:
        """The ops of its own that are fused until a probe turns them off."""
        return frozenset()

    def probes(self, release: Release, paths: Paths) -> tuple[Probe, ...]:
        """Those of them that are tried, in llama.cpp's order (``resolve_fused_ops``)."""
        return ()

    @property
    def mtp(self) -> Architecture[Any] | None:
        """What makes the graph of a context that drafts with the model's own MTP block; None where none is modelled."""
        return None

    def layer_inputs(self, hp: H) -> frozenset[int]:
        """Of a block drafter: the target's layers whose inputs it reads (``target_layer_ids``)."""
        return frozenset()

    def one_cache_type(self, hp: H, release: Release) -> bool:
        """Whether K and V caches must have one type (``llama_init_from_model``)."""
        return False

    def check_graph(self, hp: H, memory: Memory, release: Release) -> Refusal | None:
        """Why llama.cpp dies while it builds the first graph; None if it does not."""
        return None

    own_streams = False
    """Whether each slot keeps caches of its own, also where slots are unified."""

    unnamed: Mapping[str, str] = MappingProxyType({})
    """What large inputs without a name are, by what memplan calls them (``explaining/names.py``)."""

    def notes(self, flags: Flags, release: Release) -> tuple[str, ...]:
        """What to know about these settings that is true of this architecture alone."""
        return ()

    def max_nodes(self, n_tokens: int, n_tensors: int) -> int:
        """Nodes that a graph has room for (``llama_context::graph_max_nodes``)."""
        return max(1024, 8 * n_tensors)

    def checkpoint(self, hp: H, memory: Memory, n_ctx_seq: int) -> int:
        """Bytes of one context checkpoint of llama-server: what of the caches cannot be rolled back; 0 for none."""
        return 0

    def asked(self, release: Release) -> bool:
        """Whether a llama.cpp of the release was asked about this architecture, rather than its source read alone."""
        return release.others_asked

    def inexact(
        self, hp: H, flags: Flags, release: Release, cuda: bool, without_ops: Sequence[str], paths: Paths
    ) -> str:
        """Why an answer for these settings is not exact; empty where it is."""
        return ""


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

KEPT_SIZES = 8
"""Batches and contexts whose parts a model remembers."""

KEPT_RESTS = 64
"""Kinds of layers, by batch, whose later stretches a model remembers."""

Built = tuple[list[Part], tuple[Tensor, ...]]
"""A layer's stretches, and what the last of them hands on."""


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
        of_layer: dict[int, list[object]] = {il: [hp.of_layer(il), arch.layer_kind(hp, il)] for il in self.layers}
        for t in tensors.tensors:
            if t.layer in of_layer and t.role.startswith("blk."):
                of_layer[t.layer].append((t.role.split(".", 2)[2], t.type, t.ne))
        numbers: dict[tuple[object, ...], int] = {}
        self.kinds = {il: numbers.setdefault(tuple(kind), len(numbers)) for il, kind in of_layer.items()}
        """A number for each layer, the same for those with like weights."""
        self._parts: dict[tuple[object, ...], tuple[list[Part], list[int], list[Tensor]]] = {}
        self._rests: dict[Hashable, Built] = {}

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
            make_room(self._parts, KEPT_SIZES)
            known = self._parts[key] = self._build_parts(graphs.start(batch, fused), graphs.memory)
        return known

    def _build_parts(self, graph: ModelGraph[H], memory: Memory) -> tuple[list[Part], list[int], list[Tensor]]:
        graph.shares = False
        builder = PartBuilder(graph.graph, graph.roles, graph.fused_nodes, graph.pinned, graph.on_host, graph.shared)
        builder.begin(())
        given = _many(graph.head())
        graph.hand_over(self.layers.start, given)
        parts, layers = [builder.end(given)], [-1]
        built: dict[Hashable, Built] = {}
        for il in self.layers:
            kind = (self.kinds[il], graph.is_last(il), il + 1 in graph.given_out.layer_inputs)
            key = (kind, memory.of_layer(memory_layer(memory, il)), _shapes(given))
            known = built.get(key)
            if known is None:
                known = built[key] = self._build_layer(graph, builder, il, given, kind)
            stretches, given = known
            parts += stretches
            layers += [il] * len(stretches)
        parts.append(builder.end((graph.end(builder.begin(given)),)))
        return parts, [*layers, -1], builder.inputs

    def _build_layer(
        self, graph: ModelGraph[H], builder: PartBuilder, il: int, given: tuple[Tensor, ...], kind: Hashable
    ) -> Built:
        """A layer's stretches, and what the last of them hands on.

        What comes after the first cut is remembered where it knows nothing of the memory: then it is the same for every
        context.
        """
        step = graph.layer(il, *builder.begin(given))
        if not isinstance(step, Generator):
            outs = _many(step)
            graph.hand_over(il + 1, outs)
            return [builder.end(outs)], outs
        crossing = next(step)
        outs = _many(crossing)
        first = builder.end(outs)
        inputs = tuple([t.name for t in builder.inputs])
        key = (kind, graph.batch, graph.fused, graph.release, _shapes(outs), inputs)
        known = self._rests.get(key)
        if known is None:
            known = _build_rest(graph, builder, il, step, crossing, outs)
            roles = {role for part in known[0] for role in part.roles}
            if len(inputs) == len(builder.inputs) and all(_name(role, il) in self.weights for role in roles):
                if len(self._rests) >= KEPT_RESTS:
                    self._rests.clear()
                self._rests[key] = known
        else:
            step.close()
        return [first, *known[0]], known[1]


def _build_rest(
    graph: ModelGraph[Any],
    builder: PartBuilder,
    il: int,
    step: Cuts,
    crossing: Crossing,
    outs: tuple[Tensor, ...],
) -> Built:
    """The stretches after a layer's first cut."""
    stretches = []
    try:
        while True:
            given = builder.begin(outs)
            crossing = step.send(given if isinstance(crossing, tuple) else given[0])
            outs = _many(crossing)
            stretches.append(builder.end(outs))
    except StopIteration as stop:
        outs = _many(stop.value)
        graph.hand_over(il + 1, outs)
        return [*stretches, builder.end(outs)], outs


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
