"""Gemma 3: five layers that slide to each with full attention, norms around both parts of a layer.

Follows src/models/gemma3.cpp, v0.5.0; releases from b9842 on do the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.llama.hparams import HParams, common, swa_pattern
from memplan.llama.weights import Have, Wanted, ffn, qkv
from memplan.models.base import Architecture, Cuts, KVGraph

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.llama.keys import Keys
    from memplan.releases import Release


@dataclass(frozen=True, kw_only=True)
class Gemma3HParams(HParams):
    """``softcaps``: whether logits are held within limits."""

    softcaps: bool


class Gemma3Graph(KVGraph[Gemma3HParams]):
    """``llama_model_gemma3::graph``."""

    unscaled = ("ffn_",)

    def embeddings(self) -> Tensor:
        """Those of the tokens, scaled."""
        return self.build_scaled_inp_embd()

    def layer(self, il: int, *given: Tensor) -> Cuts:
        """Attention, then the feed-forward part."""
        (inp,) = given
        cur = self.cb(self.norm(inp, self.w(il, "attn_norm"), il), "attn_norm", il)
        q, k, v = self.build_qkv(cur, il)
        q = self.cb(self.norm(q, self.w(il, "attn_q_norm"), il), "Qcur_normed", il)
        q = self.cb(self.rope(q, self.inp_pos, il), "Qcur", il)
        k = self.cb(self.norm(k, self.w(il, "attn_k_norm"), il), "Kcur_normed", il)
        k = self.cb(self.rope(k, self.inp_pos, il), "Kcur", il)
        q = ops.scale(q)
        cur = self.build_attn(self.inp_attn, q, k, v, il)
        cur, inp = self.rows_asked_for(il, cur, inp)
        cur = self.cb(self.norm(cur, self.w(il, "post_attention_norm"), il), "attn_post_norm", il)
        sa_out = yield self.cb(ops.add(cur, inp), "sa_out", il)
        cur = self.cb(self.norm(sa_out, self.w(il, "ffn_norm"), il), "ffn_norm", il)
        cur = self.cb(self.build_ffn(cur, il, "GELU"), "ffn_out", il)
        cur = self.cb(self.norm(cur, self.w(il, "post_ffw_norm"), -1), "ffn_post_norm", il)
        return self.cb(ops.add(cur, sa_out), "l_out", il)

    def logits(self, cur: Tensor) -> Tensor:
        """Within limits, where the model says so."""
        return self.softcapped(cur) if self.hp.softcaps else cur


class Gemma3(Architecture[Gemma3HParams]):
    """``llama_model_gemma3``."""

    name = "gemma3"
    graph = Gemma3Graph

    def load_hparams(self, k: Keys, release: Release) -> Gemma3HParams:
        """``load_arch_hparams``."""
        fields = common(k, release)
        fields["n_swa"] = k.u32("attention.sliding_window", 0)
        if fields["n_swa"]:
            fields["is_swa"] = swa_pattern(k, fields, 6, release)
        softcaps = k.f32("final_logit_softcapping", 0.0) != 0
        k.f32("attention.layer_norm_rms_epsilon")
        return Gemma3HParams(**fields, softcaps=softcaps)

    def block(self, hp: Gemma3HParams, have: Have, il: int, release: Release) -> Iterator[Wanted]:
        """A layer's weights (``load_arch_tensors``)."""
        e, head = hp.n_embd, hp.n_embd_head_k()
        p, wide, ff = f"blk.{il}.", head * hp.n_head[il], hp.n_ff[il]
        yield Wanted(p + "attn_norm.weight", (e,))
        yield from qkv(have, il, e, wide, hp.n_embd_k_gqa(il), hp.n_embd_v_gqa(il))
        yield Wanted(p + "attn_output.weight", (wide, e))
        yield Wanted(p + "post_attention_norm.weight", (e,))
        yield Wanted(p + "attn_k_norm.weight", (head,))
        yield Wanted(p + "attn_q_norm.weight", (head,))
        yield Wanted(p + "ffn_norm.weight", (e,))
        yield from ffn(il, e, ff, parts="gate up down")
        yield Wanted(p + "post_ffw_norm.weight", (e,))


ARCHITECTURE = Gemma3()
