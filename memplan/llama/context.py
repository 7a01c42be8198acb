"""What a context reserves: its sizes, the fused ops it keeps, the graphs it measures.

Follows ``src/llama-context.cpp`` (v0.5.0): the constructor, ``resolve_fused_ops``, ``sched_reserve``,
``graph_reserve``, ``graph_get_cb``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from memplan.ggml.backend import Backend, BufferType
from memplan.ggml.gallocr import Observer
from memplan.ggml.graph import Graph, check_length, check_size
from memplan.ggml.ops import GGMLAssertError
from memplan.ggml.plan.parts import GraphParts
from memplan.ggml.plan.planner import QuickPlanner
from memplan.ggml.plan.structure import structure_of
from memplan.ggml.sched import Sched, SchedAbortError
from memplan.ggml.tensor import Tensor
from memplan.llama.batch import Batch, ContextParams
from memplan.releases import Release

Fused = frozenset[str]
"""The ops that are computed in one kernel, by their probes' names; others are built from smaller ops."""

Path = Literal["auto", "fused", "unfused"]
"""How an op that can be fused is computed; auto is what the release and the devices do."""


@dataclass(frozen=True, slots=True)
class Paths:
    """The way of each path, by its name: auto for all that are not forced. What is forced is not probed either."""

    forced: tuple[tuple[str, Path], ...] = ()

    def __getitem__(self, name: str) -> Path:
        return dict(self.forced).get(name, "auto")

    def with_(self, name: str, way: Path) -> Paths:
        """The same with one path changed."""
        forced = {**dict(self.forced), name: way}
        return Paths(tuple((name, forced[name]) for name in sorted(forced) if forced[name] != "auto"))


AS_RELEASED = Paths()


class BuiltGraph(Protocol):
    """A whole graph as an architecture builds it; see ``memplan.llama.graph``."""

    graph: Graph
    fused_nodes: list[tuple[str, Tensor, int]]
    pinned: list[tuple[Tensor, int]]
    on_host: list[Tensor]


class Graphs(Protocol):
    """Builds the graphs of one model in one placement; ``max_nodes``: what llama.cpp makes room for."""

    max_nodes: int

    def fused(self, flash_attn: str) -> Fused:
        """The ops that are fused until a probe turns them off."""

    def probes(self, flash_attn: str) -> Sequence[Probe]:
        """The fused ops that are tried, in llama.cpp's order; ``flash_attn`` is ``-fa``."""

    def whole(self, batch: Batch, fused: Fused) -> BuiltGraph:
        """Every tensor of the graph."""

    def in_parts(self, batch: Batch, fused: Fused) -> GraphParts:
        """The same graph, like layers built once."""


@dataclass(frozen=True, slots=True)
class Devices:
    """The scheduler's devices: ``backends`` in order, the CPU last; ``bufts``, their compute buffers' types.

    ``layer_home``: the backend of each layer.  ``full_offload``: every layer and the output are on GPUs.
    """

    backends: list[Backend]
    bufts: list[BufferType]
    layer_home: Sequence[int]
    full_offload: bool


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a context reserves.

    ``bufts``, ``sizes``: type and bytes of each backend's compute buffer.  ``nodes``, ``splits``: of the prompt and the
    generation graph.  ``fused``: the ops in use.  ``disabled``: those that were turned off, in llama.cpp's words.
    """

    bufts: Sequence[BufferType]
    sizes: list[int]
    nodes: tuple[int, int]
    splits: tuple[int, int]
    fused: Fused
    disabled: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """A fused op that llama.cpp tries on every layer's device before it relies on it (``llm_fused_op_probe``).

    ``n_tokens``: tokens a sequence of the graph that is split to find out.
    """

    op: str
    said: str
    n_tokens: int = 1


FLASH_ATTN = Probe("FLASH_ATTN", "Flash Attention")
GATED_DELTA_NET = (
    Probe("GDN_AR", "fused Gated Delta Net (autoregressive)"),
    Probe("GDN_CH", "fused Gated Delta Net (chunked)", n_tokens=16),
)
"""Probes for models of another kind, for which graphs are split all the same."""

LIGHTNING_INDEXER = Probe("LIGHTNING_INDEXER", "Lightning Indexer")
SMALL_BATCH = 32
"""Below this many tokens llama.cpp pins norms and last nodes to their layer's device, whatever is offloaded."""


Planners = dict[tuple[tuple[BufferType, ...], bool, bool], QuickPlanner]
"""Planners by buffer types, pipeline parallelism and offloading of ops."""


class Context:
    """Replays a context's reservations over ``devices``; ``graphs`` builds what is reserved.

    ``flash_attn``: ``-fa`` as the context takes it.  ``settled``: the fused ops of a context that is reserved anew, in
    which nothing is probed again.  ``loaded``: reserve as a load does; else as planning without memory does.
    ``one_sequence``: a load reserves a prompt of one sequence, too.
    ``plain``: make every tensor, where like layers would do.
    ``planners``: those of other contexts on the same devices and release, which know much already; this one joins them.
    """

    def __init__(
        self,
        params: ContextParams,
        devices: Devices,
        graphs: Graphs,
        *,
        flash_attn: str,
        parallel: bool,
        op_offload: bool,
        offload_kqv: bool,
        release: Release,
        settled: Fused | None = None,
        loaded: bool = False,
        one_sequence: bool = False,
        plain: bool = False,
        planners: Planners | None = None,
    ) -> None:
        self.params = params
        self.devices = devices
        self.graphs = graphs
        self.fused = graphs.fused(flash_attn) if settled is None else settled
        self.probes = graphs.probes(flash_attn) if settled is None else ()
        self.offload_kqv = offload_kqv
        self.loaded = loaded
        self.one_sequence = one_sequence
        kept: Planners = {} if planners is None else planners
        key = (tuple(devices.bufts), parallel, op_offload)
        if key not in kept:
            sched = Sched(
                devices.backends,
                devices.bufts,
                parallel,
                op_offload,
                release.split_inputs,
                release.sinks_place_attention,
                release.copies_unread_inputs,
            )
            kept[key] = QuickPlanner(sched)
        self.quick = kept[key]
        self.sched = self.quick.sched
        self.plain = plain or not self.quick.usable
        self.prompt_chunks: list[list[int]] = []
        """Of each backend, bytes of the buffers that the prompt graph's compute buffer is made of, once reserved."""

    def reserve(self) -> Reservation:
        """Probe fused ops, then measure the prompt graph and count the generation graph (``sched_reserve``).

        A load measures both, with norms on their layers' devices. When llama.cpp plans without memory, it measures the
        prompt graph alone, and forgets what it has assigned (``ggml_backend_sched_reserve_size`` resets first).
        """
        quick, plain = (self._quick_split, self._quick_sizes), (self._plain_split, self._plain_sizes)
        ways = [(plain, False), (plain, True)] if self.plain else [(quick, False), (quick, True), (plain, True)]
        started = self.fused
        for (generation, prompt), every_probe in ways[:-1]:
            self.fused = started
            try:
                found = self._reserve(generation, prompt, every_probe)
            except GGMLAssertError:
                if every_probe:
                    raise
                continue
            except SchedAbortError as fault:
                if every_probe and not fault.tensor:
                    raise
                continue  # only the whole graph has every tensor that may be named
            if every_probe or not self.sched.room:
                return found
        self.fused = started
        return self._reserve(*plain, every_probe=True)

    def _reserve(self, split: _Split, measure: _Measure, every_probe: bool) -> Reservation:
        """``every_probe``: split a graph for each probe, as llama.cpp does; without it, like graphs are split once.

        That makes a difference only where a split had to make room: it keeps it for the graphs that follow.
        """
        p = self.params
        n_seqs = p.n_seq_max
        one_each = Batch.of(n_seqs, n_seqs, n_seqs)
        disabled: list[str] = []
        counted: tuple[int, int] | None = None
        misplaced: set[str] = set()
        self.sched.room.clear()
        for probe in self.probes:
            found: set[str] = set()
            if probe.n_tokens > 1:
                n = probe.n_tokens * n_seqs
                if every_probe or probe.op in self.fused:
                    _, _, found = split(Batch.of(n, n_seqs, n))
            else:
                if counted is None or every_probe:
                    # a probe's batch is the generation graph's: one token and one output a sequence
                    tg_nodes, tg_splits, misplaced = split(one_each)
                    counted = tg_nodes, tg_splits
                found = misplaced
            if probe.op in found:
                disabled.append(probe.said)
                self.fused -= {probe.op}
                counted = None
        self.prompt_chunks, pp_nodes, pp_splits = measure(p.prompt_batch)
        sizes = list(map(sum, self.prompt_chunks))
        if counted is None or every_probe:
            tg_nodes, tg_splits, _ = split(one_each)
            counted = tg_nodes, tg_splits
        if self.loaded:
            prompt = p.prompt_batch
            others = (one_each, Batch(prompt.n_tokens, 1, prompt.n_outputs)) if self.one_sequence else (one_each,)
            sizes = [max(same) for same in zip(sizes, *(map(sum, measure(batch)[0]) for batch in others), strict=True)]
        return Reservation(
            bufts=self.devices.bufts,
            sizes=sizes,
            nodes=(pp_nodes, counted[0]),
            splits=(pp_splits, counted[1]),
            fused=self.fused,
            disabled=tuple(disabled),
        )

    def pins_nodes(self, batch: Batch) -> bool:
        """Whether norms and last nodes are assigned while the graph is built (``graph_get_cb``)."""
        return batch.n_tokens < SMALL_BATCH or self.devices.full_offload

    def _in_parts(self, batch: Batch) -> GraphParts:
        graph = self.graphs.in_parts(batch, self.fused)
        check_length(self.graphs.max_nodes, graph.n_nodes)
        structure = structure_of(graph)
        check_size(self.graphs.max_nodes, len(structure.order), structure.n_leafs, structure.n_given)
        return graph

    def _whole(self, batch: Batch) -> BuiltGraph:
        built = self.graphs.whole(batch, self.fused)
        leafs = built.graph.leafs
        given = sum(leaf.buffer is not None for leaf in leafs)
        check_size(self.graphs.max_nodes, len(built.graph.nodes), len(leafs), given)
        return built

    def _quick_split(self, batch: Batch) -> tuple[int, int, set[str]]:
        layer_home = self.devices.layer_home
        graph = self._in_parts(batch)
        schedule = self.quick.schedule(graph, layer_home, self.pins_nodes(batch), not self.offload_kqv)
        misplaced = {
            op
            for at, (part, layer) in enumerate(zip(graph.parts, graph.layers, strict=True))
            for op, node, il in part.fused
            if schedule.homes_of(at)[node] != layer_home[il if layer < 0 else layer]
        }
        return schedule.n_nodes, len(schedule.splits), misplaced

    def _quick_sizes(self, batch: Batch) -> tuple[list[list[int]], int, int]:
        graph = self._in_parts(batch)
        pins = self.loaded and self.pins_nodes(batch), self.loaded and not self.offload_kqv
        schedule = self.quick.schedule(graph, self.devices.layer_home, *pins)
        return self.quick.sizes(graph, schedule), schedule.n_nodes, len(schedule.splits)

    def plain_split(self, batch: Batch) -> BuiltGraph:
        """The whole graph, with a device for each node."""
        built = self._whole(batch)
        self.split(built, batch)
        return built

    def split(self, built: BuiltGraph, batch: Batch) -> None:
        """Give each node of a whole graph its device."""
        self._assign(built, batch)
        self.sched.split_graph(built.graph)

    def measure(self, built: BuiltGraph, batch: Batch, observer: Observer | None = None) -> list[int]:
        """Bytes of each backend's compute buffer for a whole graph; ``observer`` is the allocator's."""
        if not self.loaded:
            return self.sched.reserve_size(built.graph, observer)
        self._assign(built, batch)
        return self.sched.reserve(built.graph, observer)

    def _assign(self, built: BuiltGraph, batch: Batch) -> None:
        d = self.devices
        if self.pins_nodes(batch):
            for t, il in built.pinned:
                if il >= 0 and d.backends[d.layer_home[il]].supports_op(t):
                    t.backend = d.layer_home[il]
        if not self.offload_kqv:
            for t in built.on_host:
                t.backend = len(d.backends) - 1

    def _plain_split(self, batch: Batch) -> tuple[int, int, set[str]]:
        built, d = self.plain_split(batch), self.devices
        misplaced = {op for op, t, il in built.fused_nodes if t.backend != d.layer_home[il]}
        return len(built.graph.nodes), len(self.sched.splits), misplaced

    def _plain_sizes(self, batch: Batch) -> tuple[list[list[int]], int, int]:
        built = self._whole(batch)
        self.measure(built, batch)
        chunks = [talloc.filled for talloc in self.sched.allocator.tallocs]
        return chunks, len(built.graph.nodes), len(self.sched.splits)


_Split = Callable[[Batch], tuple[int, int, set[str]]]
"""Nodes, splits, and fused ops that landed on another device than their layer's."""

_Measure = Callable[[Batch], tuple[list[list[int]], int, int]]
"""Bytes of each chunk of each backend's buffer, nodes, splits."""
