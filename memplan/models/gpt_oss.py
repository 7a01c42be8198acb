"""gpt-oss: every other layer slides, attention has sinks, experts have biases and are weighted after the choice.

Follows src/models/openai-moe.cpp, v0.5.0; releases from b9842 on do the same, but for where the last layer's tokens are
picked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.ggml.tensor import FLAG_OUTPUT
from memplan.llama.hparams import HParams, common, swa_pattern
from memplan.llama.weights import Have, Wanted, ffn, qkv
from memplan.models.base import Architecture, Cuts, KVGraph

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.llama.keys import Keys
    from memplan.releases import Release


@dataclass(frozen=True, kw_only=True)
class GptOssHParams(HParams):
    """``n_ff_exp``: width of an expert."""

    n_ff_exp: int


class GptOssGraph(KVGraph[GptOssHParams]):
    """``llama_model_openai_moe::graph``."""

    unscaled = ("ffn_",)

    def layer(self, il: int, *given: Tensor) -> Cuts:
        """Attention, then experts."""
        (inp,) = given
        cur = self.cb(self.norm(inp, self.w(il, "attn_norm"), il), "attn_norm", il)
        q, k, v = self.build_qkv(cur, il)
        q = self.cb(self.rope(q, self.inp_pos, il), "Qcur", il)
        k = self.cb(self.rope(k, self.inp_pos, il), "Kcur", il)
        cur = self.cb(self.build_attn(self.inp_attn, q, k, v, il), "attn_out", il)
        if not self.release.gpt_oss_hidden_states_of_all:
            cur, inp = self.rows_asked_for(il, cur, inp)
        ffn_inp = yield self.cb(ops.add(cur, inp), "ffn_inp", il)
        cur = self.cb(self.norm(ffn_inp, self.w(il, "post_attention_norm"), il), "attn_post_norm", il)
        cur = self.build_moe_ffn(cur, il, gating="SOFTMAX_WEIGHT", act="SWIGLU_OAI", norm_w=False)
        cur = self.cb(ops.add(cur, ffn_inp), "l_out", il)
        if self.is_last(il) and self.release.gpt_oss_hidden_states_of_all:
            cur.flags |= FLAG_OUTPUT  # drafts read it
        return cur

    def tail(self, *given: Tensor) -> Tensor:
        """The tokens that are asked for, if that was not done in the last layer, then the logits."""
        (cur,) = given
        if self.release.gpt_oss_hidden_states_of_all:
            cur = ops.get_rows(cur, self.inp_out_ids)
        return self.build_output(cur)


class GptOss(Architecture[GptOssHParams]):
    """``llama_model_openai_moe``."""

    name = "gpt-oss"
    tied_output = False
    graph = GptOssGraph

    def load_hparams(self, k: Keys, release: Release) -> GptOssHParams:
        """``load_arch_hparams``."""
        fields = common(k, release)
        k.f32("attention.layer_norm_rms_epsilon")
        n_ff_exp = k.u32_a_layer("expert_feed_forward_length", fields["n_layer_all"])[0]
        fields |= {"n_swa": k.u32("attention.sliding_window"), "is_swa": swa_pattern(k, fields, 2, release)}
        return GptOssHParams(**fields, n_ff_exp=n_ff_exp)

    def block(self, hp: GptOssHParams, have: Have, il: int, release: Release) -> Iterator[Wanted]:
        """A layer's weights (``load_arch_tensors``)."""
        e, n, ff = hp.n_embd, hp.n_expert, hp.n_ff_exp
        p, wide, narrow = f"blk.{il}.", hp.n_head[il] * hp.n_rot(), hp.n_head_kv[il] * hp.n_rot()
        yield Wanted(p + "attn_norm.weight", (e,))
        yield Wanted(p + "post_attention_norm.weight", (e,))
        yield from qkv(have, il, e, wide, narrow, narrow)
        yield Wanted(p + "attn_output.weight", (wide, e))
        yield Wanted(p + "attn_sinks.weight", (hp.n_head[il],))
        yield Wanted(p + "ffn_gate_inp.weight", (e, n))
        yield from ffn(il, e, ff, "_exps", n)
        yield Wanted(p + "attn_output.bias", (e,))
        yield Wanted(p + "ffn_gate_inp.bias", (n,))
        yield Wanted(p + "ffn_gate_exps.bias", (ff, n))
        yield Wanted(p + "ffn_down_exps.bias", (e, n))
        yield Wanted(p + "ffn_up_exps.bias", (ff, n))


ARCHITECTURE = GptOss()
