"""DeepSeek-V4's graph, tensor by tensor, with the names llama.cpp gives them.

Follows ``src/models/deepseek4.cpp`` and the shared pieces of ``src/llama-graph.cpp``, v0.5.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.ggml.tensor import FLAG_OUTPUT, Tensor
from memplan.gguf.types import I64, GGMLType
from memplan.models.base import Cuts
from memplan.models.deepseek4.attention import Attention
from memplan.models.deepseek4.hyper_connections import HyperConnections
from memplan.models.deepseek4.inputs import Inputs, k_rot, mask_types, n_blocks

if TYPE_CHECKING:
    from memplan.llama.memory.kv import KVCache
    from memplan.models.deepseek4.memory import CompState


class Layers(HyperConnections, Attention):
    """The layers, of the model or of what drafts for it."""

    def layer(self, il: int, *given: Tensor) -> Cuts:
        """Attention, then experts, each between hyper-connections."""
        (inp,) = given
        graph = self.graph
        cur, post, comb = self.hc_pre(inp, "attn", il)
        self.cb(cur, "hc_attn_pre", il)
        cur = self.cb(self.norm(cur, self.w(il, "attn_norm"), il), "attn_norm", il)
        cur = self.attention(cur, il)
        mid = yield self.cb(self.hc_post(cur, inp, post, comb, il), "hc_attn_post", il)
        cur, post, comb = self.hc_pre(mid, "ffn", il)
        self.cb(cur, "hc_ffn_pre", il)
        if self.switches.ffn_inputs_first and not self.drafts:
            for t in (mid, post, comb):
                graph.expand(t)
        cur = self.cb(self.norm(cur, self.w(il, "ffn_norm"), il), "ffn_norm", il)
        moe = self.moe(cur, il)
        shared = self.cb(self.build_ffn(cur, il, suffix="_shexp"), "ffn_shexp", il)
        cur = self.cb(ops.add(moe, shared), "ffn_out", il)
        return self.last_of_layer(self.hc_post(cur, mid, post, comb, il), il)

    def moe(self, cur: Tensor, il: int) -> Tensor:
        """Routed experts; the first layers route by token (``ffn_gate_tid2eid``)."""
        hp = self.hp
        selected = None
        if il < hp.hash_layer_count:
            selected = ops.get_rows(self.w(il, "ffn_gate_tid2eid"), self.inp_tokens)
        return self.build_moe_ffn(
            cur,
            il,
            gating="SQRT_SOFTPLUS",
            norm_w=hp.expert_weights_norm,
            w_scale=hp.expert_weights_scale,
            selected=selected,
        )

    def over_streams(self, cur: Tensor) -> Tensor:
        """Embeddings spread over the streams."""
        hp, n = self.hp, cur.ne[1]
        return ops.repeat_4d(ops.reshape(cur, hp.n_embd, 1, n), (hp.n_embd, hp.hc_mult, n, 1))

    def is_last(self, il: int) -> bool:
        """All layers are alike: tokens are chosen after the last."""
        return False


class DeepSeek4Graph(Layers):
    """``llama_model_deepseek4::graph``."""

    mixed_batches = False

    def give_input(self, il: int, given: tuple[Tensor, ...]) -> None:
        """The mean of a layer's streams (``dsv4_hc_mean``)."""
        (x,) = given
        n_embd, hc, n, _ = x.ne
        cur = ops.view_2d(x, n_embd, n, x.nb[2], 0)
        for i in range(1, hc):
            cur = ops.add(cur, ops.view_2d(x, n_embd, n, x.nb[2], i * x.nb[1]))
        cur = self.cb(ops.scale(cur), "layer_inp", il)
        cur.flags |= FLAG_OUTPUT
        self.graph.expand(cur)

    def head(self) -> Tensor:
        """Inputs, and embeddings spread over the streams (``build_inp_*``, ``build_inp_dsv4``)."""
        n, memory = self.batch.n_tokens, self.memory
        cur = self.build_inp_embd()
        self.inp_pos = self.build_inp_pos()
        self.inp_out_ids = self.build_inp_out_ids()
        self.k_idxs = ops.new_input(I64, n)
        raw = memory.keys("raw")
        masks = self.masks = mask_types(self.release, self.fused, memory.kv_unified, self.batch.n_seqs)
        n_kv, n_stream = self.cells(raw)
        self.raw_mask = ops.new_input(masks.raw, n_kv, n // n_stream, 1, n_stream, name="attn_inp_kq_mask")
        self.raw_rot = k_rot(raw)
        rotated = self.switches.rotates_compressed_keys
        self.csa = self.comp_inputs(memory.keys("csa"), memory.state("csa"), masks.compressed, rotated)
        self.hca = self.comp_inputs(memory.keys("hca"), memory.state("hca"), masks.compressed, rotated)
        self.lid = self.comp_inputs(memory.keys("lid"), memory.state("lid"), masks.indexer, rotated=True)
        self.graph.expand(self.raw_mask)
        return self.cb(self.over_streams(cur), "hc_init", -1)

    def comp_inputs(self, cache: KVCache, state: CompState, mask_type: GGMLType, rotated: bool) -> Inputs:
        """The inputs of one compressed cache."""
        blocks = n_blocks(self.release, self.batch, state.ratio)
        return Inputs(cache, state, self.batch, blocks, mask_type, rotated)

    def cells(self, cache: KVCache) -> tuple[int, int]:
        """All cells of a compressed cache, of which a view is taken then; every sequence has a stream of its own."""
        n_kv, _ = super().cells(cache)
        return (cache.size if cache.name else n_kv), self.batch.n_seqs

    def tail(self, *given: Tensor) -> Tensor:
        """Logits of the tokens that are asked for."""
        (cur,) = given
        hp, n = self.hp, self.batch.n_outputs
        cur = ops.get_rows(ops.reshape(cur, hp.n_embd * hp.hc_mult, self.batch.n_tokens), self.inp_out_ids)
        cur = self.cb(self.hc_head(ops.reshape(cur, hp.n_embd, hp.hc_mult, n)), "hc_head", -1)
        return self.build_output(cur)
