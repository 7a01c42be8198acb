"""A DeepSeek-V4 model's graphs, whole or in parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from memplan.ggml.parts import Part, PartBuilder
from memplan.ggml.quick import GraphParts
from memplan.ggml.quick_cases import Buffers
from memplan.ggml.tensor import Tensor, new_tensor
from memplan.llama.context import (
    AS_RELEASED,
    FLASH_ATTN,
    GATED_DELTA_NET,
    HYPER_CONNECTIONS,
    LIGHTNING_INDEXER,
    Batch,
    Fused,
    Paths,
    Probe,
)
from memplan.models.deepseek4.graph import DeepSeek4Graph
from memplan.releases import Indexer

if TYPE_CHECKING:
    from memplan.ggml.backend import Buffer, BufferType
    from memplan.llama.hparams import HParams
    from memplan.llama.kv_cache import Memory
    from memplan.llama.model_tensors import ModelTensor, ModelTensors
    from memplan.releases import Release


PartBuffers = dict[tuple[tuple[str, ...], int], Buffers]
"""Where the leafs of a part lie, by their roles and the layer that the part stands for."""


class BufferMap(Protocol):
    """Says where weights and caches lie; ``parts``: what was found so far, the same for all graphs of a placement."""

    parts: PartBuffers

    def weight(self, name: str) -> Buffer:
        """A weight's buffer."""

    def cache(self, buft: BufferType) -> Buffer:
        """The buffer of caches and states in memory of this type."""


_EXPERT_ROLES = ("ffn_", "exp_probs_b", "hc_ffn_")

KEPT_SIZES = 8
"""Batches and contexts whose parts a model remembers."""


class DeepSeek4:
    """What stays the same for all estimates of one model: its weights by name, which layers are alike, parts built."""

    def __init__(self, hp: HParams, tensors: ModelTensors) -> None:
        self.hp = hp
        self.weights: Mapping[str, ModelTensor] = tensors.by_name()
        attention: list[list[object]] = [[ratio] for ratio in hp.compress_ratios[: hp.n_layer]]
        experts: list[list[object]] = [
            [il < hp.hash_layer_count, hp.swiglu_clamp_exp[il] > 1e-6, hp.swiglu_clamp_shexp[il] > 1e-6]
            for il in range(hp.n_layer)
        ]
        for t in tensors.tensors:
            if 0 <= t.layer < hp.n_layer:
                role = t.name.split(".", 2)[2]
                half = experts if role.startswith(_EXPERT_ROLES) else attention
                half[t.layer].append((role, t.type, t.ne))
        self.kinds = [(tuple(a), tuple(e)) for a, e in zip(attention, experts, strict=True)]
        """What each layer's attention and its experts are like: halves of one kind have the same tensors."""
        self._parts: dict[tuple[object, ...], tuple[list[Part], list[Tensor]]] = {}
        self._experts: dict[tuple[object, ...], dict[object, Part]] = {}

    def at(self, memory: Memory, buffers: BufferMap, release: Release, paths: Paths = AS_RELEASED) -> DeepSeek4Graphs:
        """The model with its caches, in one placement; ``paths``: which fused ops are asked for or ruled out."""
        return DeepSeek4Graphs(self, memory, buffers, release, paths)

    def parts(self, batch: Batch, fused: Fused, graphs: DeepSeek4Graphs) -> tuple[list[Part], list[Tensor]]:
        """The part at each position (embeddings, two a layer, output) and the inputs; like ones are the same."""
        m = graphs.memory
        type_k = m.raw.k[0].type
        sizes = (m.raw.size, m.csa.size, m.hca.size, m.raw.n_stream, m.csa_state.n_rs_seq)
        key = (batch, fused, sizes, type_k, m.kv_unified, graphs.release)
        known = self._parts.get(key)
        if known is None:
            if len(self._parts) >= KEPT_SIZES:
                del self._parts[next(iter(self._parts))]
            known = self._parts[key] = self._build_parts(batch, fused, graphs)
        return known

    def _build_parts(self, batch: Batch, fused: Fused, graphs: DeepSeek4Graphs) -> tuple[list[Part], list[Tensor]]:
        b = DeepSeek4Graph(self.hp, batch, fused, graphs.memory, graphs.release, graphs.leaf)
        builder = PartBuilder(b.graph, b.roles, b.fused_nodes, b.pinned, b.on_host)
        builder.begin(())
        first = builder.end((b.head(),))
        like = first.tensor(first.out)
        attention: dict[object, Part] = {}
        experts = self._known_experts(batch, fused, graphs.release, builder.inputs)
        parts = [first]
        for il, kinds in enumerate(self.kinds):
            halves = (attention, b.attention_block), (experts, b.feed_forward_block)
            for kind, (known, build) in zip(kinds, halves, strict=True):
                part = known.get(kind)
                if part is None:
                    (given,) = builder.begin((like,))
                    part = known[kind] = builder.end((build(given, il),))
                parts.append(part)
        (given,) = builder.begin((like,))
        parts.append(builder.end((b.output(given),)))
        return parts, builder.inputs

    def _known_experts(self, batch: Batch, fused: Fused, release: Release, inputs: list[Tensor]) -> dict[object, Part]:
        """Experts as they were built for another context, which they know nothing of; they read the head's inputs."""
        key = (batch, fused, release, *[t.name for t in inputs])
        known = self._experts.get(key)
        if known is None:
            if len(self._experts) >= KEPT_SIZES:
                del self._experts[next(iter(self._experts))]
            known = self._experts[key] = {}
        return known


class DeepSeek4Graphs:
    """Builds the graphs of one model in one placement (``memplan.llama.context.Graphs``)."""

    def __init__(
        self, model: DeepSeek4, memory: Memory, buffers: BufferMap, release: Release, paths: Paths = AS_RELEASED
    ) -> None:
        self.model = model
        self.memory = memory
        self.buffers = buffers
        self.release = release
        self.paths = paths

    def start(self, flash_attn: str) -> Fused:
        """What is fused before any probe: what the release has ops for, if not ruled out."""
        release, paths = self.release, self.paths
        hc = release.hyper_connection_ops and paths.hyper_connections != "unfused"
        return Fused(
            flash_attn=flash_attn != "off",
            lid=release.indexer is not Indexer.UNFUSED and paths.indexer != "unfused",
            hc_pre=hc,
            hc_comb=hc,
            hc_post=hc,
        )

    def probes(self, flash_attn: str) -> tuple[Probe, ...]:
        """The fused ops that are tried, in llama.cpp's order."""
        release, paths = self.release, self.paths
        return (
            *((FLASH_ATTN,) if flash_attn == "auto" else ()),
            *(GATED_DELTA_NET if release.gated_delta_net_probe else ()),
            *((LIGHTNING_INDEXER,) if release.indexer_probe and paths.indexer == "auto" else ()),
            *(HYPER_CONNECTIONS if release.hyper_connection_ops and paths.hyper_connections == "auto" else ()),
        )

    def whole(self, batch: Batch, fused: Fused) -> DeepSeek4Graph:
        """Every tensor of the graph."""
        b = DeepSeek4Graph(self.model.hp, batch, fused, self.memory, self.release, self.leaf)
        b.build()
        return b

    def in_parts(self, batch: Batch, fused: Fused) -> GraphParts:
        """The same graph, like layers built once."""
        parts, inputs = self.model.parts(batch, fused, self)
        layers = [-1, *(il for il in range(self.model.hp.n_layer) for _ in ("attention", "experts")), -1]
        buffers = [self.buffers_of(part.roles, il) for part, il in zip(parts, layers, strict=True)]
        return GraphParts(parts, buffers, inputs, layers)

    def buffers_of(self, roles: tuple[str, ...], il: int) -> Buffers:
        """Where the leafs of a part lie when it stands for layer ``il``."""
        known = self.buffers.parts.get((roles, il))
        if known is None:
            known = self.buffers.parts[roles, il] = tuple([self.buffer(role, il) if role else None for role in roles])
        return known

    def leaf(self, role: str, il: int) -> Tensor:
        """A new leaf for a weight, cache or state, in its buffer."""
        if role.startswith(("cache_k", "dsv4_")):
            c = self.memory.tensor(role, il)
            t = new_tensor(c.type, *c.ne, name=c.name)
            t.buffer = self.buffers.cache(c.buft)
        else:
            w = self.model.weights[_name(role, il)]
            t = new_tensor(w.type, *w.ne, name=w.name)
            t.buffer = self.buffers.weight(w.name)
        return t

    def buffer(self, role: str, il: int) -> Buffer:
        """Where a weight, cache or state lies."""
        if role.startswith(("cache_k", "dsv4_")):
            return self.buffers.cache(self.memory.tensor(role, il).buft)
        return self.buffers.weight(_name(role, il))


def _name(role: str, il: int) -> str:
    return role if il < 0 else f"blk.{il}.{role}"
