"""Gemma 4: two head sizes, values made of keys, caches that later layers share, experts beside a dense layer.

The small models have embeddings by layer, of which each layer takes its slice. Follows src/models/gemma4.cpp, v0.5.0;
releases from b9842 on do the same, but that before v0.4.0 embeddings by layer lay with the others whatever their size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.gguf.types import I32
from memplan.llama.hparams import HParams, common, swa_layers
from memplan.llama.memory.base import Memory
from memplan.llama.memory.iswa import iswa_memory
from memplan.llama.weights import Have, Wanted, ffn
from memplan.models.base import Architecture, Cuts, ModelGraph

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.llama.keys import Keys
    from memplan.llama.memory.kv import CacheBuilder
    from memplan.releases import Release


@dataclass(frozen=True, kw_only=True)
class Gemma4HParams(HParams):
    """``n_layer_kv``: the first so many layers have caches of their own.  ``n_embd_per_layer``: 0 for none."""

    n_layer_kv: int
    n_ff_exp: int
    n_embd_per_layer: int
    softcaps: bool

    def has_kv(self, il: int) -> bool:
        """Whether a layer writes keys and values (``llama_hparams::has_kv``)."""
        return il < self.n_layer_kv


class Gemma4Graph(ModelGraph[Gemma4HParams]):
    """``llama_model_gemma4::graph``."""

    def head(self) -> tuple[Tensor, ...]:
        """Embeddings, scaled, and those by layer, if there are any: (size, tokens, layers)."""
        hp, n = self.hp, self.batch.n_tokens
        cur = self.build_scaled_inp_embd()
        self.inp_pos = self.build_inp_pos()
        self.attention_inputs()
        self.inp_out_ids = self.build_inp_out_ids()
        if not hp.n_embd_per_layer:
            return (cur,)
        shape = (hp.n_embd_per_layer, hp.n_layer, n)
        tokens = ops.new_input(I32, n, name="inp_tokens_per_layer")
        selected = ops.get_rows(self.leaf("per_layer_token_embd.weight"), tokens)
        selected = self.cb(ops.scale(ops.reshape(selected, *shape)), "inp_per_layer_selected", -1)
        self.graph.expand(selected)
        made = ops.scale(ops.mul_mat(self.leaf("per_layer_model_proj.weight"), cur))
        made = self.norm(ops.reshape(made, *shape), self.leaf("per_layer_proj_norm.weight"), -1)
        self.cb(made, "per_layer_proj", -1)
        both = self.cb(ops.scale(ops.add(made, selected)), "inp_per_layer", -1)
        return cur, ops.cont(ops.permute(both, 0, 2, 1, 3))

    def layer(self, il: int, *given: Tensor) -> Cuts:
        """Attention, the feed-forward part, then what the embeddings of this layer add."""
        inp, *by_layer = given
        cur = self.cb(self.norm(inp, self.w(il, "attn_norm"), il), "attn_norm", il)
        cur = self.attention(cur, il)
        cur = self.cb(self.norm(cur, self.w(il, "post_attention_norm"), il), "attn_post_norm", il)
        attn_out, *by_layer = yield self.cb(ops.add(cur, inp), "attn_out", il), *by_layer
        cur = self.feed_forward(attn_out, il)
        cur = self.cb(self.norm(cur, self.w(il, "post_ffw_norm"), -1), "ffn_post_norm", il)
        cur = ops.add(cur, attn_out)
        if by_layer:
            cur = self.add_embeddings(cur, by_layer[0], il)
        if self.source.has("layer_output_scale.weight", il):
            cur = ops.mul(cur, self.w(il, "layer_output_scale"))
        return self.cb(cur, "l_out", il), *by_layer

    def is_last(self, il: int) -> bool:
        """No layer is the last in its own way: the tokens that are asked for are picked after the last norm."""
        return False

    def attention(self, cur: Tensor, il: int) -> Tensor:
        """Attention over the cache of the layer's kind, its own or another layer's."""
        hp, n = self.hp, cur.ne[1]
        head, heads, heads_kv = hp.n_embd_head_k(il), hp.n_head[il], hp.n_head_kv[il]
        factors = None if hp.slides(il) else self.leaf("rope_freqs.weight", il)
        joined = None
        if self.source.has("attn_qkv.weight", il):
            joined = self.cb(self.mm(il, "attn_qkv", cur), "wqkv", il)
        q = self.mm(il, "attn_q", cur) if joined is None else _columns(joined, 0, head * heads)
        q = ops.reshape(self.cb(q, "Qcur", il), head, heads, n)
        q = self.cb(self.norm(q, self.w(il, "attn_q_norm"), il), "Qcur_normed", il)
        q = self.cb(self.rope(q, self.inp_pos, il, factors), "Qcur_pos", il)
        if not hp.has_kv(il):
            return self.build_attn(self.inp_attn, q, None, None, il)
        if joined is not None:
            k = _columns(joined, head * heads, head * heads_kv)
            v = _columns(joined, head * (heads + heads_kv), head * heads_kv)
        else:
            k = self.mm(il, "attn_k", cur)
            v = self.mm(il, "attn_v", cur) if self.source.has("attn_v.weight", il) else k
        self.cb(k, "Kcur", il)
        self.cb(v, "Vcur", il)
        k, v = (ops.reshape(t, head, heads_kv, n) for t in (k, v))
        k = self.norm(k, self.w(il, "attn_k_norm"), il)
        v = self.cb(ops.rms_norm(v), "Vcur_normed", il)
        k = self.cb(self.rope(self.cb(k, "Kcur_normed", il), self.inp_pos, il, factors), "Kcur_pos", il)
        return self.build_attn(self.inp_attn, q, k, v, il)

    def feed_forward(self, attn_out: Tensor, il: int) -> Tensor:
        """A dense layer, perhaps with experts beside it, which have a router and norms of their own."""
        cur = self.norm(attn_out, self.w(il, "ffn_norm"), il)
        if not self.source.has("ffn_gate_inp.weight", il):
            return self.cb(self.build_ffn(self.cb(cur, "ffn_norm", il), il, "GELU"), "ffn_out", il)
        mlp = self.build_ffn(self.cb(cur, "ffn_norm_1", il), il, "GELU")
        mlp = self.cb(self.norm(mlp, self.w(il, "post_ffw_norm_1"), il), "ffn_mlp", il)
        moe = self.cb(self.norm(attn_out, self.w(il, "pre_ffw_norm_2"), il), "ffn_norm_2", il)
        routed = ops.mul(ops.scale(ops.rms_norm(attn_out)), self.leaf("ffn_gate_inp.scale", il))
        logits = self.cb(ops.mul_mat(self.w(il, "ffn_gate_inp"), routed), "ffn_moe_logits", il)
        moe = self.build_moe_ffn(moe, il, act="GELU", probs_in=logits)
        moe = self.cb(self.norm(moe, self.w(il, "post_ffw_norm_2"), il), "ffn_moe", il)
        return self.cb(ops.add(mlp, moe), "ffn_moe_combined", il)

    def add_embeddings(self, cur: Tensor, by_layer: Tensor, il: int) -> Tensor:
        """What the layer's own embeddings add, gated by the hidden state."""
        pe_in = self.cb(cur, "pe_in", il)
        cur = ops.unary(self.mm(il, "inp_gate", cur), "GELU")
        size, n, _, _ = by_layer.ne
        own = ops.view_2d(by_layer, size, n, by_layer.type.row_size(size), il * size * n * by_layer.type.type_size)
        cur = self.mm(il, "proj", ops.mul(cur, own))
        cur = self.cb(self.norm(cur, self.w(il, "post_norm"), il), "per_layer_embd_out", il)
        return ops.add(pe_in, cur)

    def tail(self, *given: Tensor) -> Tensor:
        """The last norm of all tokens, and the logits of those that are asked for."""
        return self.build_output_of_all(given[0], self.inp_out_ids)

    def logits(self, cur: Tensor) -> Tensor:
        """Within limits, where the model says so."""
        return self.softcapped(cur) if self.hp.softcaps else cur


def _columns(joined: Tensor, first: int, n: int) -> Tensor:
    """Some elements of each row, by themselves."""
    return ops.cont(ops.view_2d(joined, n, joined.ne[1], joined.nb[1], first * joined.type.type_size))


class Gemma4(Architecture[Gemma4HParams]):
    """``llama_model_gemma4``."""

    name = "gemma4"
    graph = Gemma4Graph

    def load_hparams(self, k: Keys, release: Release) -> Gemma4HParams:
        """``load_arch_hparams``."""
        fields = common(k, release)
        n_all = fields["n_layer_all"]
        shared = k.u32("attention.shared_kv_layers", 0)
        k.check(shared <= n_all - 2 or shared == 0, f"{shared} of {n_all} layers share caches; two must have their own")
        slides, own = swa_layers(k, n_all), n_all - shared
        alike = all(slides[own - (2 if slides[il] else 1)] == slides[il] for il in range(own, n_all))
        k.check(alike, f"layers from {own} on share the caches of the last two before, which are not of their kind")
        fields |= {"is_swa": slides, "n_swa": k.u32("attention.sliding_window")}
        k.f32("attention.layer_norm_rms_epsilon")
        k.u32("attention.key_length_swa")
        k.u32("attention.value_length_swa")
        for which in ("full", "swa"):
            same = fields[f"n_embd_head_k_{which}"] == fields[f"n_embd_head_v_{which}"]
            k.check(same, "heads of keys and of values must be of one size")
        return Gemma4HParams(
            **fields,
            n_layer_kv=n_all - shared,
            n_ff_exp=k.u32_a_layer("expert_feed_forward_length", n_all, 0)[0],
            n_embd_per_layer=k.u32("embedding_length_per_layer_input"),
            softcaps=k.f32("final_logit_softcapping", 0.0) != 0,
        )

    def tensors(self, hp: Gemma4HParams, have: Have, load_mtp: bool, release: Release) -> Iterator[Wanted]:
        """``load_arch_tensors``."""
        e, size = hp.n_embd, hp.n_embd_per_layer
        yield Wanted("output.weight", (e, hp.n_vocab), optional=True)
        if "output.weight" not in have:
            yield Wanted("token_embd.weight", (e, hp.n_vocab), role="output.weight", duplicated=True)
        yield Wanted("token_embd.weight", (e, hp.n_vocab))
        if size:
            lazy = release.reads_large_embeddings_lazily
            yield Wanted("per_layer_token_embd.weight", (size * hp.n_layer, hp.n_vocab), lazy=lazy)
            yield Wanted("per_layer_model_proj.weight", (e, size * hp.n_layer))
            yield Wanted("per_layer_proj_norm.weight", (size,))
        yield Wanted("output_norm.weight", (e,))
        turned = False
        for il in range(hp.n_layer):
            if not hp.slides(il):
                factors, role = (hp.n_embd_head_k(il) // 2,), f"blk.{il}.rope_freqs.weight"
                yield Wanted("rope_freqs.weight", factors, role=role, duplicated=turned)
                turned = True
            yield from _block(hp, have, il)

    def memory(self, hp: Gemma4HParams, build: CacheBuilder, release: Release) -> Memory:
        """Two caches; later layers share those of the last two with their own."""
        return iswa_memory(
            build, {il: hp.n_layer_kv - (2 if hp.slides(il) else 1) for il in range(hp.n_layer_kv, hp.n_layer)}
        )

    def layer_kind(self, hp: Gemma4HParams, il: int) -> bool:
        """Whether it writes keys and values."""
        return hp.has_kv(il)


def _block(hp: Gemma4HParams, have: Have, il: int) -> Iterator[Wanted]:
    p, e, n, head, size = f"blk.{il}.", hp.n_embd, hp.n_expert, hp.n_embd_head_k(il), hp.n_embd_per_layer
    wide, ff, none = head * hp.n_head[il], hp.n_ff[il], not hp.has_kv(il)
    k, v = hp.n_embd_k_gqa(il), hp.n_embd_v_gqa(il)
    yield Wanted(p + "attn_norm.weight", (e,))
    yield Wanted(p + "attn_qkv.weight", (e, wide + k + v), optional=True)
    if p + "attn_qkv.weight" not in have:
        yield Wanted(p + "attn_q.weight", (e, wide))
        yield Wanted(p + "attn_k.weight", (e, k), optional=none)
        yield Wanted(p + "attn_v.weight", (e, v), optional=True)
    yield Wanted(p + "attn_output.weight", (wide, e))
    yield Wanted(p + "attn_q_norm.weight", (head,))
    yield Wanted(p + "attn_k_norm.weight", (head,), optional=none)
    yield Wanted(p + "post_attention_norm.weight", (e,))
    yield Wanted(p + "layer_output_scale.weight", (1,), optional=True)
    yield Wanted(p + "ffn_norm.weight", (e,))
    yield from ffn(il, e, ff, parts="gate up down")
    yield Wanted(p + "post_ffw_norm.weight", (e,))
    yield Wanted(p + "ffn_gate_inp.weight", (e, n), optional=True)
    if p + "ffn_gate_inp.weight" in have:
        ff = hp.n_ff_exp
        yield Wanted(p + "ffn_gate_inp.scale", (e,))
        yield Wanted(p + "pre_ffw_norm_2.weight", (e,))
        yield Wanted(p + "post_ffw_norm_1.weight", (e,))
        yield Wanted(p + "post_ffw_norm_2.weight", (e,))
        yield Wanted(p + "ffn_gate_up_exps.weight", (e, 2 * ff, n), optional=True)
        if p + "ffn_gate_up_exps.weight" not in have:
            yield Wanted(p + "ffn_gate_exps.weight", (e, ff, n))
            yield Wanted(p + "ffn_up_exps.weight", (e, ff, n))
        yield Wanted(p + "ffn_down_exps.weight", (ff, e, n))
    if size:
        yield Wanted(p + "inp_gate.weight", (e, size))
        yield Wanted(p + "proj.weight", (size, e))
        yield Wanted(p + "post_norm.weight", (e,))


ARCHITECTURE = Gemma4()
