"""Which backend computes each node, where the graph is split, what is copied between splits.

Follows ``ggml_backend_sched_split_graph`` and ``ggml_backend_sched_reserve_size``
(ggml/src/ggml-backend.cpp, v0.5.0).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from memplan.ggml.backend import Backend, Buffer, BufferType
from memplan.ggml.gallocr import Gallocr, Observer
from memplan.ggml.graph import Graph
from memplan.ggml.tensor import FLAG_INPUT, FLAG_OUTPUT, VIEW_OPS, Tensor, same_layout
from memplan.releases import SplitInputs

MAX_SPLIT_INPUTS = 30
"""Inputs that a split has room for at first (``GGML_SCHED_MAX_SPLIT_INPUTS``)."""

_LIMIT = "GGML_SCHED_MAX_SPLIT_INPUTS"

MAX_COPIES = 4
"""Copies of split inputs that pipeline parallelism keeps (``GGML_SCHED_MAX_COPIES``)."""


class SchedAbortError(Exception):
    """A graph that ggml's scheduler aborts on; the message is ggml's own. ``tensor``: the one that it names, if any."""

    def __init__(self, said: str, tensor: str = "") -> None:
        super().__init__(said)
        self.tensor = tensor


@dataclass(slots=True)
class Split:
    """A run of nodes on one backend; ``inputs`` are copied there first. ``nodes`` lists the graph's own nodes."""

    backend: int
    start: int
    end: int = 0
    inputs: list[Tensor] = field(default_factory=list)
    nodes: list[Tensor] = field(default_factory=list)


class Sched:
    """The scheduler over ``backends`` in order of priority; the last one is the CPU.

    Args:
        backends: the devices.  bufts: the type of each one's compute buffer.
        parallel: pipeline parallelism, four copies of each split input.
        op_offload: whether devices may ask for ops whose weights lie on the host.
        split_inputs: how many inputs a split may have.
        sinks_place_attention: whether flash attention runs where its sinks lie, as other ops do with their weights.
        copies_unread_inputs: whether pipeline parallelism keeps copies of inputs that no computed node reads, too.
    """

    def __init__(
        self,
        backends: list[Backend],
        bufts: list[BufferType],
        parallel: bool,
        op_offload: bool,
        split_inputs: SplitInputs = SplitInputs.ANY,
        sinks_place_attention: bool = False,
        copies_unread_inputs: bool = False,
    ) -> None:
        self.backends = backends
        self.bufts = bufts
        self.n_copies = MAX_COPIES if parallel else 1
        self.op_offload = op_offload
        self.split_inputs = split_inputs
        self.room: dict[int, int] = {}  # of splits that had to have room for more, by number
        self.copies_unread_inputs = copies_unread_inputs
        self.not_by_weights = ("ROPE",) if sinks_place_attention else ("ROPE", "FLASH_ATTN_EXT")
        self.splits: list[Split] = []
        self._copies: dict[tuple[int, int], list[Tensor]] = {}
        self._graph_inputs: list[Tensor] = []
        self.reads = [[b.supports_buft(t) for t in bufts] for b in backends]

    def reserve_size(self, graph: Graph, observer: Observer | None = None) -> list[int]:
        """Bytes of each backend's compute buffer for ``graph`` (``ggml_backend_sched_reserve_size``).

        Assignments made before are dropped, as llama.cpp's reset drops them. ``observer`` is the allocator's.
        """
        for t in (*graph.leafs, *graph.nodes):
            t.backend = -1
        return self.reserve(graph, observer)

    def reserve(self, graph: Graph, observer: Observer | None = None) -> list[int]:
        """The same with what was assigned while the graph was built (``ggml_backend_sched_reserve``)."""
        self.split_graph(graph)
        nodes, leafs, node_homes, leaf_homes = self._graph_copy(graph)
        self.allocator = Gallocr(self.bufts, observer)
        return self.allocator.reserve(nodes, leafs, node_homes, leaf_homes)

    def split_graph(self, graph: Graph) -> None:
        """Assign every tensor to a backend and cut the graph into ``splits``; sources are replaced by copies."""
        self._copies = {}
        self._graph_inputs = []
        nodes = graph.nodes
        for t in graph.leafs:
            if t.backend < 0:
                t.backend = self.from_location(t)
        for t in nodes:
            if t.backend < 0:
                t.backend = self.from_location(t)
        computed = [t for t in nodes if t.op not in VIEW_OPS]
        cpu = len(self.backends) - 1
        self._expand(computed, cpu)
        computed.reverse()
        self._expand(computed, cpu)
        computed.reverse()
        self._expand(computed, -1)
        computed.reverse()
        self._expand(computed, -1)
        computed.reverse()
        self._upgrade(computed)
        self._assign_rest(nodes)
        self._split(nodes, computed)
        if self.copies_unread_inputs and self.n_copies > 1:
            for t in graph.leafs:
                if t.flags & FLAG_INPUT:
                    self._keep_input(t)

    # --- pass 1 -------------------------------------------------------------------------------------------------------

    def _from_buffer(self, t: Tensor, op: Tensor) -> int:
        base = t.view_src or t
        if base.buffer is None:
            return -1
        buft = base.buffer.buft
        for i, b in enumerate(self.backends):
            if b.supports_buft(buft) and b.supports_op(op):
                return i
        return -1

    def from_location(self, t: Tensor) -> int:
        """The backend that a tensor's own place, or its weight's, speaks for (``backend_id_from_cur``)."""
        base = t.view_src or t
        if base.buffer is not None:
            i = self._from_buffer(t, t)
            if i < 0:
                raise SchedAbortError(
                    f"pre-allocated tensor ({t.name}) in a buffer ({base.buffer.buft.name}) "
                    f"that cannot run the operation ({t.op})",
                    t.name,
                )
            return i
        if t.flags & FLAG_INPUT:
            return len(self.backends) - 1
        if t.op not in self.not_by_weights:
            for src in t.src:
                if src.buffer is not None and src.buffer.weights:
                    return self._from_weight(t, src, src.buffer)
        return -1

    def _from_weight(self, t: Tensor, src: Tensor, buffer: Buffer) -> int:
        i = self._from_buffer(src, t)
        if self.op_offload and i == len(self.backends) - 1 and buffer.buft.is_host:
            for b, backend in enumerate(self.backends[:-1]):
                if backend.offload_op(t) and backend.supports_op(t):
                    return b
        return i

    # --- passes 2 to 4 ------------------------------------------------------------------------------------------------

    def _expand(self, nodes: list[Tensor], skip: int) -> None:
        """Give unassigned nodes the backend of the node before, but never the backend ``skip``."""
        current = -1
        for t in nodes:
            if t.backend >= 0:
                current = -1 if t.backend == skip else t.backend
            elif current >= 0 and self.backends[current].supports_op(t):
                t.backend = current

    def _readable(self, t: Tensor, backend: int) -> bool:
        base = t.view_src or t
        if base.buffer is not None:
            return self.backends[backend].supports_buft(base.buffer.buft)
        home = t.backend
        if home < 0 and t.view_src is not None:
            home = t.view_src.backend
        return home >= 0 and self.reads[backend][home]

    def _upgrade(self, nodes: list[Tensor]) -> None:
        for t in nodes:
            if t.backend < 0:
                best = -1
                for b, backend in enumerate(self.backends):
                    if backend.supports_op(t):
                        n = sum(1 for s in t.src if self._placed(s) and self._readable(s, b))
                        if n > best:
                            best = n
                            t.backend = b
            else:
                buft = self.bufts[t.backend]
                for b in range(t.backend):
                    same = self.bufts[b] is buft and self.backends[b].supports_op(t)
                    if same and all(self._readable(s, b) for s in t.src):
                        t.backend = b
                        break

    @staticmethod
    def _placed(t: Tensor) -> bool:
        return t.backend >= 0 or (t.view_src is not None and t.view_src.backend >= 0)

    def _assign_rest(self, nodes: list[Tensor]) -> None:
        for t in nodes:
            if t.backend < 0 and t.view_src is not None:
                t.backend = t.view_src.backend
            for s in t.src:
                if s.backend < 0:
                    s.backend = t.backend if s.view_src is None else s.view_src.backend
            if t.backend < 0:
                t.backend = next((b for b, x in enumerate(self.backends) if x.supports_op(t)), -1)
            if t.backend < 0:
                raise SchedAbortError("GGML_ASSERT(*cur_backend_id != -1) failed")

    # --- pass 5 -------------------------------------------------------------------------------------------------------

    def _split(self, nodes: list[Tensor], computed: list[Tensor]) -> None:
        index = {id(t): i for i, t in enumerate(nodes)} if computed else {}
        current = computed[0].backend if computed else len(self.backends) - 1
        split = Split(current, 0)
        self.splits = [split]
        for t in computed:
            backend = t.backend
            full = self.is_full(len(self.splits) - 1, len(split.inputs))
            if (
                backend != current
                or (split.inputs and self._brings_weight(t, current))
                or (full and self._needs_copy(t, current))
            ):
                split.end = index[id(t)]
                split = Split(backend, split.end)
                self.splits.append(split)
                current = backend
            for j, s in enumerate(t.src):
                if self.n_copies > 1 and s.flags & FLAG_INPUT:
                    self._keep_input(s)
                if s.backend != current and not self._readable(s, current):
                    t.src[j] = self._copy(s, split)
        split.end = len(nodes)

    def is_full(self, split: int, n_inputs: int) -> bool:
        """Whether a split, by its number, takes no more inputs, so that a node that needs one starts the next."""
        if self.split_inputs is SplitInputs.ANY or n_inputs < MAX_SPLIT_INPUTS:
            return False
        return n_inputs >= self.room.get(split, MAX_SPLIT_INPUTS)

    def make_room(self, split: int, n_inputs: int) -> None:
        """A split, by its number, got one more input, ``n_inputs`` in all; aborts where llama.cpp does."""
        if self.split_inputs is SplitInputs.ANY or n_inputs <= MAX_SPLIT_INPUTS:
            return
        if self.split_inputs is SplitInputs.AT_MOST_30:
            raise SchedAbortError(f"GGML_ASSERT(n_inputs < {_LIMIT})")
        room = self.room.get(split, MAX_SPLIT_INPUTS)
        self.room[split] = 2 * room if n_inputs > room else room

    def check_graph_inputs(self, n_inputs: int) -> None:
        """Inputs of the graph that pipelining keeps copies of are limited as well; aborts where llama.cpp does."""
        if self.split_inputs is SplitInputs.AT_MOST_30 and n_inputs > MAX_SPLIT_INPUTS:
            raise SchedAbortError(f"GGML_ASSERT(n_graph_inputs < {_LIMIT})")

    def _brings_weight(self, t: Tensor, backend: int) -> bool:
        """Whether a weight must be copied in: a new split lets the memory of earlier ones be used again."""
        return any(
            s.buffer is not None and s.buffer.weights and s.backend != backend and not self._readable(s, backend)
            for s in t.src
        )

    def _needs_copy(self, t: Tensor, backend: int) -> bool:
        """Whether a source must be copied that no split before has copied."""
        return any(
            s.backend != backend and (id(s), backend) not in self._copies and not self._readable(s, backend)
            for s in t.src
        )

    def _keep_input(self, src: Tensor) -> None:
        key = (id(src), src.backend)
        if key not in self._copies:
            name = self.backends[src.backend].name
            copies = [src] + [same_layout(src, f"{name}#{src.name}#{c}") for c in range(1, self.n_copies)]
            for c in copies:
                c.flags |= FLAG_INPUT | FLAG_OUTPUT
            self._copies[key] = copies
            self._graph_inputs.append(src)
            self.check_graph_inputs(len(self._graph_inputs))

    def _copy(self, src: Tensor, split: Split) -> Tensor:
        key = (id(src), split.backend)
        copies = self._copies.get(key)
        if copies is None:
            name = self.backends[split.backend].name
            copies = [same_layout(src, f"{name}#{src.name}#{c}") for c in range(self.n_copies)]
            if self.n_copies > 1:
                for c in copies:
                    c.flags |= FLAG_INPUT | FLAG_OUTPUT
            self._copies[key] = copies
            split.inputs.append(src)
            self.make_room(len(self.splits) - 1, len(split.inputs))
        return copies[0]

    def copies(self, src: Tensor, backend: int) -> list[Tensor]:
        """What the last ``split_graph`` keeps of a split's input on ``backend``: one copy, or four."""
        return self._copies[id(src), backend]

    # --- the graph that is allocated ----------------------------------------------------------------------------------

    def _graph_copy(self, graph: Graph) -> tuple[list[Tensor], list[Tensor], list[int], list[int]]:
        """Nodes and leafs with each one's backend, the splits' inputs and the backends' dependencies among them."""
        nodes: list[Tensor] = []
        homes: list[int] = []
        leafs: list[Tensor] = []
        leaf_homes: list[int] = []
        keep: dict[int, list[Tensor]] = {}
        for split in self.splits:
            after = graph.nodes[split.end] if split.end < len(graph.nodes) else None
            nodes_of = graph.nodes[split.start : split.end]
            split.nodes, deps = self.backends[split.backend].graph_optimize(nodes_of, after)
            graph.nodes[split.start : split.end] = split.nodes
            for tensor, until in deps:
                kept = keep.setdefault(id(until), [])
                if tensor not in kept:
                    kept.append(tensor)
        for split in self.splits:
            for src in split.inputs:
                dep = Tensor("NONE", src.type, src.ne, src.nb, [src], src.view_src or src)
                nodes += (dep, self._copies[id(src), split.backend][0])
                homes += (src.backend, split.backend)
            for t in split.nodes:
                nodes.append(t)
                homes.append(t.backend)
                if keep and (kept := keep.get(id(t), [])):
                    for i in range(0, len(kept), 10):  # GGML_MAX_SRC
                        nodes.append(Tensor("NONE", t.type, t.ne, t.nb, kept[i : i + 10], kept[i].view_src or kept[i]))
                        homes.append(split.backend)
        if self.n_copies > 1:
            for src in self._graph_inputs:
                copies = self._copies[id(src), src.backend]
                leafs += copies
                leaf_homes += [src.backend] * len(copies)
            for split in self.splits:
                for src in split.inputs:
                    leafs += self._copies[id(src), split.backend]
                    leaf_homes += [split.backend] * self.n_copies
        leafs += graph.leafs
        leaf_homes += [t.backend for t in graph.leafs]
        return nodes, leafs, homes, leaf_homes
