"""Llama and what is built like it: grouped-query attention, a gated feed-forward layer or experts chosen by softmax.

Follows src/models/llama.cpp, v0.5.0; releases from b9842 on do the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.llama.graph.base import NORM, H
from memplan.llama.hparams import HParams, common
from memplan.llama.weights import Have, Wanted, ffn, qkv, rope_factors
from memplan.models.base import Architecture, Cuts, KVGraph

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.llama.keys import Keys
    from memplan.releases import Release


class LlamaGraph(KVGraph[H]):
    """``llama_model_llama::graph``."""

    rope_type = NORM

    def attention_inputs(self) -> None:
        """What queries are multiplied with, if they are, besides."""
        self.inp_attn_scale = self.build_inp_attn_scale() if self.scales_queries else None
        super().attention_inputs()

    @property
    def scales_queries(self) -> bool:
        """Whether queries are multiplied by position."""
        return False

    def layer(self, il: int, *given: Tensor) -> Cuts:
        """Attention, then the feed-forward part."""
        (inp,) = given
        cur = self.cb(self.norm(inp, self.w(il, "attn_norm"), il), "attn_norm", il)
        factors = self.rope_factors(il)
        q, k, v = self.build_qkv(cur, il)
        q = self.cb(self.rope(q, self.inp_pos, il, factors), "Qcur", il)
        k = self.cb(self.rope(k, self.inp_pos, il, factors), "Kcur", il)
        if self.inp_attn_scale is not None:
            q = self.cb(ops.mul(q, self.inp_attn_scale), "Qcur_attn_temp_scaled", il)
        cur = self.cb(self.build_attn(self.inp_attn, q, k, v, il), "attn_out", il)
        cur, inp = self.rows_asked_for(il, cur, inp)
        ffn_inp = yield self.cb(ops.add(cur, inp), "ffn_inp", il)
        cur = self.cb(self.norm(ffn_inp, self.w(il, "ffn_norm"), il), "ffn_norm", il)
        if self.source.has("ffn_gate_inp.weight", il):
            cur = self.build_moe_ffn(cur, il)
        else:
            cur = self.cb(self.build_ffn(cur, il), "ffn_out", il)
        return self.cb(ops.add(cur, ffn_inp), "l_out", il)


class LlamaLike(Architecture[H]):
    """What ``llama_model_llama`` shares with ``llama_model_mistral3``."""

    whole_rope = True

    def block(self, hp: H, have: Have, il: int, release: Release) -> Iterator[Wanted]:
        """A layer's weights (``load_arch_tensors``)."""
        e, n = hp.n_embd, hp.n_expert
        p, heads, ff = f"blk.{il}.", hp.n_embd_head_k(il) * hp.n_head[il], hp.n_ff[il]
        yield Wanted(p + "attn_norm.weight", (e,))
        yield from qkv(have, il, e, heads, hp.n_embd_k_gqa(il), hp.n_embd_v_gqa(il))
        yield Wanted(p + "attn_output.weight", (heads, e))
        yield Wanted(p + "attn_output.bias", (e,), optional=True)
        yield Wanted(p + "ffn_norm.weight", (e,))
        yield from rope_factors(il, hp.n_rot(), hp.rope_scaling)
        if n == 0:
            yield from ffn(il, e, ff)
            yield Wanted(p + "ffn_gate.bias", (ff,), optional=True)
            yield Wanted(p + "ffn_down.bias", (e,), optional=True)
            yield Wanted(p + "ffn_up.bias", (ff,), optional=True)
        else:
            yield Wanted(p + "ffn_gate_inp.weight", (e, n))
            yield Wanted(p + "ffn_gate_exps.weight", (e, ff, n), optional=True)
            yield Wanted(p + "ffn_down_exps.weight", (ff, e, n))
            yield Wanted(p + "ffn_up_exps.weight", (e, ff, n))


class Llama(LlamaLike[HParams]):
    """``llama_model_llama``."""

    name = "llama"
    graph = LlamaGraph[HParams]

    def load_hparams(self, k: Keys, release: Release) -> HParams:
        """``load_arch_hparams``."""
        fields = common(k, release)
        k.f32("attention.layer_norm_rms_epsilon")
        return HParams(**fields)


ARCHITECTURE = Llama()
