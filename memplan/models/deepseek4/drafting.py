"""What drafts for DeepSeek-V4 with layers of its own kind: attention over a sliding window of keys alone.

Follows src/models/deepseek4.cpp (``llama_model_deepseek4::graph_mtp``) and src/llama-graph.cpp (``build_attn`` with
``llm_graph_input_attn_k_iswa``), v0.5.0; b10361 does the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.ggml.tensor import FLAG_OUTPUT, Tensor
from memplan.gguf.types import F32, I32
from memplan.llama.graph.base import GraphBase
from memplan.models.deepseek4.graph import Layers

if TYPE_CHECKING:
    from memplan.llama.graph import AttnInputs
    from memplan.llama.memory.kv import KVCache
    from memplan.models.deepseek4.hparams import DeepSeek4HParams


class DraftLayers(Layers):
    """Layers over a cache of their own."""

    drafts = True
    inp_attn: AttnInputs

    def cells(self, cache: KVCache) -> tuple[int, int]:
        """As with any cache; unified slots share one stream."""
        return GraphBase.cells(self, cache)

    def attention_inputs(self) -> None:
        """``build_attn_inp_k_iswa``, of which only the sliding half is read."""
        self.inp_attn = self.build_attn_inp_kv(self.kv_cache("swa"))

    def attend_to(self, q: Tensor, kv: Tensor, qr: Tensor, cur: Tensor, ratio: int, il: int) -> Tensor:
        """Keys of the window, which are the values too."""
        inp, graph = self.inp_attn, self.graph
        if inp.k_rot is not None:
            q, kv = self.hadamard(q, inp.k_rot), self.hadamard(kv, inp.k_rot)
        graph.expand(q)
        graph.expand(kv)
        graph.expand(self.cpy_k("cache_k@swa", kv, inp.k_idxs, il))
        keys = self.get_k("cache_k@swa", self.hp.n_embd_head_k(), 1, il)
        values = ops.view(keys, keys.ne, keys.nb) if self.switches.draft_values_viewed else keys
        out = self.build_attn_mha(q, keys, values, inp.kq_mask, il, sinks=self.w(il, "attn_sinks"))
        out = out if inp.k_rot is None else self.hadamard(out, inp.k_rot)
        return self.cb(out, "attn_raw", il)


class MTPGraph(DraftLayers):
    """``llama_model_deepseek4::graph_mtp``: one block that reads the model's last hidden state and the next token."""

    @classmethod
    def layers(cls, hp: DeepSeek4HParams) -> range:
        """The first block behind the model's own."""
        return range(hp.n_layer, hp.n_layer + 1)

    def head(self) -> Tensor:
        """Hidden states and embeddings, normed, joined and projected."""
        hp, n, il = self.hp, self.batch.n_tokens, self.hp.n_layer
        block = f"blk.{il}.nextn."
        tokens = ops.new_input(I32, n, name="inp_tokens")
        h = ops.new_input(F32, hp.n_embd_out, n, name="mtp_h_input")
        embd = self.maybe(f"{block}embed_tokens.weight") or self.leaf("token_embd.weight")
        cur = self.cb(ops.get_rows(embd, tokens), "mtp_tok_embd", il)
        h = self.cb(ops.reshape(h, hp.n_embd, hp.hc_mult, n), "mtp_h_state", il)
        self.inp_pos = self.build_inp_pos()
        self.inp_out_ids = self.build_inp_out_ids()
        self.attention_inputs()
        h_norm = self.cb(self.norm(h, self.w(-1, f"{block}hnorm"), il), "mtp_hnorm", il)
        e_norm = self.over_streams(self.norm(cur, self.w(-1, f"{block}enorm"), il))
        cur = self.cb(ops.concat(self.cb(e_norm, "mtp_enorm", il), h_norm, 0), "mtp_concat", il)
        return self.cb(self.mm(-1, f"{block}eh_proj", cur), "mtp_eh_proj", il)

    def tail(self, *given: Tensor) -> Tensor:
        """Logits, and the hidden states that the next draft reads, of the tokens that are asked for."""
        (cur,) = given
        hp, block = self.hp, f"blk.{self.hp.n_layer}.nextn."
        hidden = ops.get_rows(ops.reshape(cur, hp.n_embd_out, cur.ne[2]), self.inp_out_ids)
        self.cb(hidden, "h_nextn", -1)
        cur = ops.reshape(hidden, hp.n_embd, hp.hc_mult, self.batch.n_outputs)
        cur = self.cb(self.hc_head(cur), "mtp_hc_head", -1)
        norm = self.maybe(f"{block}shared_head_norm.weight") or self.leaf("output_norm.weight")
        cur = self.cb(self.norm(cur, norm, -1), "mtp_shared_head_norm", -1)
        for t in (hidden, cur):
            t.flags |= FLAG_OUTPUT
        head = self.maybe(f"{block}shared_head_head.weight") or self.leaf("output.weight")
        cur = self.cb(ops.mul_mat(head, cur), "result_output", -1)
        self.graph.expand(cur)
        return cur
