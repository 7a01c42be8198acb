"""What a context reserves: its sizes, the fused ops it keeps, the graphs it measures.

Follows ``src/llama-context.cpp`` (v0.5.0): the constructor, ``resolve_fused_ops``, ``sched_reserve``,
``graph_reserve``, ``graph_get_cb``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from memplan.ggml.backend import Backend, BufferType
from memplan.ggml.graph import Graph
from memplan.ggml.sched import Sched
from memplan.ggml.tensor import Tensor
from memplan.llama.flags import Flags
from memplan.llama.hparams import HParams


@dataclass(frozen=True, slots=True)
class ContextParams:
    """A context's sizes, in tokens, as its constructor settles them.

    ``n_ctx``: all sequences together.  ``n_ctx_seq``: one sequence.  ``n_outputs_max``: logits a batch may ask for.
    """

    n_ctx: int
    n_ctx_seq: int
    n_batch: int
    n_ubatch: int
    n_seq_max: int
    n_outputs_max: int
    kv_unified: bool

    @staticmethod
    def of(flags: Flags, hp: HParams) -> ContextParams:
        """The sizes for these flags and this model (``llama_context::llama_context``)."""
        n_seq_max = max(1, flags.n_parallel)
        n_ctx = flags.n_ctx or hp.n_ctx_train
        n_batch = min(n_ctx, flags.n_batch) if hp.causal_attn else flags.n_batch
        n_ubatch = min(n_batch, flags.n_ubatch or flags.n_batch)
        n_ctx = _pad(n_ctx, 256)
        n_ctx_seq = n_ctx
        if not flags.kv_unified:
            n_ctx_seq = _pad(n_ctx // n_seq_max, 256)
            n_ctx = n_ctx_seq * n_seq_max
        return ContextParams(
            n_ctx=n_ctx,
            n_ctx_seq=n_ctx_seq,
            n_batch=n_batch,
            n_ubatch=n_ubatch,
            n_seq_max=n_seq_max,
            n_outputs_max=n_batch if flags.app == "cli" else flags.n_outputs_max,
            kv_unified=flags.kv_unified,
        )

    @property
    def n_tokens(self) -> int:
        """Tokens of the worst-case prompt batch."""
        return min(self.n_ctx, self.n_ubatch)


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch a graph is reserved for: ``n_tokens`` over ``n_seqs`` sequences, ``n_outputs`` of them with logits."""

    n_tokens: int
    n_seqs: int
    n_outputs: int

    @staticmethod
    def of(n_tokens: int, n_seqs: int, n_outputs: int) -> Batch:
        """As many tokens for each sequence (``graph_reserve``)."""
        return Batch(_pad(n_tokens, n_seqs), n_seqs, n_outputs)


@dataclass(frozen=True, slots=True)
class Fused:
    """Which ops are computed in one kernel; what is False is built from smaller ops."""

    flash_attn: bool = True
    lid: bool = True
    hc_pre: bool = True
    hc_comb: bool = True
    hc_post: bool = True


class BuiltGraph(Protocol):
    """What an architecture's builder leaves behind; see ``memplan.models.deepseek4``."""

    graph: Graph
    fused_nodes: list[tuple[str, Tensor, int]]
    pinned: list[tuple[Tensor, int]]
    on_host: list[Tensor]


BuildGraph = Callable[[Batch, Fused], BuiltGraph]


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

    ``sizes``: bytes of each backend's compute buffer.  ``nodes``, ``splits``: of the prompt and the generation graph.
    ``fused``: the ops in use.  ``disabled``: names of those that were turned off, in llama.cpp's words.
    """

    sizes: list[int]
    nodes: tuple[int, int]
    splits: tuple[int, int]
    fused: Fused
    disabled: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """A fused op that llama.cpp tries on every layer's device before it relies on it (``llm_fused_op_probe``)."""

    op: str
    field: str
    said: str


FLASH_ATTN = Probe("FLASH_ATTN", "flash_attn", "Flash Attention")
LIGHTNING_INDEXER = Probe("LIGHTNING_INDEXER", "lid", "Lightning Indexer")
HYPER_CONNECTIONS = (
    Probe("DSV4_HC_PRE", "hc_pre", "fused DeepSeek V4 HC pre"),
    Probe("DSV4_HC_COMB", "hc_comb", "fused DeepSeek V4 HC comb"),
    Probe("DSV4_HC_POST", "hc_post", "fused DeepSeek V4 HC post"),
)

SMALL_BATCH = 32
"""Below this many tokens llama.cpp pins norms and last nodes to their layer's device, whatever is offloaded."""


class Context:
    """Replays a context's reservations over ``devices``; ``build`` makes the architecture's graph."""

    def __init__(
        self,
        params: ContextParams,
        devices: Devices,
        build: BuildGraph,
        probes: Sequence[Probe],
        fused: Fused,
        *,
        parallel: bool,
        op_offload: bool,
        offload_kqv: bool,
        max_split_inputs: int | None = None,
    ) -> None:
        self.params = params
        self.devices = devices
        self.build = build
        self.probes = probes
        self.fused = fused
        self.offload_kqv = offload_kqv
        self.sched = Sched(devices.backends, devices.bufts, parallel, op_offload, max_split_inputs)

    def reserve(self) -> Reservation:
        """Probe fused ops, then measure the prompt graph and count the generation graph (``sched_reserve``).

        Only the prompt graph is measured: so does llama.cpp when it plans without allocating.
        """
        p = self.params
        n_seqs = p.n_seq_max
        # a probe's batch is the generation graph's: one token and one output a sequence
        one_each = Batch.of(n_seqs, n_seqs, n_seqs)
        disabled: list[str] = []
        todo = [probe for probe in self.probes if getattr(self.fused, probe.field)]
        while True:
            tg = self.build(one_each, self.fused)
            self._pin(tg, one_each)
            self.sched.split_graph(tg.graph)
            failed = next((probe for probe in todo if self._misplaced(tg, probe)), None)
            if failed is None:
                break
            todo = todo[todo.index(failed) + 1 :]
            disabled.append(failed.said)
            self.fused = replace(self.fused, **{failed.field: False})
        tg_splits = len(self.sched.splits)
        pp = self.build(Batch.of(p.n_tokens, n_seqs, min(p.n_tokens, p.n_outputs_max)), self.fused)
        sizes = self.sched.reserve_size(pp.graph)
        return Reservation(
            sizes=sizes,
            nodes=(len(pp.graph.nodes), len(tg.graph.nodes)),
            splits=(len(self.sched.splits), tg_splits),
            fused=self.fused,
            disabled=tuple(disabled),
        )

    def _pin(self, built: BuiltGraph, batch: Batch) -> None:
        """Assignments made while the graph is built (``graph_get_cb``, ``build_attn_mha``)."""
        d = self.devices
        if batch.n_tokens < SMALL_BATCH or d.full_offload:
            for t, il in built.pinned:
                if il >= 0 and d.backends[d.layer_home[il]].supports_op(t):
                    t.backend = d.layer_home[il]
        if not self.offload_kqv:
            for t in built.on_host:
                t.backend = len(d.backends) - 1

    def _misplaced(self, built: BuiltGraph, probe: Probe) -> bool:
        """Whether a fused node landed on another device than its layer's."""
        return any(
            op == probe.op and t.backend != self.devices.layer_home[il] for op, t, il in built.fused_nodes
        )


def _pad(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
