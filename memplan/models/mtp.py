"""What a model's own MTP block begins and ends with when it drafts: two norms and a projection, a norm and logits.

Follows ``graph_mtp`` of src/models/qwen35.cpp, qwen35moe.cpp, qwen3next.cpp, step35.cpp, glm4-moe.cpp,
nemotron-h-moe.cpp, deepseek2.cpp, deepseek32.cpp and glm-dsa.cpp, v0.5.0; b10361 and v0.4.0 do the same. Between the
two lies a layer of the model's own kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from memplan.ggml import ops
from memplan.ggml.tensor import FLAG_OUTPUT, Tensor
from memplan.gguf.types import F32, I32
from memplan.llama.graph.base import H
from memplan.llama.refusals import died
from memplan.llama.weights import Have, Wanted, nextn
from memplan.models.base import Architecture, ModelGraph

if TYPE_CHECKING:
    from memplan.llama.hparams import HParams
    from memplan.llama.memory.base import Memory
    from memplan.llama.refusals import Refusal
    from memplan.releases import Release


def drafting_block(block: Iterable[Wanted], hp: HParams, have: Have, il: int, *, skip: bool) -> Iterator[Wanted]:
    """A layer's weights and those of an MTP block, none of which are needed where the file has no such block."""
    none = f"blk.{hp.n_layer}.nextn.eh_proj.weight" not in have
    for w in (*block, *nextn(hp, il)):
        yield replace(w, optional=w.optional or none, skip=skip)


class MTPHead(ModelGraph[H]):
    """Mixed in before the graph whose layer the block is."""

    takes_rows: Literal["layer", "before norm", "after norm"] = "after norm"
    """Where the tokens that are asked for are taken out: in the layer, or before or after the logits' norm."""

    @classmethod
    def layers(cls, hp: H) -> range:
        """The first block behind the model's own."""
        return range(hp.n_layer, hp.n_layer + 1)

    def is_last(self, il: int) -> bool:
        """Tokens are chosen behind the layer."""
        return False

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
        if self.takes_rows == "before norm":
            cur = self.hidden_states(ops.get_rows(cur, self.inp_out_ids))
        cur = self.head_norm(cur, self.maybe(f"{block}shared_head_norm.weight") or self.leaf("output_norm.weight"))
        if self.takes_rows != "before norm":
            self.hidden_states(cur)
        if self.takes_rows == "after norm":
            cur = ops.get_rows(cur, self.inp_out_ids)
        if self.takes_rows != "layer":
            self.cb(cur, "mtp_shared_head_norm", -1)
        own = f"{block}shared_head_head"
        cur = self.mm(-1, own if self.source.has(f"{own}.weight", -1) else "output", cur)
        self.graph.expand(self.cb(cur, "result_output", -1))
        return cur

    def head_norm(self, cur: Tensor, weight: Tensor) -> Tensor:
        """The norm before the logits."""
        return self.norm(cur, weight, -1)

    def hidden_states(self, cur: Tensor) -> Tensor:
        """What the next draft reads."""
        cur.flags |= FLAG_OUTPUT
        return self.cb(cur, "h_nextn", -1)


class MTPBlock(Architecture[H]):
    """Mixed in before the architecture whose MTP block drafts."""

    one_block = True
    """Whether llama.cpp's graph takes files of one MTP block alone."""

    def cached_layers(self, hp: H, release: Release) -> range:
        """The model's MTP blocks; once all layers, though only theirs are used."""
        return range(0 if self.caches_mtp_blocks(release) else hp.n_layer, hp.n_layer_all)

    memory = Architecture.memory
    """Caches of keys and values, whatever the model's own layers have."""

    def check_graph(self, hp: H, memory: Memory, release: Release) -> Refusal | None:
        """Several blocks, where the graph takes one, or what the model's own graph stops at."""
        if self.one_block and hp.n_layer_nextn != 1:
            return died("hparams.n_layer_nextn == 1")
        return super().check_graph(hp, memory, release)
