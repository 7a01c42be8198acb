"""DeepSeek-V3.2: latent attention over the keys that a lightning indexer chooses, which has a cache of its own.

Follows src/models/deepseek32.cpp, src/llama-kv-cache-dsa.cpp and src/llama-graph.cpp (``build_attn_inp_k_dsa``), v0.5.0
and b9842.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from memplan.ggml import ops
from memplan.gguf.types import F16, F32, I64
from memplan.llama.context import LIGHTNING_INDEXER
from memplan.llama.graph.base import NEOX, Crossing
from memplan.llama.graph.indexer import SparseIndexer
from memplan.llama.memory.base import Memory
from memplan.llama.memory.kv import rotation_rows
from memplan.llama.refusals import Refusal, died
from memplan.llama.weights import Have, Wanted
from memplan.models.base import Architecture, Cuts, ModelGraph
from memplan.models.deepseek2 import (
    LatentGraph,
    LatentHParams,
    LatentMTPGraph,
    experts,
    latent_attention,
    latent_fields,
    latent_memory,
)
from memplan.models.mtp import MTPBlock, drafting_block
from memplan.releases import Indexer

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.llama.context import Fused, Paths, Probe
    from memplan.llama.keys import Keys
    from memplan.llama.memory.kv import CacheBuilder
    from memplan.releases import Release


CHOOSING_SINCE = 10248
"""The first build seen whose indexer has keys in the layers alone that choose (create_memory: filter_lid)."""


@dataclass(frozen=True, kw_only=True)
class SparseHParams(LatentHParams):
    """``indexer_full``: which layers choose keys; the others take those of the last one that did."""

    indexer_n_head: int
    indexer_head_size: int
    indexer_top_k: int
    indexer_full: tuple[bool, ...]


def sparse_fields(k: Keys, release: Release) -> dict[str, Any]:
    """The fields of ``SparseHParams`` by name, with every layer choosing its keys."""
    fields = latent_fields(k, release)
    k.u32_a_layer("rope.dimension_sections", 4, 0)
    return fields | {
        "n_lora_q": k.u32("attention.q_lora_rank"),
        "indexer_n_head": k.u32("attention.indexer.head_count"),
        "indexer_head_size": k.u32("attention.indexer.key_length"),
        "indexer_top_k": k.u32("attention.indexer.top_k"),
        "indexer_full": (True,) * fields["n_layer_all"],
    }


class SparseGraph(LatentGraph[SparseHParams], SparseIndexer[SparseHParams]):
    """``llama_model_deepseek32::graph``."""

    indexer_rope = NEOX

    def head(self) -> Crossing:
        """Embeddings."""
        cur = self.build_inp_embd()
        self.inp_pos = self.build_inp_pos()
        self.inp_attn = self.build_attn_inp_k(self.kv_cache("mla"))
        self.build_attn_inp_lid()
        self.inp_out_ids = self.build_inp_out_ids()
        return cur

    def build_attn_inp_lid(self) -> None:
        """The indexer's inputs; its mask is f16 where the indexer is one op (``build_attn_inp_k_dsa``)."""
        cache, n = self.kv_cache("lid"), self.batch.n_tokens
        n_kv, n_stream = self.cells(cache)
        kind = F16 if LIGHTNING_INDEXER.op in self.fused else F32
        self.lid_idxs = ops.new_input(I64, n, name="attn_inp_k_idxs_lid")
        self.lid_mask = ops.new_input(kind, n_kv, n // n_stream, 1, n_stream, name="attn_inp_kq_mask_lid")
        self.lid_rot = ops.new_input(F32, cache.k_rot, cache.k_rot, name="attn_inp_k_rot_lid")

    def layer(self, il: int, *given: Tensor) -> Cuts:
        """Attention over the chosen keys, then a dense layer or experts."""
        (inp,) = given
        cur = self.cb(self.norm(inp, self.w(il, "attn_norm"), il), "attn_norm", il)
        cur, _ = self.sparse_attention(cur, None, il)
        cur, inp = self.rows_asked_for(il, cur, inp)
        ffn_inp = yield self.cb(ops.add(cur, inp), "ffn_inp", il)
        return self.ffn_block(ffn_inp, il)

    def ffn_block(self, ffn_inp: Tensor, il: int) -> Tensor:
        """The second half of a layer."""
        cur = self.cb(self.norm(ffn_inp, self.w(il, "ffn_norm"), il), "ffn_norm", il)
        return self.cb(ops.add(self.feed_forward(cur, il), ffn_inp), "l_out", il)

    def sparse_attention(self, cur: Tensor, top_k: Tensor | None, il: int) -> tuple[Tensor, Tensor]:
        """Attention over the keys that this layer chooses, or over ``top_k``; which keys these were."""
        q, qr = self.latent_queries(cur, il)
        if top_k is None:
            top_k = self.choose_keys(qr, cur, il)
        q, k, v = self.latent_qkv(q, cur, il)
        mask = self.top_keys_mask(self.inp_attn.kq_mask, top_k, F32)
        wv_b, n_top = self.w(il, "attn_v_b"), top_k.ne[0]
        return self.build_attn_k(self.inp_attn, q, k, v, wv_b, il, mask=mask, n_kv_max=n_top), top_k

    def latent_queries(self, cur: Tensor, il: int) -> tuple[Tensor, Tensor]:
        """Queries as rows, and the low rank that they and the indexer's are made of."""
        qr = self.cb(ops.mul_mat(self.w(il, "attn_q_a"), cur), "qr", il)
        qr = self.cb(self.norm(qr, self.w(il, "attn_q_a_norm"), il), "qr", il)
        return self.cb(ops.mul_mat(self.w(il, "attn_q_b"), qr), "q", il), qr

    def choose_keys(self, qr: Tensor, cur: Tensor, il: int) -> Tensor:
        """The keys that each token attends to, by the indexer."""
        hp, n = self.hp, cur.ne[1]
        size, heads = hp.indexer_head_size, hp.indexer_n_head
        q = self.cb(ops.mul_mat(self.w(il, "indexer.attn_q_b"), qr), "indexer_q", il)
        q = self.cb(self.rope_start(q, size, heads, n, il), "indexer_q", il)
        k = self.cb(ops.mul_mat(self.w(il, "indexer.attn_k"), cur), "indexer_k", il)
        k = self.cb(self.indexer_norm(k, il), "indexer_k", il)
        k = self.cb(self.rope_start(k, size, 1, n, il), "indexer_k", il)
        q = self.cb(ops.mul_mat(self.lid_rot, q), "indexer_q", il)
        k = self.cb(ops.mul_mat(self.lid_rot, k), "indexer_k", il)
        self.graph.expand(self.cpy_k("cache_k@lid", k, self.lid_idxs, il))
        weights = self.cb(ops.mul_mat(self.w(il, "indexer.proj"), cur), "indexer_weights", il)
        k = self.get_k("cache_k@lid", size, 1, il)
        q, weights = self.by_stream(q, weights, k.ne[3])
        weights = self.cb(ops.scale(weights), "indexer_weights", il)
        best = self.top_keys(q, k, weights, self.lid_mask, hp.indexer_top_k, il, "indexer", "indexer_score")
        return self.cb(best, "top_k", il)

    def indexer_norm(self, k: Tensor, il: int) -> Tensor:
        """The norm of the indexer's keys, which takes their mean away."""
        name = "indexer.k_norm"
        weight, bias = self.maybe(f"{name}.weight", il), self.maybe(f"{name}.bias", il)
        return self.norm(k, weight, il, bias=bias, rms=False)

    def rope_start(self, t: Tensor, size: int, heads: int, n: int, il: int) -> Tensor:
        """Heads of ``size`` elements, the first of which are turned: in place, or cut off and joined again."""
        rot = self.hp.n_rot(il)
        if self.release.rope_at_offset:
            return ops.rope(ops.reshape(t, size, heads, n), self.inp_pos, rot, self.indexer_rope)
        row = t.type.row_size
        still = size - rot
        pe = ops.view_3d(t, (rot, heads, n), row(size), row(size) * heads)
        rest = ops.view_3d(t, (still, heads, n), row(size), row(size) * heads, row(still))
        return ops.concat(ops.rope(pe, self.inp_pos, rot, self.indexer_rope), rest, 0)


_UNNAMED = {
    f"input of FILL for {attends}": (
        "room for zeros that open a layer's mask for the keys that the indexer chose; one for each layer, all there"
        " from the start"
    )
    for attends in ("fattn_mla", "kqv_mla", "kq_soft_max")
} | {
    f"{op} of {copied}attn_inp_kq_mask": said
    for copied in ("", "copy of ")
    for op, said in (
        ("FILL", "a layer's mask with all keys closed, before those that the indexer chose are opened"),
        ("ADD", "a layer's mask with the keys open that the indexer chose"),
    )
}


class DeepSeek32(Architecture[SparseHParams]):
    """``llama_model_deepseek32``."""

    name = "deepseek32"
    graph: type[ModelGraph[Any]] = SparseGraph
    drops_mtp_since = 10240
    """The first build seen that keeps no caches for MTP blocks (src/llama-model.cpp: create_memory)."""
    one_cache_type = True
    paths = ("indexer",)
    unnamed = MappingProxyType(_UNNAMED)
    """``build_top_k_mask``."""

    def load_hparams(self, k: Keys, release: Release) -> SparseHParams:
        """``load_arch_hparams``."""
        k.check(k.u32("expert_gating_func") > 0, "expert_gating_func is 0, which llama.cpp does not know")
        return SparseHParams(**sparse_fields(k, release))

    def block(self, hp: SparseHParams, have: Have, il: int, release: Release) -> Iterator[Wanted]:
        """A layer's weights (``load_arch_tensors``)."""
        yield from latent_attention(hp, il)
        yield from self.indexer(hp, il)
        yield from experts(hp, have, il)

    def mtp_block(self, hp: SparseHParams, have: Have, il: int, release: Release, *, skip: bool) -> Iterator[Wanted]:
        """A layer's weights, of which llama.cpp forgets to skip one, and what drafts."""
        for w in drafting_block(self.block(hp, have, il, release), hp, have, il, skip=skip):
            yield replace(w, skip=False) if w.name.endswith("exp_probs_b.bias") else w

    def indexer(self, hp: SparseHParams, il: int) -> Iterator[Wanted]:
        """A layer's indexer."""
        p, size, heads = f"blk.{il}.indexer.", hp.indexer_head_size, hp.indexer_n_head
        yield Wanted(p + "k_norm.weight", (size,))
        yield Wanted(p + "k_norm.bias", (size,))
        yield Wanted(p + "proj.weight", (hp.n_embd, heads))
        yield Wanted(p + "attn_k.weight", (hp.n_embd, size))
        yield Wanted(p + "attn_q_b.weight", (hp.n_lora_q, heads * size))

    def caches_mtp_blocks(self, release: Release) -> bool:
        """In older releases."""
        return release.build < self.drops_mtp_since

    def memory(self, hp: SparseHParams, build: CacheBuilder, release: Release) -> Memory:
        """Latent keys, and the indexer's keys where it chooses (``llama_kv_cache_dsa``)."""
        size = hp.indexer_head_size
        layers = self.cached_layers(hp, release)
        choosing = [il for il in layers if hp.indexer_full[il] or release.build < CHOOSING_SINCE]
        lid = build.kv(choosing, name="lid", values=False, head=size)
        return Memory({"mla": build.kv(layers, values=False), "lid": replace(lid, k_rot=rotation_rows(size))})

    def check_graph(self, hp: SparseHParams, memory: Memory, release: Release) -> Refusal | None:
        """An indexer whose heads are smaller than what of them is turned, since the two are no longer cut apart."""
        if release.rope_at_offset and "lid" in memory.caches and hp.n_rot() > hp.indexer_head_size:
            return died("hparams.n_rot() <= n_embd_indexer_head")
        return super().check_graph(hp, memory, release)

    def fused(self, release: Release, paths: Paths) -> Fused:
        """The indexer, where the release has an op for it, if not ruled out."""
        unfused = release.indexer is not Indexer.FUSED or paths["indexer"] == "unfused"
        return frozenset() if unfused else frozenset({LIGHTNING_INDEXER.op})

    def probes(self, release: Release, paths: Paths) -> tuple[Probe, ...]:
        """It is tried where it is neither asked for nor ruled out."""
        return (LIGHTNING_INDEXER,) if release.indexer_probe and paths["indexer"] == "auto" else ()


class SparseMTPGraph(LatentMTPGraph):
    """``llama_model_deepseek32::graph_mtp``, and GLM-5's."""

    unscaled = SparseGraph.unscaled


class DeepSeek32MTP(MTPBlock[SparseHParams], DeepSeek32):
    """Its own MTP block."""

    graph: type[ModelGraph[Any]] = SparseMTPGraph
    since = 10240

    def memory(self, hp: SparseHParams, build: CacheBuilder, release: Release) -> Memory:
        """Latent keys of the block alone."""
        return latent_memory(build, self.cached_layers(hp, release))


ARCHITECTURE = DeepSeek32(mtp=DeepSeek32MTP())
