"""DeepSeek-V4's graph, tensor by tensor, with the names llama.cpp gives them.

Follows ``src/models/deepseek4.cpp`` and the shared pieces of ``src/llama-graph.cpp``, v0.5.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.ggml.graph import Graph
from memplan.ggml.tensor import Tensor
from memplan.gguf.types import F32, I32, I64, GGMLType
from memplan.models.deepseek4.attention import Attention
from memplan.models.deepseek4.feed_forward import FeedForward
from memplan.models.deepseek4.hyper_connections import HyperConnections
from memplan.models.deepseek4.inputs import Inputs, k_rot, mask_types, n_blocks

if TYPE_CHECKING:
    from memplan.llama.kv_cache import CompState, KVCache


class DeepSeek4Graph(HyperConnections, Attention, FeedForward):
    """Builds one graph, whole (``build``) or in pieces (``head``, two blocks a layer, ``output``)."""

    def build_inputs(self) -> Tensor:
        """Token embeddings, positions, masks, indices (``build_inp_*``, ``build_inp_dsv4``)."""
        hp, n, memory = self.hp, self.batch.n_tokens, self.memory
        graph = self.graph
        self.inp_tokens = ops.new_input(I32, n, name="inp_tokens")
        embd_in = ops.new_input(F32, hp.n_embd, n, name="inp_embd")
        cur = ops.get_rows(self.leaf("token_embd.weight"), self.inp_tokens)
        # both ways in are part of the graph; the one with embeddings is not computed (ggml_build_forward_select)
        graph.expand(cur)
        graph.expand(embd_in)
        self.cb(cur, "embd", -1)
        self.inp_pos = ops.new_input(I32, n, name="inp_pos")
        self.out_ids = ops.new_input(I32, self.batch.n_outputs, name="out_ids")
        self.k_idxs = ops.new_input(I64, n)
        raw = memory.raw
        masks = self.masks = mask_types(self.release, self.fused, memory)
        self.raw_mask = ops.new_input(masks.raw, raw.size, n // raw.n_stream, 1, raw.n_stream, name="attn_inp_kq_mask")
        self.raw_rot = k_rot(raw)
        rotated = self.release.rotates_compressed_keys
        self.csa = self.comp_inputs(memory.csa, memory.csa_state, masks.compressed, rotated)
        self.hca = self.comp_inputs(memory.hca, memory.hca_state, masks.compressed, rotated)
        self.lid = self.comp_inputs(memory.lid, memory.lid_state, masks.indexer, rotated=True)
        graph.expand(self.raw_mask)
        return cur

    def comp_inputs(self, cache: KVCache, state: CompState, mask_type: GGMLType, rotated: bool) -> Inputs:
        """The inputs of one compressed cache."""
        blocks = n_blocks(self.release, self.batch, state.ratio)
        return Inputs(cache, state, self.batch, blocks, mask_type, rotated)

    def attention_block(self, inp: Tensor, il: int) -> Tensor:
        """A layer's first half: attention between hyper-connections."""
        cur, post, comb = self.hc_pre(inp, "attn", il)
        self.cb(cur, "hc_attn_pre", il)
        cur = self.cb(self.norm(cur, self.w(il, "attn_norm"), il), "attn_norm", il)
        cur = self.attention(cur, il)
        return self.cb(self.hc_post(cur, inp, post, comb, il), "hc_attn_post", il)

    def feed_forward_block(self, mid: Tensor, il: int) -> Tensor:
        """A layer's second half: experts between hyper-connections."""
        graph = self.graph
        cur, post, comb = self.hc_pre(mid, "ffn", il)
        self.cb(cur, "hc_ffn_pre", il)
        if self.release.ffn_inputs_first:
            for t in (mid, post, comb):
                graph.expand(t)
        cur = self.cb(self.norm(cur, self.w(il, "ffn_norm"), il), "ffn_norm", il)
        moe_out = self.moe(cur, il)
        cur = self.cb(ops.add(moe_out, self.shared_expert(cur, il)), "ffn_out", il)
        out = self.hc_post(cur, mid, post, comb, il)
        if self.release.pins_layer_ends:
            self.pinned.append((out, il))
        return self.cb(out, "l_last" if self.release.pins_layer_ends else "l_out", il)

    def head(self) -> Tensor:
        """Embeddings spread over the streams: what the first layer reads."""
        hp, n = self.hp, self.batch.n_tokens
        cur = ops.reshape(self.build_inputs(), hp.n_embd, 1, n)
        return self.cb(ops.repeat_4d(cur, (hp.n_embd, hp.hc_mult, n, 1)), "hc_init", -1)

    def output(self, cur: Tensor) -> Tensor:
        """Logits of the tokens that are asked for."""
        hp, n = self.hp, self.batch.n_outputs
        cur = ops.get_rows(ops.reshape(cur, hp.n_embd * hp.hc_mult, self.batch.n_tokens), self.out_ids)
        cur = self.cb(self.hc_head(ops.reshape(cur, hp.n_embd, hp.hc_mult, n)), "hc_head", -1)
        cur = self.cb(self.norm(cur, self.leaf("output_norm.weight"), -1), "result_norm", -1)
        cur = self.cb(ops.mul_mat(self.leaf("output.weight"), cur), "result_output", -1)
        self.graph.expand(cur)
        return cur

    def build(self) -> Graph:
        """The whole graph (``llama_model_deepseek4::graph``)."""
        cur = self.head()
        for il in range(self.hp.n_layer):
            cur = self.feed_forward_block(self.attention_block(cur, il), il)
        self.output(cur)
        return self.graph
