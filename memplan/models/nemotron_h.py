"""Nemotron-H: state spaces (Mamba 2), attention without positions, and feed-forward parts, each a layer of its own.

Follows src/models/nemotron-h.cpp, read from b9842 to v0.5.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan.backends.weights import StateSpace
from memplan.ggml import ops
from memplan.llama.graph.mamba import Mamba
from memplan.llama.hparams import common
from memplan.llama.memory.recurrent import hybrid_memory
from memplan.llama.ssm import SSMHParams, ssm_keys
from memplan.llama.weights import Have, Wanted, ffn, qkv
from memplan.models.base import Architecture, ModelGraph

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.llama.keys import Keys
    from memplan.llama.memory.base import Memory
    from memplan.llama.memory.kv import CacheBuilder
    from memplan.releases import Release


NEXTN_SINCE = 10355
"""The first build seen that knows of MTP blocks."""
LATENT_DRAFTS_SINCE = 11063
"""The first build seen whose MTP blocks have experts that work on a latent form of the tokens."""


@dataclass(frozen=True, kw_only=True)
class NemotronHHParams(SSMHParams):
    """Layers with ``n_ff`` 0 are recurrent, or have attention where they have heads of keys.

    ``n_ff_exp``, ``n_ff_shexp``: widths of a routed expert and of the shared one.  ``moe_latent_size``: what experts
    work on, 0 for whole tokens.
    """

    n_ff_exp: tuple[int, ...]
    n_ff_shexp: int
    moe_latent_size: int
    expert_weights_norm: bool
    expert_weights_scale: float


class NemotronHGraph(ModelGraph[NemotronHHParams], Mamba[NemotronHHParams]):
    """``llama_model_nemotron_h::graph``."""

    def head(self) -> tuple[Tensor, ...]:
        """Embeddings, and the numbers of the states that are read."""
        cur = self.build_inp_embd()
        rs = self.build_rs_inp()
        self.attention_inputs()
        self.inp_out_ids = self.build_inp_out_ids()
        return cur, *rs

    def layer(self, il: int, *given: Tensor) -> tuple[Tensor, ...]:
        """One part: a state space, attention or a feed-forward part."""
        inp, *rs = given
        cur = self.cb(self.norm(inp, self.w(il, "attn_norm"), il), "attn_norm", il)
        if self.hp.is_recr[il]:
            cur = self.build_mamba2_layer(rs, cur, il)
        elif self.hp.n_ff[il] == 0:
            q, k, v = self.build_qkv(cur, il)
            cur = self.cb(self.build_attn(self.inp_attn, q, k, v, il), "attn_out", il)
        else:
            cur = self.cb(self.build_ffn_layer(cur, il), "l_out", il)
        if not self.release.nemotron_hidden_states_of_all:
            cur, inp = self.rows_asked_for(il, cur, inp)
        return self.cb(ops.add(cur, inp), "nemotron_h_block_out", il), *rs

    def tail(self, *given: Tensor) -> Tensor:
        """The last norm and the logits."""
        if not self.release.nemotron_hidden_states_of_all:
            return self.build_output(given[0])
        return self.build_output_of_all(given[0], self.inp_out_ids)

    def build_ffn_layer(self, cur: Tensor, il: int) -> Tensor:
        """A dense part, or experts, which may work on a latent form of the tokens, and a shared one."""
        if not self.source.has("ffn_gate_inp.weight", il):
            return self.build_ffn(cur, il, "RELU_SQR")
        hp, latent = self.hp, cur
        down, up = self.maybe("ffn_latent_down.weight", il), self.maybe("ffn_latent_up.weight", il)
        if down is not None:
            latent = ops.mul_mat(down, cur)
        logits = self.cb(self.mm(il, "ffn_gate_inp", cur), "ffn_moe_logits", il)
        routed = self.build_moe_ffn(
            latent,
            il,
            gating="SIGMOID",
            act="RELU_SQR",
            norm_w=hp.expert_weights_norm,
            w_scale=hp.expert_weights_scale,
            probs_in=logits,
        )
        if up is not None:
            routed = ops.mul_mat(up, routed)
        shared = self.cb(self.build_ffn(cur, il, "RELU_SQR", suffix="_shexp"), "ffn_shexp", il)
        return self.cb(ops.add(routed, shared), "ffn_out", il)


class NemotronH(Architecture[NemotronHHParams]):
    """``llama_model_nemotron_h``."""

    name = "nemotron_h"
    graph = NemotronHGraph
    equal_heads = True

    def load_hparams(self, k: Keys, release: Release) -> NemotronHHParams:
        """``load_arch_hparams``."""
        fields = common(k, release, NEXTN_SINCE)
        n_all = fields["n_layer_all"]
        n_layer, heads_kv, n_ff = n_all - fields["n_layer_nextn"], fields["n_head_kv"], fields["n_ff"]
        k.f32("attention.layer_norm_epsilon")
        k.check_type("attention.layer_norm_rms_epsilon", float)
        k.check_type("expert_shared_count", int)
        ssm = ssm_keys(k)
        k.check(ssm["ssm_n_group"] > 0, "ssm.group_count must not be zero")  # its norm is cut into as many
        return NemotronHHParams(
            **fields,
            **ssm,
            is_recr=tuple(il < n_layer and heads_kv[il] == 0 and n_ff[il] == 0 for il in range(n_all)),
            n_ff_exp=k.u32_a_layer("expert_feed_forward_length", n_all, 0),
            n_ff_shexp=k.u32("expert_shared_feed_forward_length", 0),
            moe_latent_size=k.u32("moe_latent_size", 0),
            expert_weights_norm=k.flag("expert_weights_norm", False),
            expert_weights_scale=k.f32("expert_weights_scale", 0.0),
        )

    def memory(self, hp: NemotronHHParams, build: CacheBuilder, release: Release) -> Memory:
        """A cache for layers with attention, states for the recurrent ones, nothing for the others."""
        layers = [il for il in range(hp.n_layer_all) if hp.n_ff[il] == 0]
        recurring = [il for il in layers if hp.is_recr[il]]
        attention = [il for il in layers if not hp.is_recr[il]]
        return hybrid_memory(hp, build, attention, recurring, rolls_back=release.mamba_projects_rows)

    def block(self, hp: NemotronHHParams, have: Have, il: int, release: Release) -> Iterator[Wanted]:
        """A layer's weights (``load_arch_tensors``)."""
        yield Wanted(f"blk.{il}.attn_norm.weight", (hp.n_embd,))
        if hp.is_recr[il]:
            yield from self.state_space(hp, f"blk.{il}.")
        elif hp.n_ff[il] == 0:
            yield from self.attention(hp, have, il)
        elif hp.n_expert:
            yield from self.experts(hp, il)
        else:
            yield from self.dense(hp, f"blk.{il}.", hp.n_ff[il])

    def mtp_block(self, hp: NemotronHHParams, have: Have, il: int, release: Release, *, skip: bool) -> Iterator[Wanted]:
        """Those of a block that drafts."""
        for w in self.drafting(hp, have, il, skip=skip):
            if "latent" not in w.name or release.build >= LATENT_DRAFTS_SINCE:
                yield replace(w, skip=skip)

    def state_space(self, hp: NemotronHHParams, p: str) -> Iterator[Wanted]:
        """A recurrent layer's weights."""
        e, n_head, inner, channels = hp.n_embd, hp.ssm_dt_rank, hp.ssm_d_inner, hp.ssm_conv_channels
        yield Wanted(p + "ssm_in.weight", (e, inner + channels + n_head))
        yield Wanted(p + "ssm_conv1d.weight", (hp.ssm_d_conv, channels))
        yield Wanted(p + "ssm_conv1d.bias", (channels,))
        yield Wanted(p + "ssm_dt.bias", (n_head,))
        yield Wanted(p + "ssm_a", (1, n_head), ssm=StateSpace(hp.ssm_d_state, inner, hp.ssm_n_group))
        yield Wanted(p + "ssm_d", (1, n_head))
        yield Wanted(p + "ssm_norm.weight", (inner // hp.ssm_n_group, hp.ssm_n_group))
        yield Wanted(p + "ssm_out.weight", (inner, e))

    def attention(self, hp: NemotronHHParams, have: Have, il: int, *, skip: bool = False) -> Iterator[Wanted]:
        """Attention's weights."""
        p, e, n_q = f"blk.{il}.", hp.n_embd, hp.n_embd_head_k(il) * hp.n_head[il]
        yield from qkv(have, il, e, n_q, hp.n_embd_k_gqa(il), hp.n_embd_v_gqa(il), skip=skip)
        yield Wanted(p + "attn_output.weight", (n_q, e))
        yield Wanted(p + "attn_output.bias", (e,), optional=True)

    def experts(self, hp: NemotronHHParams, il: int) -> Iterator[Wanted]:
        """Experts' weights."""
        p, e, n = f"blk.{il}.", hp.n_embd, hp.n_expert
        ff = hp.n_ff_exp[il] or hp.n_ff[il] // max(1, hp.n_expert_used[il])
        latent = hp.moe_latent_size or e
        yield Wanted(p + "ffn_gate_inp.weight", (e, n))
        yield Wanted(p + "exp_probs_b.bias", (n,))
        yield Wanted(p + "ffn_latent_down.weight", (e, latent), optional=True)
        yield Wanted(p + "ffn_latent_up.weight", (latent, e), optional=True)
        yield from ffn(il, latent, ff, "_exps", n, parts="down up")
        yield from ffn(il, e, hp.n_ff_shexp, "_shexp", parts="down up")

    def dense(self, hp: NemotronHHParams, p: str, ff: int) -> Iterator[Wanted]:
        """A dense part's weights."""
        e = hp.n_embd
        yield Wanted(p + "ffn_down.weight", (ff, e))
        yield Wanted(p + "ffn_up.weight", (e, ff))
        yield Wanted(p + "ffn_down.bias", (e,), optional=True)
        yield Wanted(p + "ffn_up.bias", (ff,), optional=True)

    def drafting(self, hp: NemotronHHParams, have: Have, il: int, *, skip: bool) -> Iterator[Wanted]:
        """A block that drafts, attention and experts in one."""
        p, e = f"blk.{il}.", hp.n_embd
        yield Wanted(p + "nextn.enorm.weight", (e,))
        yield Wanted(p + "nextn.hnorm.weight", (e,))
        yield Wanted(p + "nextn.eh_proj.weight", (2 * e, e))
        yield Wanted(p + "nextn.shared_head_norm.weight", (e,))
        yield Wanted(p + "attn_norm.weight", (e,))
        yield from self.attention(hp, have, il, skip=skip)
        yield Wanted(p + "post_attention_norm.weight", (e,))
        yield from self.experts(hp, il)


ARCHITECTURE = NemotronH()
