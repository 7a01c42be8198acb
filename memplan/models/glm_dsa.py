"""GLM-5 and its successors: DeepSeek-V3.2's attention, in which most layers of GLM-5.2 take the keys of another.

Follows src/models/glm-dsa.cpp, v0.5.0. Builds before b10361 attend to all keys, as DeepSeek-V2's graph does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memplan.ggml import ops
from memplan.llama.graph.base import NORM
from memplan.models.deepseek2 import DeepSeek2Graph
from memplan.models.deepseek32 import DeepSeek32, DeepSeek32MTP, SparseGraph, SparseHParams, sparse_fields

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.llama.context import Fused, Paths
    from memplan.llama.keys import Keys
    from memplan.llama.memory.base import Memory
    from memplan.llama.memory.kv import CacheBuilder
    from memplan.llama.weights import Wanted
    from memplan.models.base import Cuts, ModelGraph
    from memplan.releases import Release

SPARSE_SINCE = 10121
"""The first build seen in which the indexer is used; 10108 loaded it only."""

_MILLION = 1048576
"""A context as long as this tells GLM-5.2, where the file does not say which layers choose keys."""


class GlmDsaGraph(SparseGraph):
    """``llama_model_glm_dsa::graph``."""

    indexer_rope = NORM

    def layer(self, il: int, *given: Tensor) -> Cuts:
        """Attention over the keys that this layer or an earlier one chose, then a dense layer or experts."""
        inp, top_k = given if len(given) > 1 else (given[0], None)
        cur = self.cb(self.norm(inp, self.w(il, "attn_norm"), il), "attn_norm", il)
        cur, top_k = self.sparse_attention(cur, None if self.hp.indexer_full[il] else top_k, il)
        cur, inp = self.rows_asked_for(il, cur, inp)
        ffn_inp, top_k = yield self.cb(ops.add(cur, inp), "ffn_inp", il), top_k
        return self.ffn_block(ffn_inp, il), top_k

    def tail(self, *given: Tensor) -> Tensor:
        """The logits; the keys that were chosen last are needed no more."""
        return self.build_output(given[0])


class GlmDsa(DeepSeek32):
    """``llama_model_glm_dsa``."""

    name = "glm-dsa"
    graph: type[ModelGraph[Any]] = GlmDsaGraph
    drops_mtp_since = always_drafts_since = 10178

    def graph_of(self, release: Release) -> type[ModelGraph[Any]]:
        """Before the indexer is used, DeepSeek-V2's."""
        return self.graph if release.build >= SPARSE_SINCE else DeepSeek2Graph

    def load_hparams(self, k: Keys, release: Release) -> SparseHParams:
        """``load_arch_hparams``; experts are weighted by sigmoids where the file does not say."""
        hp = SparseHParams(**sparse_fields(k, release))
        if k.u32("expert_gating_func", 0) == 0:
            hp = replace(hp, gating="SIGMOID")
        if hp.n_ctx_train < _MILLION:
            return hp
        full = [il < 3 or il % 4 == 2 for il in range(hp.n_layer_all)]
        if k.value("attention.indexer.types") is not None:
            types = k.u32_a_layer("attention.indexer.types", hp.n_layer)
            full = [*map(bool, types), *full[hp.n_layer :]]
        k.check(full[0], "the first layer has no keys of another to attend to")
        return replace(hp, indexer_full=tuple(full))

    def indexer(self, hp: SparseHParams, il: int) -> Iterator[Wanted]:
        """A layer's indexer, if the file has one."""
        for w in super().indexer(hp, il):
            yield replace(w, optional=True)

    def memory(self, hp: SparseHParams, build: CacheBuilder, release: Release) -> Memory:
        """As DeepSeek-V3.2, or latent keys alone."""
        memory = super().memory(hp, build, release)
        if release.build >= SPARSE_SINCE:
            return memory
        return replace(memory, caches={"kv": memory.caches["mla"]})

    def fused(self, release: Release, paths: Paths) -> Fused:
        """The indexer, where it is used."""
        return super().fused(release, paths) if release.build >= SPARSE_SINCE else frozenset()


class GlmDsaMTP(DeepSeek32MTP, GlmDsa):
    """Its own MTP block."""

    since = 10178

    def graph_of(self, release: Release) -> type[ModelGraph[Any]]:
        """The same throughout."""
        return self.graph


ARCHITECTURE = GlmDsa(mtp=GlmDsaMTP())
