"""Step-3.5: three layers that slide to each with full attention, heads by layer, a gate on each head, limited units.

Follows src/models/step35.cpp, v0.5.0; releases from b9842 on do the same, but for what they load of MTP blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.ggml.tensor import FLAG_OUTPUT
from memplan.llama.graph.attention import Attention
from memplan.llama.hparams import HParams, common, expert_gating, swa_layers
from memplan.llama.weights import Have, Wanted, ffn, nextn, qkv, rope_factors
from memplan.models.base import Architecture, Cuts, KVGraph
from memplan.models.mtp import MTPBlock, MTPHead

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.llama.keys import Keys
    from memplan.releases import Release


@dataclass(frozen=True, kw_only=True)
class Step35HParams(HParams):
    """``swiglu_clamp_exp``, ``swiglu_clamp_shexp``: limits of gated units in routed experts and in all others."""

    n_ff_exp: int
    n_ff_shexp: int
    expert_weights_scale: float
    expert_weights_norm: bool
    gating: str
    swiglu_clamp_exp: tuple[float, ...]
    swiglu_clamp_shexp: tuple[float, ...]


class Step35Graph(KVGraph[Step35HParams]):
    """``llama_model_step35::graph``."""

    unscaled = Attention.unscaled_rows

    def layer(self, il: int, *given: Tensor) -> Cuts:
        """Attention with a gate, then a dense layer or experts."""
        (inp,) = given
        hp = self.hp
        cur = self.cb(self.norm(inp, self.w(il, "attn_norm"), il), "attn_norm", il)
        cur = self.cb(self.mm(il, "attn_output", self.attention(cur, il)), "attn_proj", il)
        ffn_inp = yield self.cb(ops.add(cur, inp), "ffn_inp", il)
        cur = self.cb(self.norm(ffn_inp, self.w(il, "ffn_norm"), il), "ffn_norm", il)
        if not self.source.has("ffn_gate_inp.weight", il):
            cur = self.build_ffn(cur, il)
        else:
            moe = self.build_moe_ffn(
                cur, il, gating=hp.gating, norm_w=hp.expert_weights_norm, w_scale=hp.expert_weights_scale
            )
            shared = self.cb(self.build_ffn(cur, il, suffix="_shexp"), "ffn_shared_out", il)
            cur = ops.add(moe, shared)
        cur = self.cb(ops.add(self.cb(cur, "ffn_out", il), ffn_inp), "l_out", il)
        if self.is_last(il):
            cur.flags |= FLAG_OUTPUT  # drafts read it
        return cur

    def attention(self, cur: Tensor, il: int) -> Tensor:
        """Attention over the cache of the layer's kind, each head gated."""
        hp, n, heads, heads_kv = self.hp, cur.ne[1], self.hp.n_head[il], self.hp.n_head_kv[il]
        head_k, head_v = hp.n_embd_head_k(), hp.n_embd_head_v()
        q, k, v = self.build_qkv_rows(cur, il, head_k * heads, head_k * heads_kv, head_v * heads_kv)
        q = self.cb(ops.reshape(self.cb(q, "Qcur", il), head_k, heads, n), "Qcur", il)
        k = self.cb(ops.reshape(self.cb(k, "Kcur", il), head_k, heads_kv, n), "Kcur", il)
        v = self.cb(ops.reshape(self.cb(v, "Vcur", il), head_v, heads_kv, n), "Vcur", il)
        if self.source.has("attn_q_norm.weight", il):
            q = self.cb(self.norm(q, self.w(il, "attn_q_norm"), il), "Qcur_normed", il)
        if self.source.has("attn_k_norm.weight", il):
            k = self.cb(self.norm(k, self.w(il, "attn_k_norm"), il), "Kcur_normed", il)
        factors = None if hp.slides(il) else self.rope_factors(il)
        q = self.cb(self.rope(q, self.inp_pos, il, factors), "Qcur_pos", il)
        k = self.cb(self.rope(k, self.inp_pos, il, factors), "Kcur_pos", il)
        out = self.cb(self.build_attn(self.inp_attn, q, k, v, il, out=""), "attn_out", il)
        if not self.source.has("attn_gate.weight", il):
            return out
        gate = self.cb(ops.mul_mat(self.w(il, "attn_gate"), cur), "attn_gate", il)
        gate = self.cb(ops.unary(gate, "SIGMOID"), "attn_gate_sigmoid", il)
        out = ops.reshape(out, head_v, heads, n)
        gate = self.cb(ops.reshape(gate, 1, heads, n), "attn_gate_3d", il)
        out = self.cb(ops.mul(out, gate), "attn_gated_3d", il)
        return self.cb(ops.reshape(out, head_v * heads, n), "attn_gated", il)

    def swiglu_limit(self, il: int, *, shared: bool) -> float:
        """The limit of a layer's gated unit."""
        return (self.hp.swiglu_clamp_shexp if shared else self.hp.swiglu_clamp_exp)[il]

    def tail(self, *given: Tensor) -> Tensor:
        """The tokens that are asked for, then the logits."""
        return self.build_output(ops.get_rows(given[0], self.inp_out_ids))


class Step35MTPGraph(MTPHead[Step35HParams], Step35Graph):
    """``llama_model_step35::graph_mtp``, of the first of the model's MTP blocks."""

    takes_rows = "before norm"


class Step35(Architecture[Step35HParams]):
    """``llama_model_step35``."""

    name = "step35"
    tied_output = False
    always_drafts_since = 0
    graph = Step35Graph

    def load_hparams(self, k: Keys, release: Release) -> Step35HParams:
        """``load_arch_hparams``."""
        fields = common(k, release)
        n_all = fields["n_layer_all"]
        k.f32("attention.layer_norm_rms_epsilon")
        fields["n_rot_full"] //= 2  # full attention turns half of what the file says
        n_ff_exp = k.u32_a_layer("expert_feed_forward_length", n_all)[0]
        gating = expert_gating(k, 2)
        fields |= {"n_swa": k.u32("attention.sliding_window"), "is_swa": swa_layers(k, n_all)}
        return Step35HParams(
            **fields,
            n_ff_exp=n_ff_exp,
            n_ff_shexp=k.u32("expert_shared_feed_forward_length", 0),
            expert_weights_scale=k.f32("expert_weights_scale", 0.0),
            expert_weights_norm=k.flag("expert_weights_norm", False),
            gating=gating,
            swiglu_clamp_exp=k.f32_a_layer("swiglu_clamp_exp", n_all, 0.0),
            swiglu_clamp_shexp=k.f32_a_layer("swiglu_clamp_shexp", n_all, 0.0),
        )

    def block(self, hp: Step35HParams, have: Have, il: int, release: Release) -> Iterator[Wanted]:
        """A layer's weights (``load_arch_tensors``)."""
        return _block(hp, have, il, optional=False, skip=False)

    def mtp_block(self, hp: Step35HParams, have: Have, il: int, release: Release, *, skip: bool) -> Iterator[Wanted]:
        """A layer's weights, and what drafts."""
        none = f"blk.{hp.n_layer}.nextn.eh_proj.weight" not in have
        yield from _block(hp, have, il, none, skip)
        yield from (replace(w, optional=w.optional or none, skip=skip and not w.optional) for w in nextn(hp, il))


def _block(hp: Step35HParams, have: Have, il: int, optional: bool, skip: bool) -> Iterator[Wanted]:
    """A layer's weights; of an MTP block that is skipped, those that not every layer has are loaded all the same."""
    p, e, n, ff, heads = f"blk.{il}.", hp.n_embd, hp.n_expert, hp.n_ff[0], hp.n_head[il]
    head_k, head_v = hp.n_embd_head_k(), hp.n_embd_head_v()
    wide = head_k * heads
    yield Wanted(p + "attn_norm.weight", (e,), optional, skip=skip)
    yield Wanted(p + "attn_q_norm.weight", (head_k,), optional=True)
    yield Wanted(p + "attn_k_norm.weight", (head_k,), optional=True)
    yield from rope_factors(il, max(hp.n_rot(i) for i in range(hp.n_layer)), hp.rope_scaling)
    yield from qkv(have, il, e, wide, hp.n_embd_k_gqa(il), hp.n_embd_v_gqa(il), skip)
    yield Wanted(p + "attn_output.weight", (head_v * heads, e), optional, skip=skip)
    yield Wanted(p + "attn_gate.weight", (e, heads), optional=True)
    yield Wanted(p + "ffn_norm.weight", (e,), optional, skip=skip)
    yield from ffn(il, e, ff, optional=True)
    # asked for as optional, too; but no layer with a router runs without its experts
    routed = optional or p + "ffn_gate_inp.weight" not in have
    ff = hp.n_ff_exp
    yield Wanted(p + "ffn_gate_inp.weight", (e, n), routed)
    yield from ffn(il, e, ff, "_exps", n, optional=routed)
    yield Wanted(p + "exp_probs_b.bias", (n,), optional=True)
    ff = hp.n_ff_shexp
    yield from ffn(il, e, ff, "_shexp", parts="gate up down", optional=True)


class Step35MTP(MTPBlock[Step35HParams], Step35):
    """The first of its own MTP blocks; caches are of all of them."""

    graph = Step35MTPGraph
    one_block = False


ARCHITECTURE = Step35(mtp=Step35MTP())
