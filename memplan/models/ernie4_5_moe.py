"""ERNIE 4.5 with experts: grouped-query attention, leading dense layers, softmax experts with shared ones beside them.

Follows src/models/ernie4-5-moe.cpp and src/models/ernie4-5.cpp, v0.5.0; releases from b9842 on do the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.llama.graph.base import NORM
from memplan.llama.hparams import HParams, common
from memplan.llama.weights import Have, Wanted, ffn, qkv
from memplan.models.base import Architecture, Cuts, KVGraph

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.llama.keys import Keys
    from memplan.releases import Release


@dataclass(frozen=True, kw_only=True)
class Ernie45MoeHParams(HParams):
    """``n_ff_exp``: width of an expert.  ``n_ff_shexp``: of the shared ones together, 0 where there are none.

    ``n_moe_layer_step``: of as many layers after the dense ones the last uses its experts.
    """

    n_layer_dense_lead: int
    n_ff_exp: int
    n_ff_shexp: int
    n_moe_layer_step: int


class Ernie45MoeGraph(KVGraph[Ernie45MoeHParams]):
    """``llama_model_ernie4_5_moe::graph``."""

    unscaled = ("ffn_",)

    rope_type = NORM

    def layer(self, il: int, *given: Tensor) -> Cuts:
        """Attention, then a dense layer or experts."""
        (inp,) = given
        cur = self.cb(self.norm(inp, self.w(il, "attn_norm"), il), "attn_norm", il)
        q, k, v = self.build_qkv(cur, il)
        q = self.cb(self.rope(q, self.inp_pos, il), "Qcur", il)
        k = self.cb(self.rope(k, self.inp_pos, il), "Kcur", il)
        # a bias of the output projection is loaded, and not added
        cur = self.build_attn(self.inp_attn, q, k, v, il, out="")
        cur = self.cb(self.mm(il, "attn_output", cur), "attn_out", il)
        cur, inp = self.rows_asked_for(il, cur, inp)
        ffn_inp = yield self.cb(ops.add(cur, inp), "ffn_inp", il)
        cur = self.cb(self.norm(ffn_inp, self.w(il, "ffn_norm"), il), "ffn_norm", il)
        if il < self.hp.n_layer_dense_lead or (il + 1) % self.hp.n_moe_layer_step:
            cur = self.build_ffn(cur, il)  # layers between those that use experts have no dense weights
        else:
            moe = self.build_moe_ffn(cur, il)
            if self.hp.n_ff_shexp:
                moe = ops.add(moe, self.cb(self.build_ffn(cur, il, suffix="_shexp"), "ffn_shexp", il))
            cur = moe
        return self.cb(ops.add(self.cb(cur, "ffn_out", il), ffn_inp), "l_out", il)


class Ernie45Moe(Architecture[Ernie45MoeHParams]):
    """``llama_model_ernie4_5_moe``."""

    name = "ernie4_5-moe"
    graph = Ernie45MoeGraph
    whole_rope = True

    def load_hparams(self, k: Keys, release: Release) -> Ernie45MoeHParams:
        """``load_arch_hparams``."""
        fields = common(k, release)
        k.f32("attention.layer_norm_rms_epsilon")
        n_ff_exp = k.u32_a_layer("expert_feed_forward_length", fields["n_layer_all"])[0]
        n_ff_shexp = k.u32("expert_shared_feed_forward_length", 0)
        k.u32_a_layer("rope.dimension_sections", 4, 0)
        step = k.u32("interleave_moe_layer_step")
        k.check(step > 0, "interleave_moe_layer_step must not be zero")
        k.check(fields["n_expert"] > 0, "expert_count must not be zero")
        return Ernie45MoeHParams(
            **fields,
            n_layer_dense_lead=k.u32("leading_dense_block_count", 0),
            n_ff_exp=n_ff_exp,
            n_ff_shexp=n_ff_shexp,
            n_moe_layer_step=step,
        )

    def layer_kind(self, hp: Ernie45MoeHParams, il: int) -> bool:
        """Whether a layer that has experts uses them."""
        return (il + 1) % hp.n_moe_layer_step == 0

    def block(self, hp: Ernie45MoeHParams, have: Have, il: int, release: Release) -> Iterator[Wanted]:
        """A layer's weights (``load_arch_tensors``)."""
        e, n = hp.n_embd, hp.n_expert
        p, heads, ff = f"blk.{il}.", hp.n_embd_head_k() * hp.n_head[0], hp.n_ff[0]
        yield Wanted(p + "attn_norm.weight", (e,))
        yield from qkv(have, il, e, heads, hp.n_embd_k_gqa(), hp.n_embd_k_gqa())
        yield Wanted(p + "attn_output.weight", (heads, e))
        yield Wanted(p + "attn_output.bias", (e,), optional=True)
        yield Wanted(p + "ffn_norm.weight", (e,))
        if il < hp.n_layer_dense_lead:
            yield from ffn(il, e, ff)
            return
        ff, shared = hp.n_ff_exp, hp.n_ff_shexp
        yield Wanted(p + "ffn_gate_inp.weight", (e, n))
        yield Wanted(p + "exp_probs_b.bias", (n,), optional=True)
        yield Wanted(p + "ffn_gate_exps.weight", (e, ff, n), optional=True)
        yield Wanted(p + "ffn_down_exps.weight", (ff, e, n))
        yield Wanted(p + "ffn_up_exps.weight", (e, ff, n))
        if shared:
            yield from ffn(il, e, shared, "_shexp")


ARCHITECTURE = Ernie45Moe()
