"""Qwen3 with experts: grouped-query attention with normed heads, experts chosen by softmax.

Follows src/models/qwen3moe.cpp, v0.5.0; releases from b9842 on do the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.llama.hparams import HParams, common
from memplan.llama.weights import Have, Wanted, ffn, qkv
from memplan.models.base import Architecture, Cuts
from memplan.models.qwen3 import Qwen3Attention

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.llama.keys import Keys
    from memplan.releases import Release


@dataclass(frozen=True, kw_only=True)
class Qwen3MoeHParams(HParams):
    """``n_ff_exp``: width of an expert."""

    n_ff_exp: tuple[int, ...]
    expert_weights_scale: float


class Qwen3MoeGraph(Qwen3Attention[Qwen3MoeHParams]):
    """``llama_model_qwen3moe::graph``."""

    def layer(self, il: int, *given: Tensor) -> Cuts:
        """Attention, then experts."""
        (inp,) = given
        ffn_inp = yield self.normed_attention(inp, il)
        cur = self.cb(self.norm(ffn_inp, self.w(il, "ffn_norm"), il), "ffn_norm", il)
        cur = self.build_moe_ffn(cur, il, w_scale=self.hp.expert_weights_scale)
        return self.cb(ops.add(cur, ffn_inp), "l_out", il)


class Qwen3Moe(Architecture[Qwen3MoeHParams]):
    """``llama_model_qwen3moe``."""

    name = "qwen3moe"
    graph = Qwen3MoeGraph
    whole_rope = True

    def load_hparams(self, k: Keys, release: Release) -> Qwen3MoeHParams:
        """``load_arch_hparams``."""
        fields = common(k, release)
        n_all = fields["n_layer_all"]
        k.check(fields["n_expert"] > 0, "expert_count must not be zero")
        used = max(1, max(fields["n_expert_used"]))
        n_ff_exp = k.u32_a_layer("expert_feed_forward_length", n_all, 0)
        if not any(n_ff_exp):
            n_ff_exp = tuple(n // used for n in fields["n_ff"])
        k.f32("attention.layer_norm_rms_epsilon")
        return Qwen3MoeHParams(**fields, n_ff_exp=n_ff_exp, expert_weights_scale=k.f32("expert_weights_scale", 0.0))

    def block(self, hp: Qwen3MoeHParams, have: Have, il: int, release: Release) -> Iterator[Wanted]:
        """A layer's weights (``load_arch_tensors``)."""
        e, n = hp.n_embd, hp.n_expert
        p, heads, ff = f"blk.{il}.", hp.n_embd_head_k(il) * hp.n_head[il], hp.n_ff_exp[il]
        yield Wanted(p + "attn_norm.weight", (e,))
        yield from qkv(have, il, e, heads, hp.n_embd_k_gqa(il), hp.n_embd_v_gqa(il))
        yield Wanted(p + "attn_output.weight", (heads, e))
        yield Wanted(p + "attn_k_norm.weight", (hp.n_embd_head_k(il),))
        yield Wanted(p + "attn_q_norm.weight", (hp.n_embd_head_k(il),))
        yield Wanted(p + "ffn_norm.weight", (e,))
        yield Wanted(p + "ffn_gate_inp.weight", (e, n))
        yield from ffn(il, e, ff, "_exps", n)


ARCHITECTURE = Qwen3Moe()
