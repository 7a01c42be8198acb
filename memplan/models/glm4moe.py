"""GLM-4.5 and its like: grouped-query attention turned in part, leading dense layers, sigmoid experts with shared ones.

Follows src/models/glm4-moe.cpp, v0.5.0; releases from b9842 on do the same, but for what they load and keep of the MTP
block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.llama.hparams import HParams, common, expert_gating
from memplan.llama.weights import Have, Wanted, ffn, qkv
from memplan.models.base import Architecture, Cuts, KVGraph
from memplan.models.mtp import MTPBlock, MTPHead, drafting_block

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.llama.keys import Keys
    from memplan.releases import Release


@dataclass(frozen=True, kw_only=True)
class Glm4MoeHParams(HParams):
    """``n_ff_exp``: width of an expert.  ``sections``: parts of a head by position, where a token has four."""

    n_layer_dense_lead: int
    n_ff_exp: int
    n_expert_shared: int
    expert_weights_scale: float
    expert_weights_norm: bool
    gating: str
    sections: tuple[int, ...]

    @property
    def use_mrope(self) -> bool:
        """Whether a token has four positions (``llama_hparams::use_mrope``)."""
        return len(self.sections) > 1 and self.sections[0] > 0 and self.sections[1] > 0

    @property
    def n_pos_per_embd(self) -> int:
        """Positions a token."""
        return 4 if self.use_mrope else 1

    def of_layer(self, il: int) -> tuple[object, ...]:
        """Sections are no values of layers; which layers are dense is told by their weights."""
        return ()


class Glm4MoeGraph(KVGraph[Glm4MoeHParams]):
    """``llama_model_glm4_moe::graph``."""

    unscaled = ("ffn_",)

    def head(self) -> Tensor:
        """Embeddings."""
        if self.hp.use_mrope:
            self.rope_type = ops.ROPE_MROPE
        return super().head()

    def layer(self, il: int, *given: Tensor) -> Cuts:
        """Attention, then a dense layer or experts."""
        (inp,) = given
        hp = self.hp
        cur = self.cb(self.norm(inp, self.w(il, "attn_norm"), il), "attn_norm", il)
        q, k, v = self.build_qkv(cur, il)
        if self.source.has("attn_q_norm.weight", il):
            q = self.cb(self.norm(q, self.w(il, "attn_q_norm"), il), "Qcur_normed", il)
        if self.source.has("attn_k_norm.weight", il):
            k = self.cb(self.norm(k, self.w(il, "attn_k_norm"), il), "Kcur_normed", il)
        q = self.cb(self.rope(q, self.inp_pos, il), "Qcur", il)
        k = self.cb(self.rope(k, self.inp_pos, il), "Kcur", il)
        cur = self.build_attn(self.inp_attn, q, k, v, il)
        cur, inp = self.rows_asked_for(il, cur, inp)
        ffn_inp = yield self.cb(ops.add(cur, inp), "ffn_inp", il)
        cur = self.cb(self.norm(ffn_inp, self.w(il, "post_attention_norm"), il), "post_attn_norm", il)
        if il < hp.n_layer_dense_lead:
            cur = self.build_ffn(cur, il)
        else:
            moe = self.build_moe_ffn(
                cur, il, gating=hp.gating, norm_w=hp.expert_weights_norm, w_scale=hp.expert_weights_scale
            )
            shared = self.cb(self.build_ffn(cur, il, suffix="_shexp"), "ffn_shexp_out", il)
            cur = ops.add(moe, shared)
        return self.cb(ops.add(self.cb(cur, "ffn_out", il), ffn_inp), "l_out", il)


class Glm4MoeMTPGraph(MTPHead[Glm4MoeHParams], Glm4MoeGraph):
    """``llama_model_glm4_moe::graph_mtp``."""


class Glm4Moe(Architecture[Glm4MoeHParams]):
    """``llama_model_glm4_moe``."""

    name = "glm4moe"
    graph = Glm4MoeGraph
    equal_heads = True

    def load_hparams(self, k: Keys, release: Release) -> Glm4MoeHParams:
        """``load_arch_hparams``."""
        fields = common(k, release)
        n_ff_exp = k.u32_a_layer("expert_feed_forward_length", fields["n_layer_all"])[0]
        k.f32("attention.layer_norm_rms_epsilon")
        shared = k.u32("expert_shared_count")
        gating = expert_gating(k, 2)
        k.check(fields["n_expert"] > 0 and fields["n_expert_used"][0] > 0, "there must be experts, some of them used")
        k.check(shared > 0, "expert_shared_count is 0, and the graph has shared experts")
        sections = k.value("rope.dimension_sections")
        return Glm4MoeHParams(
            **fields,
            n_layer_dense_lead=k.u32("leading_dense_block_count", 0),
            n_ff_exp=n_ff_exp or fields["n_ff"][0] // fields["n_expert_used"][0],
            n_expert_shared=shared,
            expert_weights_scale=k.f32("expert_weights_scale", 0.0),
            expert_weights_norm=k.flag("expert_weights_norm", False),
            gating=gating,
            sections=k.u32_a_layer("rope.dimension_sections", 4) if sections is not None else (),
        )

    def block(self, hp: Glm4MoeHParams, have: Have, il: int, release: Release, skip: bool = False) -> Iterator[Wanted]:
        """A layer's weights (``load_arch_tensors``); ``skip``: of a block that is not loaded."""
        p, e, n, size, ff = f"blk.{il}.", hp.n_embd, hp.n_expert, hp.n_embd_head_k(), hp.n_ff[0]
        yield Wanted(p + "attn_norm.weight", (e,))
        yield from qkv(have, il, e, size * hp.n_head[0], hp.n_embd_k_gqa(), hp.n_embd_v_gqa(), skip)
        yield Wanted(p + "attn_output.weight", (size * hp.n_head[0], e))
        yield Wanted(p + "attn_q_norm.weight", (size,), optional=True)
        yield Wanted(p + "attn_k_norm.weight", (size,), optional=True)
        yield Wanted(p + "post_attention_norm.weight", (e,))
        if il < hp.n_layer_dense_lead:
            yield from ffn(il, e, ff)
            return
        ff = hp.n_ff_exp
        shared = ff * hp.n_expert_shared
        yield Wanted(p + "ffn_gate_inp.weight", (e, n))
        yield Wanted(p + "exp_probs_b.bias", (n,))
        yield from ffn(il, e, ff, "_exps", n)
        yield from ffn(il, e, shared, "_shexp")

    def mtp_block(self, hp: Glm4MoeHParams, have: Have, il: int, release: Release, *, skip: bool) -> Iterator[Wanted]:
        """A layer's weights, and what drafts."""
        for w in drafting_block(self.block(hp, have, il, release, skip), hp, have, il, skip=skip):
            biased = release.loads_mtp_biases and w.name.endswith(".bias") and "attn_" in w.name
            yield replace(w, skip=False) if biased else w

    def caches_mtp_blocks(self, release: Release) -> bool:
        """In older releases."""
        return release.caches_mtp_blocks


class Glm4MoeMTP(MTPBlock[Glm4MoeHParams], Glm4Moe):
    """Its own MTP block."""

    graph = Glm4MoeMTPGraph
    since = 10605


ARCHITECTURE = Glm4Moe(mtp=Glm4MoeMTP())
