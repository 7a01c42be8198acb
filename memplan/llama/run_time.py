"""What kernels take at run time: the batches that a prompt is cut into, and the scratch that their graphs need.

Follows ``llama_batch_allocr::split_equal`` and ``llama_context::decode`` (src/llama-batch.cpp, src/llama-context.cpp,
v0.5.0): llama-server fills one slot after another, in batches of ``n_batch`` that are cut into ubatches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.ggml.backend import SCRATCH_OPS
from memplan.ggml.ops import GGMLAssertError
from memplan.ggml.sched import SchedAbortError
from memplan.llama.batch import Batch, ContextParams
from memplan.llama.context import Context

if TYPE_CHECKING:
    from memplan.ggml.plan.parts import Part
    from memplan.ggml.tensor import Tensor


@dataclass(slots=True)
class DeviceScratch:
    """The scratch of one device: the most that one op holds at once, and whether any goes through cuBLAS."""

    most: int = 0
    cublas: bool = False

    def add(self, nbytes: int, cublas: bool) -> None:
        """Count one op's."""
        self.cublas = self.cublas or cublas
        self.most = max(self.most, nbytes)


@dataclass(frozen=True, slots=True)
class Product:
    """A product whose graph is not built: its node, its backend by number, its layer, and the batch."""

    node: Tensor
    home: int
    layer: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class Work:
    """What a context computes until its slots are full."""

    batches: tuple[Batch, ...]
    products: tuple[Product, ...] = ()


def measure(context: Context, work: Work) -> list[DeviceScratch]:
    """What this work takes of each of the context's backends at run time; its reserve comes first."""
    found = [DeviceScratch() for _ in context.devices.backends]
    for batch in work.batches:
        if context.plain or not _of_parts(context, batch, found):
            _of_graph(context, batch, found)
    for p in work.products:
        taken = context.devices.backends[p.home].scratch(p.node)
        found[p.home].add(taken.nbytes, taken.cublas)
    return found


def run_time(context: Context, work: Work) -> dict[str, int | None]:
    """Bytes that kernels take on each device for some work; None: not modelled.

    A device's pool, and cuBLAS's workspace once a product goes through it. ``context`` has been reserved.
    """
    taken: dict[str, int | None] = {}
    devices = context.devices.backends[:-1]  # the CPU is last
    work = work if any(b.scratching is not None for b in devices) else Work(())
    for backend, scratch in zip(devices, measure(context, work), strict=False):
        known = backend.scratching is not None
        taken[backend.name] = backend.run_time_bytes(scratch.most, scratch.cublas) if known else None
    return taken


def _of_parts(context: Context, batch: Batch, found: list[DeviceScratch]) -> bool:
    """Whether the graph could be taken in parts."""
    backends, layer_home = context.devices.backends, context.devices.layer_home
    try:
        graph = context.graphs.in_parts(batch, context.fused)
        schedule = context.quick.schedule(graph, layer_home, context.pins_nodes(batch), not context.offload_kqv)
    except (GGMLAssertError, NotImplementedError, SchedAbortError):
        return False
    seen: set[tuple[Part, bytes]] = set()
    for at, part in enumerate(graph.parts):
        homes = schedule.homes_of(at)
        if (part, homes) in seen:
            continue  # many layers are alike
        seen.add((part, homes))
        for home, backend in enumerate(backends):
            if backend.scratching is not None and home in homes:
                for node, nbytes, cublas in part.scratch(backend):
                    if homes[node] == home:
                        found[home].add(nbytes, cublas)
    return True


def _of_graph(context: Context, batch: Batch, found: list[DeviceScratch]) -> None:
    for t in context.plain_split(batch).graph.nodes:
        backend = context.devices.backends[t.backend]
        if t.op in SCRATCH_OPS and backend.scratching is not None:
            taken = backend.scratch(t)
            found[t.backend].add(taken.nbytes, taken.cublas)


def prompt_batches(params: ContextParams, filled: int) -> tuple[Batch, ...]:
    """The ubatches of a prompt of ``filled`` tokens in the last slot: each size where the caches are fullest.

    The other slots hold as much already. A full context of one slot is what its reserve was made for.
    """
    filled = min(filled, params.n_ctx_seq)
    even = filled % params.n_ubatch == params.n_batch % params.n_ubatch == 0
    if filled == params.n_ctx and even and params.n_outputs_max == 1:
        return (params.prompt_batch,)
    others = min(filled * (params.n_seq_max - 1), params.n_ctx - filled)
    ends: dict[int, int] = {}
    whole = filled // params.n_batch * params.n_batch
    for start, stop in ((whole - params.n_batch, whole), (whole, filled)):
        rest = (stop - max(0, start)) % params.n_ubatch
        if stop - rest > max(0, start):
            ends[params.n_ubatch] = stop - rest
        if rest:
            ends[rest] = stop
    return tuple([Batch(size, 1, 1, end, others) for size, end in ends.items()])
