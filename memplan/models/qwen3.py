"""Qwen3 without experts: grouped-query attention with normed heads, a gated feed-forward layer.

Follows src/models/qwen3.cpp, v0.5.0; releases from b9842 on do the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.llama.graph.base import H
from memplan.llama.hparams import HParams, common
from memplan.llama.weights import Have, Wanted, ffn, qkv
from memplan.models.base import Architecture, Cuts, KVGraph

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.llama.keys import Keys
    from memplan.releases import Release


class Qwen3Attention(KVGraph[H]):
    """What Qwen3's layers have in common, with experts or without."""

    def normed_attention(self, inp: Tensor, il: int) -> Tensor:
        """Attention over heads that are normed and turned, added to what came in."""
        cur = self.cb(self.norm(inp, self.w(il, "attn_norm"), il), "attn_norm", il)
        q, k, v = self.build_qkv(cur, il)
        q = self.cb(self.norm(q, self.w(il, "attn_q_norm"), il), "Qcur_normed", il)
        q = self.cb(self.rope(q, self.inp_pos, il), "Qcur", il)
        k = self.cb(self.norm(k, self.w(il, "attn_k_norm"), il), "Kcur_normed", il)
        k = self.cb(self.rope(k, self.inp_pos, il), "Kcur", il)
        cur = self.build_attn(self.inp_attn, q, k, v, il)
        cur, inp = self.rows_asked_for(il, cur, inp)
        return self.cb(ops.add(cur, inp), "ffn_inp", il)


class Qwen3Graph(Qwen3Attention[HParams]):
    """``llama_model_qwen3::graph``."""

    def layer(self, il: int, *given: Tensor) -> Cuts:
        """Attention, then the feed-forward part."""
        (inp,) = given
        ffn_inp = yield self.normed_attention(inp, il)
        cur = self.cb(self.norm(ffn_inp, self.w(il, "ffn_norm"), il), "ffn_norm", il)
        cur = self.cb(self.build_ffn(cur, il), "ffn_out", il)
        return self.cb(ops.add(cur, ffn_inp), "l_out", il)


class Qwen3(Architecture[HParams]):
    """``llama_model_qwen3``."""

    name = "qwen3"
    graph = Qwen3Graph
    whole_rope = True

    def load_hparams(self, k: Keys, release: Release) -> HParams:
        """``load_arch_hparams``."""
        fields = common(k, release)
        k.f32("attention.layer_norm_rms_epsilon")
        return HParams(**fields)

    def block(self, hp: HParams, have: Have, il: int, release: Release) -> Iterator[Wanted]:
        """A layer's weights (``load_arch_tensors``)."""
        e = hp.n_embd
        p, head, ff = f"blk.{il}.", hp.n_embd_head_k(il), hp.n_ff[il]
        yield Wanted(p + "attn_norm.weight", (e,))
        yield from qkv(have, il, e, head * hp.n_head[il], hp.n_embd_k_gqa(il), hp.n_embd_k_gqa(il))
        yield Wanted(p + "attn_output.weight", (head * hp.n_head[il], e))
        yield Wanted(p + "attn_k_norm.weight", (head,))
        yield Wanted(p + "attn_q_norm.weight", (head,))
        yield Wanted(p + "ffn_norm.weight", (e,))
        yield from ffn(il, e, ff)


ARCHITECTURE = Qwen3()
