"""Llama 4: three layers that see their own chunk, turned by position, to each that sees all, scaled by it.

Follows src/models/llama4.cpp, v0.5.0; releases from b9842 on do the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.llama.graph.base import NORM
from memplan.llama.hparams import HParams, common, swa_pattern
from memplan.llama.weights import Have, Wanted, ffn, qkv, rope_factors
from memplan.models.base import Architecture, Cuts, KVGraph

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.llama.keys import Keys
    from memplan.releases import Release

CHUNK = 8192
"""Tokens of a chunk, whatever the file says."""

NO_ROPE_STEP = 4
"""Each so many-th layer does without rotary positions."""


@dataclass(frozen=True, kw_only=True)
class Llama4HParams(HParams):
    """``n_moe_layer_step``: each so many-th layer has experts.  ``no_rope_step``: each so many-th has no positions.

    ``use_kq_norm``: whether queries and keys are normed, without weights.
    """

    n_ff_exp: int
    n_moe_layer_step: int
    no_rope_step: int
    use_kq_norm: bool


class Llama4Graph(KVGraph[Llama4HParams]):
    """``llama_model_llama4::graph``."""

    unscaled = ("ffn_",)

    rope_type = NORM

    def attention_inputs(self) -> None:
        """What queries of some layers are multiplied with, besides."""
        self.inp_attn_scale = self.build_inp_attn_scale()
        super().attention_inputs()

    def layer(self, il: int, *given: Tensor) -> Cuts:
        """Attention, then a dense layer or experts."""
        (inp,) = given
        hp = self.hp
        use_rope = (il + 1) % hp.no_rope_step != 0
        cur = self.cb(self.norm(inp, self.w(il, "attn_norm"), il), "attn_norm", il)
        q, k, v = self.build_qkv(cur, il)
        if use_rope:
            factors = self.rope_factors(il)
            q, k = self.rope(q, self.inp_pos, il, factors), self.rope(k, self.inp_pos, il, factors)
        else:
            q = ops.mul(q, self.inp_attn_scale)
        self.cb(q, "Qcur", il)
        self.cb(k, "Kcur", il)
        if use_rope and hp.use_kq_norm:
            q = self.cb(ops.rms_norm(q), "Qcur_normed", il)
            k = self.cb(ops.rms_norm(k), "Kcur_normed", il)
        cur = self.cb(self.build_attn(self.inp_attn, q, k, v, il), "attn_out", il)
        cur, inp = self.rows_asked_for(il, cur, inp)
        ffn_inp = yield self.cb(ops.add(cur, inp), "ffn_inp", il)
        cur = self.norm(ffn_inp, self.w(il, "ffn_norm"), il)
        if not self.source.has("ffn_gate_inp.weight", il):
            cur = self.cb(self.build_ffn(self.cb(cur, "ffn_norm", il), il), "ffn_out", il)
        else:
            moe = self.build_moe_ffn(cur, il, gating="SIGMOID", norm_w=False, weight_before_ffn=True)
            shared = self.cb(self.build_ffn(cur, il, suffix="_shexp"), "ffn_moe_shexp", il)
            cur = self.cb(ops.add(moe, shared), "ffn_moe_out_merged", il)
        return self.cb(ops.add(cur, ffn_inp), "l_out", il)

    def select_experts(self, logits: Tensor, probs: Tensor, il: int) -> Tensor:
        """The experts of each token, chosen by what the router says before it is made a weight."""
        return super().select_experts(logits, logits, il)


class Llama4(Architecture[Llama4HParams]):
    """``llama_model_llama4``."""

    name = "llama4"
    graph = Llama4Graph
    whole_rope = True

    def load_hparams(self, k: Keys, release: Release) -> Llama4HParams:
        """``load_arch_hparams``."""
        fields = common(k, release)
        k.f32("attention.layer_norm_rms_epsilon")
        n_ff_exp = k.u32_a_layer("expert_feed_forward_length", fields["n_layer_all"])[0]
        step = k.u32("interleave_moe_layer_step")
        k.check(fields["n_expert"] > 0, "llama4 model cannot have zero experts")
        no_rope_step = fields["n_layer_all"] - fields["n_layer_nextn"]
        if k.u32("attention.sliding_window", CHUNK):
            no_rope_step = NO_ROPE_STEP
            fields |= {"n_swa": CHUNK, "is_swa": swa_pattern(k, fields, 4, release)}
        return Llama4HParams(
            **fields,
            n_ff_exp=n_ff_exp,
            n_moe_layer_step=step,
            no_rope_step=no_rope_step,
            use_kq_norm=fields["n_expert"] != 128,
        )

    def block(self, hp: Llama4HParams, have: Have, il: int, release: Release) -> Iterator[Wanted]:
        """A layer's weights (``load_arch_tensors``)."""
        e, n = hp.n_embd, hp.n_expert
        p, wide, ff = f"blk.{il}.", hp.n_embd_head_k() * hp.n_head[il], hp.n_ff[il]
        yield Wanted(p + "attn_norm.weight", (e,))
        yield from qkv(have, il, e, wide, hp.n_embd_k_gqa(il), hp.n_embd_v_gqa(il))
        yield Wanted(p + "attn_output.weight", (wide, e))
        yield Wanted(p + "ffn_norm.weight", (e,))
        yield from rope_factors(il, hp.n_rot(), "")
        if hp.n_moe_layer_step and (il + 1) % hp.n_moe_layer_step == 0:
            ff = hp.n_ff_exp
            yield Wanted(p + "ffn_gate_inp.weight", (e, n))
            yield from ffn(il, e, ff, "_exps", n)
            yield from ffn(il, e, ff, "_shexp")
        else:
            yield from ffn(il, e, ff)

    def layer_kind(self, hp: Llama4HParams, il: int) -> bool:
        """Whether its heads are turned."""
        return (il + 1) % hp.no_rope_step != 0


ARCHITECTURE = Llama4()
