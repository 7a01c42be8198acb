"""Which op a device's pool grows for, and what its scratch is made of.

The graphs of a prompt's batches are built whole and split by the readable planner, so every op has its tensor's name.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan.estimator import answer
from memplan.explaining.names import base_name, layers, purposes
from memplan.ggml.backend import SCRATCH_OPS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memplan.ggml.backend import Backend
    from memplan.ggml.tensor import Tensor
    from memplan.llama.batch import Batch
    from memplan.llama.context import Context
    from memplan.loaded import Made
    from memplan.question import Question
    from memplan.result import Estimate


@dataclass(frozen=True, slots=True)
class Source:
    """What an op reads."""

    name: str
    type: str
    shape: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class ScratchUse:
    """Ops of one name that hold as much scratch while they are computed, each alone."""

    base: str
    """What they are called, layer left out: ``lid_kq``."""
    op: str
    """ggml's operation: ``MUL_MAT``."""
    layers: tuple[int, ...]
    """The layers they are part of."""
    count: int
    """How many they are."""
    tokens: int
    """Tokens of the batch that is computed."""
    filled: int
    """Tokens that the slot holds with them."""
    sources: tuple[Source, ...]
    """What the first of them reads."""
    bytes: int
    """All pieces together, each rounded up."""
    pieces: tuple[tuple[str, int], ...]
    """What the scratch is for, and bytes."""
    cublas: bool
    """Whether it goes through cuBLAS."""


@dataclass(frozen=True, slots=True)
class RunTimeUse:
    """What one device takes at run time."""

    device: str
    modelled: bool
    """Whether there is a rule for this kind of device; nothing else is known without one."""
    pool: int
    """The most that one op holds at once, in steps of the pool's."""
    workspace: int
    """cuBLAS's, if any product goes through it."""
    ops: tuple[ScratchUse, ...]
    """Ops by name and scratch, the one that decides first."""
    drafts: bool = False
    """Whether this is what the context that drafts takes there beside the model's own."""

    @property
    def bytes(self) -> int:
        """The pool and the workspace."""
        return self.pool + self.workspace


@dataclass(frozen=True, slots=True)
class RunTimeExplanation:
    """Where an estimate's run time comes from; ``devices`` is empty when llama.cpp would not start."""

    estimate: Estimate
    devices: tuple[RunTimeUse, ...] = ()


def explain_run_time(question: Question) -> RunTimeExplanation:
    """What each device takes at run time once the slots hold as much as the question says, op by op."""
    answered = answer(question)
    if answered.made is None:
        return RunTimeExplanation(answered.estimate)
    uses = _uses(answered.made, answered.estimate.filled)
    if answered.draft is not None:
        uses += [replace(use, drafts=True) for use in _uses(answered.draft, answered.estimate.filled) if use.bytes]
    return RunTimeExplanation(answered.estimate, tuple(uses))


def _uses(made: Made, filled: int) -> list[RunTimeUse]:
    """One context's, by device."""
    context, work = made.context, made.work(filled)
    backends = context.devices.backends[:-1]  # the CPU is last
    seen: list[dict[object, list[_Seen]]] = [{} for _ in backends]
    if any(backend.scratching is not None for backend in backends):
        for batch in work.batches:
            _collect(context, batch, seen)
        for p in work.products:
            sources = tuple([_source(s, {}) for s in p.node.src])
            one = _Seen(p.node, base_name(p.node, {}), p.layer if p.layer >= 0 else None, p.batch, sources)
            key = one.base, p.node.op, backends[p.home].scratch(p.node), p.batch
            seen[p.home].setdefault(key, []).append(one)
    return [_use(backend, found, filled) for backend, found in zip(backends, seen, strict=True)]


@dataclass(frozen=True, slots=True)
class _Seen:
    """One op with scratch."""

    tensor: Tensor
    base: str
    layer: int | None
    batch: Batch
    sources: tuple[Source, ...]


def _collect(context: Context, batch: Batch, seen: list[dict[object, list[_Seen]]]) -> None:
    built = context.graphs.whole(batch, context.fused)
    nodes = built.graph.nodes
    inputs, of_layer = purposes(nodes), layers(nodes)  # before the scheduler puts copies in their place
    ops = [
        _Seen(t, base_name(t, inputs), of_layer[t], batch, tuple([_source(s, inputs) for s in t.src]))
        for t in nodes
        if t.op in SCRATCH_OPS
    ]
    context.split(built, batch)
    for one in ops:
        t = one.tensor
        backend = context.devices.backends[t.backend]
        if backend.scratching is not None:
            taken = backend.scratch(t)
            if taken.pieces or taken.cublas:
                seen[t.backend].setdefault((one.base, t.kind or t.op, taken, batch), []).append(one)


def _source(t: Tensor, inputs: Mapping[Tensor, tuple[str, int | None]]) -> Source:
    return Source(base_name(t, inputs), t.type.name, t.ne)


def _use(backend: Backend, found: dict[object, list[_Seen]], filled: int) -> RunTimeUse:
    uses = sorted((_scratch_use(backend, alike, filled) for alike in found.values()), key=lambda use: -use.bytes)
    most, cublas = max((use.bytes for use in uses), default=0), any(use.cublas for use in uses)
    pool = backend.run_time_bytes(most, cublas=False)
    return RunTimeUse(
        backend.name,
        backend.scratching is not None,
        pool,
        backend.run_time_bytes(most, cublas) - pool,
        tuple(uses),
    )


def _scratch_use(backend: Backend, alike: list[_Seen], filled: int) -> ScratchUse:
    first = alike[0]
    t, batch = first.tensor, first.batch
    taken = backend.scratch(t)
    return ScratchUse(
        base=first.base,
        op=t.kind or t.op,
        layers=tuple(sorted({one.layer for one in alike if one.layer is not None})),
        count=len(alike),
        tokens=batch.n_tokens,
        filled=filled if batch.filled is None else batch.filled,
        sources=first.sources,
        bytes=taken.nbytes,
        pieces=taken.pieces,
        cublas=taken.cublas,
    )
