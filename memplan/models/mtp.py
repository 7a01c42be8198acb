"""What a model's own MTP block begins and ends with when it drafts: two norms and a projection, a norm and logits.

Follows ``graph_mtp`` of src/models/qwen35.cpp, qwen35moe.cpp, step35.cpp, deepseek2.cpp, deepseek32.cpp and
glm-dsa.cpp, v0.5.0; b10361 and v0.4.0 do the same. Between the two lies a layer of the model's own kind.
"""

from __future__ import annotations

from typing import Any

from memplan.ggml import ops
from memplan.ggml.tensor import FLAG_OUTPUT, Tensor
from memplan.gguf.types import F32, I32
from memplan.llama.graph.base import H
from memplan.models.base import ModelGraph


class MTPHead(ModelGraph[H]):
    """Mixed in before the graph whose layer the block is. ``norm_last``: logits' norm is over what is asked for."""

    norm_last = False

    @classmethod
    def layers(cls, hp: H) -> range:
        """The first block behind the model's own."""
        return range(hp.n_layer, hp.n_layer + 1)

    def is_last(self, il: int) -> bool:
        """Tokens are chosen behind the layer."""
        return False

    def attention_inputs(self) -> None:
        """The inputs of the block's attention."""
        raise NotImplementedError

    def head(self) -> Any:
        """Hidden states and embeddings, normed, joined and projected."""
        hp, n, il = self.hp, self.batch.n_tokens, self.hp.n_layer
        block = f"blk.{il}.nextn."
        tokens = ops.new_input(I32, n, name="inp_tokens")
        h = ops.new_input(F32, hp.n_embd, n, name="mtp_h_input")
        embd = self.maybe(f"{block}embed_tokens.weight") or self.leaf("token_embd.weight")
        cur = self.cb(ops.get_rows(embd, tokens), "mtp_tok_embd", il)
        self.inp_pos = self.build_inp_pos()
        self.inp_out_ids = self.build_inp_out_ids()
        self.attention_inputs()
        h = self.cb(self.norm(h, self.w(-1, f"{block}hnorm"), il), "mtp_hnorm", il)
        cur = self.cb(self.norm(cur, self.w(-1, f"{block}enorm"), il), "mtp_enorm", il)
        cur = self.cb(ops.concat(cur, h, 0), "mtp_concat", il)
        return self.cb(self.mm(-1, f"{block}eh_proj", cur), "mtp_eh_proj", il)

    def tail(self, *given: Tensor) -> Tensor:
        """Logits, and the hidden states that the next draft reads."""
        cur, block = given[0], f"blk.{self.hp.n_layer}.nextn."
        norm = self.maybe(f"{block}shared_head_norm.weight") or self.leaf("output_norm.weight")
        for last in (self.norm_last, not self.norm_last):
            cur = ops.get_rows(cur, self.inp_out_ids) if last else self.norm(cur, norm, -1)
            if last is self.norm_last:
                cur.flags |= FLAG_OUTPUT
                self.cb(cur, "h_nextn", -1)
        self.cb(cur, "mtp_shared_head_norm", -1)
        own = f"{block}shared_head_head"
        cur = self.mm(-1, own if self.source.has(f"{own}.weight", -1) else "output", cur)
        self.graph.expand(self.cb(cur, "result_output", -1))
        return cur
