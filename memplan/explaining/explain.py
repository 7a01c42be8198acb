"""What is alive when a device's compute buffer peaks, and where everything else lies.

The prompt graph is built whole and packed by the readable planner (``memplan.ggml.sched``, ``memplan.ggml.gallocr``)
with an observer, so each byte of a compute buffer has a tensor's name or is known to be lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from memplan.backends.devices import Rig
from memplan.estimator import answer
from memplan.explaining.names import UNNAMED, base_name, layers, own_layer, purposes, source_name
from memplan.explaining.record import Life, Recorder
from memplan.explaining.result import (
    ComputeBuffer,
    Explanation,
    Gap,
    Group,
    Peak,
    Placed,
    Resident,
    SplitInput,
    SplitUse,
)
from memplan.ggml.backend import BufferType
from memplan.ggml.sched import Sched
from memplan.ggml.tensor import Shape, Tensor, new_tensor
from memplan.gguf.header import Header
from memplan.gguf.types import GGMLType
from memplan.llama.context import AS_RELEASED, Paths
from memplan.llama.flags import Flags
from memplan.llama.memory.base import Memory
from memplan.llama.placement import Placement
from memplan.llama.weights import ModelTensor
from memplan.question import Question
from memplan.releases import Release

LARGEST = 1000
"""How many of the graph's largest tensors an explanation keeps."""


def explain(
    header: Header,
    flags: Flags,
    rig: Rig,
    release: str | Release = "latest",
    without_ops: Iterable[str] = (),
    paths: Paths = AS_RELEASED,
    draft: Header | None = None,
) -> Explanation:
    """Where an estimate's bytes come from, tensor by tensor.

    For each device: the tensors that are alive when its compute buffer peaks, whose bytes and gaps add up to the buffer
    exactly. Also the graph's splits with what is copied in for them, and where each weight and cache lies.

    Args:
        header: the model, from ``read_model``.  flags: from ``parse_flags``.  rig: the GPUs.
        release: the llama.cpp to follow: a tag, a build, or "latest".
        without_ops: ops that every GPU is made to refuse, by ggml's names.
        paths: fused ops that are asked for or ruled out.
        draft: the model that drafts, whose own context is left out: what it changes of the main one's is in it.
    Raises:
        ModelError, FlagError, UnknownRelease: what cannot be answered, in one line.
    """
    return explained(Question.of(header, flags, rig, release, without_ops, paths, draft))


def explained(question: Question) -> Explanation:
    """The same of a question."""
    answered = answer(question)
    estimate, made = answered.estimate, answered.made
    if made is None:
        return Explanation(estimate)
    context = made.context
    sched = context.sched
    batch = context.params.prompt_batch
    built = context.graphs.whole(batch, context.fused)
    graph = built.graph
    inputs = purposes(graph.nodes)  # before the scheduler puts copies in their place
    recorder = Recorder(graph, sched.bufts)
    sizes = context.measure(built, batch, recorder)
    lives = recorder.finish()
    of_layer = layers(graph.nodes)
    of_layer.update({leaf: layer for leaf, (_, layer) in inputs.items()})
    source_of = {
        copy: src for split in sched.splits for src in split.inputs for copy in sched.copies(src, split.backend)
    }
    nameless = {leaf.name: leaf for leaf in inputs}  # the host's copies of inputs are no split's
    copied = [source_of.get(life.tensor) or nameless.get(source_name(life.tensor.name)) for life in lives]
    bases: dict[Tensor, str] = {}
    placed = [_placed(life, of_layer, of, bases, inputs) for life, of in zip(lives, copied, strict=True)]
    buffers = []
    for space, buft in enumerate(sched.bufts):
        if sched.bufts.index(buft) == space:
            here = [(life, p) for life, p in zip(lives, placed, strict=True) if life.space == space]
            device = sched.backends[space].name
            tensors = tuple(p for _, p in here)
            buffers.append(ComputeBuffer(device, buft.name, sizes[space], tuple(_peaks(here)), tensors))
    return Explanation(
        estimate,
        buffers=tuple(buffers),
        splits=tuple(_splits(sched)),
        largest=tuple(sorted(placed, key=_size, reverse=True)[:LARGEST]),
        residents=(*_weights(answered.model.tensors.tensors, made.placement), *_caches(made.memory)),
        meanings=answered.model.arch.unnamed,
    )


def _placed(
    life: Life,
    of_layer: dict[Tensor, int | None],
    copied: Tensor | None,
    bases: dict[Tensor, str],
    inputs: dict[Tensor, tuple[str, int | None]],
) -> Placed:
    """One stay.  ``copied``: what the tensor is a copy of.  ``bases``: of all stays before; this one's is added.

    ``inputs``: what ``purposes`` says.
    """
    t = life.tensor
    took = life.took
    meant = copied or t
    if copied is not None:
        base = f"copy of {base_name(copied, inputs)}"
    elif took is not None and UNNAMED.match(t.name):
        base = bases[took]
    else:
        base = base_name(t, inputs)
    bases[t] = base
    return Placed(
        name=t.name,
        base=base,
        op=t.kind or t.op,
        type=t.type.name,
        shape=t.ne,
        layer=of_layer[meant] if meant in of_layer else own_layer(meant.name),
        bytes=life.size,
        chunk=life.chunk,
        offset=life.offset,
        first=life.first,
        last=life.last,
        in_place_of="" if took is None else took.name,
    )


def _size(p: Placed | Gap | Group) -> int:
    return p.bytes


def _peaks(here: Sequence[tuple[Life, Placed]]) -> Iterator[Peak]:
    """The peak of each chunk, chunks in order."""
    for chunk in sorted({life.chunk for life, _ in here}):
        of_chunk = [(life, p) for life, p in here if life.chunk == chunk]
        size = max(life.offset + life.size for life, _ in of_chunk)
        highest, tensor = next((life, p) for life, p in of_chunk if life.offset + life.size == size)
        live = [p for life, p in of_chunk if life.start <= highest.start < life.end]
        before = [(life.end, p) for life, p in of_chunk if life.end <= highest.start]
        yield Peak(
            chunk=chunk,
            bytes=size,
            node=highest.first,
            tensor=tensor,
            live=tuple(sorted(live, key=_size, reverse=True)),
            gaps=tuple(sorted(_gaps(live, before), key=_size, reverse=True)),
            groups=tuple(sorted(_groups(live), key=_size, reverse=True)),
        )


def _gaps(live: Sequence[Placed], before: Sequence[tuple[int, Placed]]) -> Iterator[Gap]:
    """What ``live`` leaves free below the highest of it; ``before``: the stays that had ended by then, and when."""
    chunk = live[0].chunk
    end = 0
    for p in sorted(live, key=_offset):
        if p.offset > end:
            yield Gap(chunk, end, p.offset - end, _left_by(end, p.offset, before))
        end = p.offset + p.bytes


def _left_by(start: int, end: int, before: Sequence[tuple[int, Placed]]) -> str:
    """The tensor that last filled most of what lies between two offsets."""

    def filled(stay: tuple[int, Placed]) -> tuple[int, int]:
        p = stay[1]
        return min(end, p.offset + p.bytes) - max(start, p.offset), stay[0]

    last = max(before, key=filled, default=None)
    return "" if last is None or filled(last)[0] <= 0 else last[1].title


def _offset(p: Placed) -> int:
    return p.offset


def _groups(live: Iterable[Placed]) -> Iterator[Group]:
    by_base: dict[str, list[Placed]] = {}
    for p in live:
        by_base.setdefault(p.base, []).append(p)
    for base, members in by_base.items():
        of = sorted({p.layer for p in members if p.layer is not None})
        yield Group(base, sum(p.bytes for p in members), len(members), tuple(of))


def _splits(sched: Sched) -> Iterator[SplitUse]:
    for split in sched.splits:
        inputs = []
        for src in split.inputs:
            copies = sched.copies(src, split.backend)
            weight = src.buffer is not None and src.buffer.weights
            inputs.append(
                SplitInput(
                    name=src.name,
                    type=src.type.name,
                    shape=src.ne,
                    source=src.buffer.buft.name if src.buffer is not None else sched.backends[src.backend].name,
                    bytes=sched.bufts[split.backend].padded_size(copies[0]),
                    copies=len(copies),
                    weight=weight,
                )
            )
        yield SplitUse(sched.backends[split.backend].name, split.start, split.end - 1, tuple(inputs))


def _weights(tensors: Iterable[ModelTensor], placement: Placement) -> Iterator[Resident]:
    sizes: dict[tuple[BufferType, GGMLType, Shape], int] = {}
    for t in tensors:
        buft = placement.tensors[t.role]
        key = (buft, t.type, t.ne)
        if key not in sizes:
            sizes[key] = buft.padded_size(new_tensor(t.type, *t.ne))
        yield Resident("weight", t.name, t.type.name, t.ne, own_layer(t.name), buft.name, sizes[key])


def _caches(memory: Memory) -> Iterator[Resident]:
    for t in memory.tensors:
        tag = t.role.partition("@")[2]
        name = f"{t.name} ({tag})" if tag else t.name
        yield Resident(t.kind, name, t.type.name, t.ne, t.layer, t.buft.name, t.nbytes)
