"""MiniMax-M2: queries and keys normed over all heads at once and turned in part, sigmoid experts without shared ones.

Follows src/models/minimax-m2.cpp, v0.5.0; releases from b9842 on do the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.llama.graph.attention import Attention
from memplan.llama.hparams import HParams, common, expert_gating
from memplan.llama.weights import Have, Wanted, ffn, qkv
from memplan.models.base import Architecture, Cuts, KVGraph

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.llama.keys import Keys
    from memplan.releases import Release


@dataclass(frozen=True, kw_only=True)
class MiniMaxM2HParams(HParams):
    """``gating``: how experts are weighted; they are as wide as ``n_ff``."""

    gating: str


class MiniMaxM2Graph(KVGraph[MiniMaxM2HParams]):
    """``llama_model_minimax_m2::graph``."""

    unscaled = Attention.unscaled_rows

    def layer(self, il: int, *given: Tensor) -> Cuts:
        """Attention, then experts."""
        (inp,) = given
        hp, head, n = self.hp, self.hp.n_embd_head_v(il), inp.ne[1]
        cur = self.cb(self.norm(inp, self.w(il, "attn_norm"), il), "attn_norm", il)
        wide, narrow = head * hp.n_head[il], head * hp.n_head_kv[il]
        q, k, v = self.build_qkv_rows(cur, il, wide, narrow, narrow)
        for t, which in zip((q, k, v), "QKV", strict=True):
            self.cb(t, f"{which}cur", il)
        q = self.cb(self.norm(q, self.w(il, "attn_q_norm"), il), "Qcur_normed", il)
        k = self.cb(self.norm(k, self.w(il, "attn_k_norm"), il), "Kcur_normed", il)
        q = ops.reshape(q, head, hp.n_head[il], n)
        k = ops.reshape(k, head, hp.n_head_kv[il], n)
        v = self.cb(ops.reshape(v, head, hp.n_head_kv[il], n), "Vcur", il)
        q = self.cb(self.rope(q, self.inp_pos, il), "Qcur", il)
        k = self.cb(self.rope(k, self.inp_pos, il), "Kcur", il)
        cur = self.build_attn(self.inp_attn, q, k, v, il)
        cur, inp = self.rows_asked_for(il, cur, inp)
        ffn_inp = yield self.cb(ops.add(cur, inp), "ffn_inp", il)
        cur = self.cb(self.norm(ffn_inp, self.w(il, "ffn_norm"), il), "ffn_norm", il)
        cur = self.build_moe_ffn(cur, il, gating=hp.gating)
        return self.cb(ops.add(cur, ffn_inp), "l_out", il)


class MiniMaxM2(Architecture[MiniMaxM2HParams]):
    """``llama_model_minimax_m2``."""

    name = "minimax-m2"
    tied_output = False
    graph = MiniMaxM2Graph
    equal_heads = True

    def load_hparams(self, k: Keys, release: Release) -> MiniMaxM2HParams:
        """``load_arch_hparams``."""
        fields = common(k, release)
        k.f32("attention.layer_norm_rms_epsilon")
        k.u32_a_layer("expert_feed_forward_length", fields["n_layer_all"])
        return MiniMaxM2HParams(**fields, gating=expert_gating(k))

    def block(self, hp: MiniMaxM2HParams, have: Have, il: int, release: Release) -> Iterator[Wanted]:
        """A layer's weights (``load_arch_tensors``)."""
        e, n, head = hp.n_embd, hp.n_expert, hp.n_embd_head_k()
        p, wide, narrow, ff = f"blk.{il}.", head * hp.n_head[il], hp.n_embd_k_gqa(il), hp.n_ff[il]
        yield from qkv(have, il, e, wide, narrow, narrow)
        yield Wanted(p + "attn_output.weight", (wide, e))
        yield Wanted(p + "attn_norm.weight", (e,))
        yield Wanted(p + "attn_q_norm.weight", (wide,))
        yield Wanted(p + "attn_k_norm.weight", (narrow,))
        yield Wanted(p + "ffn_norm.weight", (e,))
        yield Wanted(p + "ffn_gate_inp.weight", (e, n))
        yield from ffn(il, e, ff, "_exps", n)
        yield Wanted(p + "exp_probs_b.bias", (n,))


ARCHITECTURE = MiniMaxM2()
