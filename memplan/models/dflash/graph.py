"""The graphs of block drafters: a block of masked tokens through a few layers, and the Markov head of DSpark.

Follows src/models/dflash.cpp (``graph<false>``, ``graph_dsv4``, ``build_dspark_markov_head``), v0.5.0; b10361 and
v0.4.0 do the same but for what switches say. In a reserve a batch is of tokens; keys that the target's layers give are
injected in another graph, which is smaller.
"""

from __future__ import annotations

from memplan.ggml import ops
from memplan.ggml.ops.common import failed
from memplan.ggml.tensor import FLAG_OUTPUT, Tensor
from memplan.gguf.types import F32, I32
from memplan.llama.graph.base import H
from memplan.models.base import Cuts, ModelGraph
from memplan.models.deepseek4.drafting import DraftLayers
from memplan.models.deepseek4.hparams import DeepSeek4HParams
from memplan.models.dflash.hparams import DraftHParams, PlainHParams


class BlockGraph(ModelGraph[H]):
    """What both forms share: masked tokens in, logits of every one of them out."""

    def masked_tokens(self) -> Tensor:
        """Embeddings of the tokens, from the drafter's own table or the target's."""
        if not self.source.has("token_embd.weight", -1):
            failed("cparams.ctx_other != nullptr")  # a drafter is nothing by itself
        self.inp_tokens = ops.new_input(I32, self.batch.n_tokens, name="inp_tokens")
        return ops.get_rows(self.leaf("token_embd.weight"), self.inp_tokens)

    def drafted(self, hidden: Tensor, embd: Tensor) -> Tensor:
        """Logits of all tokens, from the drafter's own output or the target's, and what the Markov head adds.

        ``embd``: the hidden states that the head's confidence is made of.
        """
        embd.flags |= FLAG_OUTPUT
        logits = self.mm(-1, "output", hidden)
        d2t = self.maybe("d2t")
        if d2t is not None:
            logits = self.scattered(logits, d2t)
        self.graph.expand(self.cb(logits, "result_output", -1))
        return self.markov(logits, embd, d2t) if self.source.has("markov_w1.weight", -1) else logits

    def scattered(self, rows: Tensor, d2t: Tensor) -> Tensor:
        """Rows over the drafter's vocabulary as rows over the target's."""
        n_vocab, (n_drafted, n, _, _) = self.hp.n_vocab, rows.ne
        full = ops.fill(ops.new(F32, 1, n_vocab, n))
        full = ops.set_rows(full, ops.reshape(rows, 1, n_drafted, n), ops.reshape(d2t, n_drafted, 1, 1))
        return ops.reshape(full, n_vocab, n)

    def markov(self, base: Tensor, embd: Tensor, d2t: Tensor | None) -> Tensor:
        """Each token's logits with a bias by the token before, where a sequence's tokens are one block."""
        hp = self.hp
        assert isinstance(hp, DraftHParams)  # what drafts has these
        n_vocab, n, n_blocks = base.ne[0], base.ne[1], self.batch.n_seqs
        each = n // n_blocks
        if each > hp.block_size:
            return base
        confident = self.source.has("conf_proj.weight", -1)
        prev = ops.cont(ops.view_2d(self.inp_tokens, 1, n_blocks, each * self.inp_tokens.nb[0], 0), n_blocks)
        columns, confidences = [], []
        if not hp.from_anchor:
            columns.append(ops.cont(ops.view_2d(base, n_vocab, n_blocks, each * base.nb[1], 0)))
            if confident:
                column = ops.cont(ops.view_2d(base, 1, n_blocks, each * base.nb[1], 0))
                confidences.append(ops.unary(column, "SIGMOID"))
        for i in range(len(columns), each):
            before = ops.get_rows(self.leaf("markov_w1.weight"), prev)
            bias = self.mm(-1, "markov_w2", before)
            if d2t is not None:
                bias = self.scattered(bias, d2t)
            column = ops.add(ops.view_2d(base, n_vocab, n_blocks, each * base.nb[1], i * base.nb[1]), bias)
            columns = [ops.concat(columns[0], column, 1)] if columns else [column]
            if confident:
                hidden = ops.cont(ops.view_2d(embd, embd.ne[0], n_blocks, each * embd.nb[1], i * embd.nb[1]))
                found = ops.mul_mat(self.leaf("conf_proj.weight"), ops.concat(hidden, before, 0))
                found = ops.unary(self.biased(found, -1, "conf_proj"), "SIGMOID")
                confidences = [ops.concat(confidences[0], found, 1)] if confidences else [found]
            if i + 1 < each:
                prev = ops.argmax(column)
        out = self.by_block(columns[0], n_blocks, each)
        if confident:
            said = self.by_block(confidences[0], n_blocks, each)
            said = ops.repeat_4d(said, embd.ne)
            said.flags |= FLAG_OUTPUT
            self.graph.expand(said)
        self.graph.expand(out)
        return out

    @staticmethod
    def by_block(columns: Tensor, n_blocks: int, each: int) -> Tensor:
        """What was made position by position, block by block."""
        n = columns.ne[0]
        out = ops.reshape(columns, n, n_blocks, each)
        return ops.reshape(ops.cont(ops.permute(out, 0, 2, 1, 3)), n, n_blocks * each)


class StagesGraph(DraftLayers, BlockGraph[DeepSeek4HParams]):
    """``llama_model_dflash::graph_dsv4``."""

    def head(self) -> Tensor:
        """Inputs, and embeddings spread over the streams."""
        self.inp_pos = self.build_inp_pos()
        self.attention_inputs()
        cur = self.cb(self.masked_tokens(), "inp_noise_embd", -1)
        return self.cb(self.over_streams(cur), "hc_init", -1)

    def tail(self, *given: Tensor) -> Tensor:
        """Logits of all tokens."""
        (cur,) = given
        embd = self.cb(self.hc_head(cur), "hc_head", -1)
        return self.drafted(self.cb(self.norm(embd, self.leaf("output_norm.weight"), -1), "result_norm", -1), embd)


class PlainGraph(BlockGraph[PlainHParams]):
    """``llama_model_dflash::graph<false>``."""

    def head(self) -> Tensor:
        """Inputs and embeddings."""
        self.inp_pos = self.build_inp_pos()
        self.attention_inputs()
        cur = self.masked_tokens()
        return self.cb(ops.scale(cur) if self.hp.scales_embd else cur, "inp_noise_embd", -1)

    def layer(self, il: int, *given: Tensor) -> Cuts:
        """Attention, then the feed-forward part."""
        (inp,) = given
        hp, n = self.hp, inp.ne[1]
        cur = self.cb(self.norm(inp, self.w(il, "attn_norm"), il), "noise_norm", il)
        head, heads = hp.n_embd_head_k(il), hp.n_head_kv[il]
        q, k = self.mm(il, "attn_q", cur), self.mm(il, "attn_k", cur)
        shared = not self.source.has("attn_v.weight", il)
        v = k if shared else self.mm(il, "attn_v", cur)
        q = ops.reshape(q, head, hp.n_head[il], n)
        k, v = ops.reshape(k, head, heads, n), ops.reshape(v, head, heads, n)
        q, k = self.norm(q, self.w(il, "attn_q_norm"), il), self.norm(k, self.w(il, "attn_k_norm"), il)
        v = ops.rms_norm(v) if shared else v
        factors = self.maybe("rope_freqs.weight", il)
        q = self.cb(self.rope(q, self.inp_pos, il, factors), "Qcur", il)
        k = self.cb(self.rope(k, self.inp_pos, il, factors), "Kcur", il)
        self.cb(v, "Vcur", il)
        cur = self.build_attn(self.inp_attn, q, k, v, il)
        if hp.scales_attn:
            cur = self.cb(ops.scale(cur), "attn_out_scaled", il)
        mid = yield self.cb(ops.add(self.normed(cur, "post_attention_norm", il), inp), "ffn_inp", il)
        cur = self.cb(self.norm(mid, self.w(il, "ffn_norm"), il), "ffn_norm", il)
        cur = self.cb(self.build_ffn(cur, il, hp.act), "ffn_out", il)
        cur = ops.add(self.normed(cur, "post_ffw_norm", il), mid)
        scale = self.maybe("layer_output_scale.weight", il)
        return self.cb(cur if scale is None else ops.mul(cur, scale), "l_out", il)

    def normed(self, cur: Tensor, name: str, il: int) -> Tensor:
        """A norm that a layer may have."""
        weight = self.maybe(f"{name}.weight", il)
        return cur if weight is None else self.norm(cur, weight, il)

    def is_last(self, il: int) -> bool:
        """Logits are of all tokens."""
        return False

    def tail(self, *given: Tensor) -> Tensor:
        """Logits of all tokens."""
        (cur,) = given
        cur = self.cb(self.norm(cur, self.leaf("output_norm.weight"), -1), "result_norm", -1)
        return self.drafted(cur, cur)
