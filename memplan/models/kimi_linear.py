"""Kimi-Linear: delta nets with a gate an element (KDA), and latent attention without positions in every fourth layer.

Follows src/models/kimi-linear.cpp, read from b9842 to v0.5.0. Files from before latent attention are not modelled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.backends.weights import StateSpace
from memplan.ggml import ops
from memplan.llama.context import GATED_DELTA_NET, Fused
from memplan.llama.graph.delta_net import DeltaNet
from memplan.llama.memory.base import Memory
from memplan.llama.memory.recurrent import recurrent
from memplan.llama.weights import Have, Wanted, ffn, qkv
from memplan.models.base import Architecture, Cuts
from memplan.models.deepseek2 import LatentGraph, LatentHParams, latent_fields

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.llama.context import Paths
    from memplan.llama.keys import Keys
    from memplan.llama.memory.kv import CacheBuilder
    from memplan.releases import Release


ONE_SEQUENCE_SINCE = 10909
"""The first build seen that reserves for one sequence last (src/llama-context.cpp: sched_reserve); 10852 did not."""


@dataclass(frozen=True, kw_only=True)
class KimiLinearHParams(LatentHParams):
    """``n_embd_head_kda``: elements of a head of a delta net.  ``ssm_d_conv``: tokens that a convolution looks at."""

    n_embd_head_kda: int
    ssm_d_conv: int
    is_recr: tuple[bool, ...]

    @property
    def n_embd_kda(self) -> int:
        """Elements of all heads of a delta net."""
        return self.n_embd_head_kda * self.n_head[0]

    @property
    def n_embd_r(self) -> int:
        """Elements of one sequence's convolution states on a layer: of queries, keys and values."""
        return 3 * (self.ssm_d_conv - 1 if self.ssm_d_conv else 3) * self.n_embd_kda

    @property
    def n_embd_s(self) -> int:
        """Elements of one sequence's recurrent state on a layer."""
        return self.n_embd_head_kda * self.n_embd_kda


class KimiLinearGraph(LatentGraph[KimiLinearHParams], DeltaNet[KimiLinearHParams]):
    """``llama_model_kimi_linear::graph``."""

    unscaled = ("ffn_",)

    def head(self) -> tuple[Tensor, ...]:
        """Embeddings, and the numbers of the states that are read."""
        cur = self.cb(self.build_inp_embd(), "model.embed_tokens", -1)
        rs = self.build_rs_inp()
        self.inp_attn = self.build_attn_inp_k(self.kv_cache())
        self.inp_out_ids = self.build_inp_out_ids()
        return cur, *rs

    def layer(self, il: int, *given: Tensor) -> Cuts:
        """A delta net or attention, then a dense layer or experts."""
        inp, *rs = given
        cur = self.cb(self.norm(inp, self.w(il, "attn_norm"), il), "attn_norm", il)
        self.graph.expand(cur)
        cur = self.build_kda(rs, cur, il) if self.hp.is_recr[il] else self.build_mla(cur, il)
        cur, inp = self.rows_asked_for(il, cur, inp)
        ffn_inp, *rs = yield (self.cb(ops.add(cur, inp), "ffn_inp", il), *rs)
        cur = self.cb(self.norm(ffn_inp, self.w(il, "ffn_norm"), il), "ffn_norm", il)
        return self.cb(ops.add(self.feed_forward(cur, il), ffn_inp), "l_out", il), *rs

    def tail(self, *given: Tensor) -> Tensor:
        """The last norm and the logits."""
        return self.build_output(given[0])

    def build_mla(self, cur: Tensor, il: int) -> Tensor:
        """Latent attention, nothing of it rotated."""
        hp, n = self.hp, cur.ne[1]
        rank, rot, head, heads = hp.n_lora_kv, hp.n_rot(il), hp.n_embd_head_k_mla, hp.n_head[il]
        nope = head - rot
        q = ops.mul_mat(self.w(il, "attn_q"), cur)
        both = ops.mul_mat(self.w(il, "attn_kv_a_mqa"), cur)
        row = both.type.row_size
        kv = ops.view_2d(both, rank, n, row(rank + rot), 0)
        k_pe = ops.view_3d(both, (rot, 1, n), row(rank + rot), row(rank + rot), row(rank))
        kv = self.norm(kv, self.w(il, "attn_kv_a_norm"), il)
        q_nope = self.cb(ops.view_3d(q, (nope, heads, n), row(head), row(head * heads)), "q_nope", il)
        q_pe = self.cb(ops.view_3d(q, (rot, heads, n), row(head), row(head * heads), row(nope)), "q_pe", il)
        q, k, v = self.absorbed(q_nope, q_pe, kv, k_pe, il)
        return self.cb(self.build_attn_k(self.inp_attn, q, k, v, self.w(il, "attn_v_b"), il), "mla_out", il)

    # --- delta nets ---------------------------------------------------------------------------------------------------

    def build_kda(self, rs: Sequence[Tensor], cur: Tensor, il: int) -> Tensor:
        """A delta net whose queries, keys and values are convolved each on its own."""
        hp, n_seqs, n = self.hp, self.batch.n_seqs, self.n_seq_tokens
        size, heads, n_tokens = hp.n_embd_head_kda, hp.n_head[0], self.batch.n_tokens
        states = self.leaf("cache_r", il)
        read = self.build_rs(rs, states)
        parts = [(cur, self.maybe(f"attn_{which}.weight", il)) for which in "qkv"]
        if self.source.has("attn_qkv.weight", il):
            joined = ops.mul_mat(self.w(il, "attn_qkv"), cur)
            row = joined.type.row_size(hp.n_embd_kda)
            views = [ops.view_2d(joined, hp.n_embd_kda, n_tokens, joined.nb[1], i * row) for i in range(3)]
            parts = [(ops.cont(view), None) for view in views]
        q, k, v = (
            self.convolved(states, read, i, x, w, f"ssm_conv1d_{'qkv'[i]}.weight", il) for i, (x, w) in enumerate(parts)
        )
        g = ops.mul_mat(self.w(il, "ssm_f_b"), ops.mul_mat(self.w(il, "ssm_f_a"), cur))
        self.cb(g, "g1 f_b(f_a(cur))", il)
        g = ops.unary(ops.add(g, self.leaf("ssm_dt.bias", il)), "SOFTPLUS")
        g = ops.mul(ops.reshape(g, size, heads, n_tokens), ops.reshape(self.leaf("ssm_a", il), 1, heads, 1))
        g = ops.reshape(self.cb(g, "kda_g1", il), size, heads, n, n_seqs)
        beta = self.cb(ops.reshape(ops.mul_mat(self.w(il, "ssm_beta"), cur), 1, heads, n, n_seqs), "kda_beta", il)
        beta = ops.unary(beta, "SIGMOID")
        cur = ops.reshape(cur, cur.ne[0], n, n_seqs)
        s = self.leaf("cache_s", il)
        state = ops.reshape(self.build_rs(rs, s), size, size, heads, n_seqs)
        q, k = self.build_gdn_l2_norm(q), self.build_gdn_l2_norm(k)
        output, new_state = self.build_delta_net(q, k, v, g, beta, state, il)
        output = self.cb(ops.cont(output), "attn_output", il)
        self.cb(new_state, "new_state", il)
        self.graph.expand(ops.cpy(new_state, ops.view_1d(s, s.ne[0] * n_seqs, 0)))
        cur = ops.reshape(cur, cur.ne[0], n_tokens)
        gate = ops.mul_mat(self.w(il, "ssm_g_b"), ops.mul_mat(self.w(il, "ssm_g_a"), cur))
        gate = ops.reshape(self.cb(gate, "g2 g_b(g_a(cur_2d))", il), size, heads, n_tokens)
        normed = self.norm(ops.reshape(output, size, heads, n_tokens), self.w(il, "ssm_norm"), il)
        gated = ops.mul(self.cb(normed, "kda_normed", il), ops.unary(gate, "SIGMOID"))
        gated = ops.cont(gated, hp.n_embd_kda, n_tokens)
        return self.cb(ops.mul_mat(self.w(il, "attn_output"), gated), "kda_out", il)

    def convolved(
        self, states: Tensor, read: Tensor, part: int, x: Tensor, w: Tensor | None, kernel: str, il: int
    ) -> Tensor:
        """Queries, keys or values (``part`` 0, 1, 2) after their convolution (``causal_conv1d``)."""
        hp, n_seqs, n = self.hp, self.batch.n_seqs, self.n_seq_tokens
        d_conv, width = hp.ssm_d_conv, hp.n_embd_kda
        ne, nb1, at = (d_conv - 1, width, n_seqs), (d_conv - 1) * 4, part * (d_conv - 1) * width * 4
        older = ops.view_3d(read, ne, nb1, states.nb[1], at)
        x = ops.reshape(x if w is None else ops.mul_mat(w, x), width, n, n_seqs)
        conv = ops.concat(older, ops.transpose(x), 0)
        last = ops.view_3d(conv, ne, conv.nb[1], conv.nb[2], n * conv.nb[0])
        self.graph.expand(ops.cpy(last, ops.view_3d(states, ne, nb1, states.nb[1], at)))
        out = ops.ssm_conv(conv, ops.reshape(self.leaf(kernel, il), d_conv, width))
        out = ops.unary(ops.reshape(out, width, n * n_seqs), "SILU")
        return ops.reshape(out, hp.n_embd_head_kda, hp.n_head[0], n, n_seqs)


class KimiLinear(Architecture[KimiLinearHParams]):
    """``llama_model_kimi_linear``."""

    name = "kimi-linear"
    tied_output = False
    one_cache_type = True
    long_graphs = True
    graph = KimiLinearGraph

    def load_hparams(self, k: Keys, release: Release) -> KimiLinearHParams:
        """``load_arch_hparams``."""
        k.check(k.u32("expert_gating_func") > 0, "expert_gating_func is 0, which llama.cpp does not know")
        fields = latent_fields(k, release)
        return KimiLinearHParams(
            **{**fields, "expert_weights_norm": True},
            n_lora_q=0,
            n_embd_head_kda=k.u32("kda.head_dim"),
            ssm_d_conv=k.u32("ssm.conv_kernel"),
            is_recr=tuple(n == 0 for n in fields["n_head_kv"]),
        )

    def layer_kind(self, hp: KimiLinearHParams, il: int) -> bool:
        """Recurrent or not."""
        return hp.is_recr[il]

    def fused(self, release: Release, paths: Paths) -> Fused:
        """Delta nets."""
        return frozenset(probe.op for probe in GATED_DELTA_NET)

    def reserves_one_sequence(self, hp: KimiLinearHParams, release: Release) -> bool:
        """For a decay that grew with the square of a sequence's tokens."""
        return release.build >= ONE_SEQUENCE_SINCE and not all(hp.is_recr[: hp.n_layer])

    def memory(self, hp: KimiLinearHParams, build: CacheBuilder, release: Release) -> Memory:
        """Latent keys for layers with attention, states for the others."""
        layers = range(hp.n_layer)
        cache = build.kv([il for il in layers if not hp.is_recr[il]], values=False)
        states = recurrent(build, [il for il in layers if hp.is_recr[il]], hp.n_embd_r, hp.n_embd_s, n_rs_seq=0)
        return Memory({"kv": cache, "rs": states})

    # --- weights ------------------------------------------------------------------------------------------------------

    def block(self, hp: KimiLinearHParams, have: Have, il: int, release: Release) -> Iterator[Wanted]:
        """A layer's weights (``load_arch_tensors``)."""
        e = hp.n_embd
        yield Wanted(f"blk.{il}.attn_norm.weight", (e,))
        yield from self.kda(hp, have, il, release) if hp.is_recr[il] else self.mla(hp, f"blk.{il}.")
        yield Wanted(f"blk.{il}.ffn_norm.weight", (e,))
        yield from self.feed_forward(hp, il)

    def kda(self, hp: KimiLinearHParams, have: Have, il: int, release: Release) -> Iterator[Wanted]:
        """A delta net's weights."""
        p, e, size, heads, width = f"blk.{il}.", hp.n_embd, hp.n_embd_head_kda, hp.n_head[0], hp.n_embd_kda
        for which in "qkv":
            yield Wanted(f"{p}ssm_conv1d_{which}.weight", (hp.ssm_d_conv, 1, width))
        yield from qkv(have, il, e, width, width, width)
        yield Wanted(p + "ssm_f_a.weight", (e, size))
        yield Wanted(p + "ssm_f_b.weight", (size, width))
        yield Wanted(p + "ssm_beta.weight", (e, heads))
        # before v0.4.0 it was placed as a state space's decay is, and a CUDA device has none of no size
        op = "MUL" if release.kda_decay_is_factor else "SSM_SCAN"
        yield Wanted(p + "ssm_a", (1, heads), op=op, ssm=StateSpace(0, 0, 1))
        yield Wanted(p + "ssm_dt.bias", (width,))
        yield Wanted(p + "ssm_g_a.weight", (e, size))
        yield Wanted(p + "ssm_g_b.weight", (size, width))
        yield Wanted(p + "ssm_norm.weight", (size,))
        yield Wanted(p + "attn_output.weight", (width, e))

    def mla(self, hp: KimiLinearHParams, p: str) -> Iterator[Wanted]:
        """Latent attention's weights."""
        e, heads, rot, rank = hp.n_embd, hp.n_head[0], hp.n_rot(), hp.n_lora_kv
        yield Wanted(p + "attn_kv_a_norm.weight", (rank,))
        yield Wanted(p + "attn_q.weight", (e, heads * hp.n_embd_head_k_mla))
        yield Wanted(p + "attn_kv_a_mqa.weight", (e, rank + rot))
        yield Wanted(p + "attn_k_b.weight", (hp.n_embd_head_k_mla - rot, rank, heads))
        yield Wanted(p + "attn_v_b.weight", (rank, hp.n_embd_head_v_mla, heads))
        yield Wanted(p + "attn_output.weight", (heads * hp.n_embd_head_v_mla, e))

    def feed_forward(self, hp: KimiLinearHParams, il: int) -> Iterator[Wanted]:
        """A dense layer's weights, or experts and shared ones."""
        p, e, n, ff = f"blk.{il}.ffn_", hp.n_embd, hp.n_expert, hp.n_ff[0]
        if il < hp.n_layer_dense_lead:
            yield from ffn(il, e, ff)
            return
        ff = hp.n_ff_exp[0]
        shared = ff * max(1, hp.n_expert_shared)
        yield Wanted(p + "gate_inp.weight", (e, n))
        yield from ffn(il, e, ff, "_exps", n)
        yield from ffn(il, e, shared, "_shexp", optional=True)
        yield Wanted(f"blk.{il}.exp_probs_b.bias", (n,))


ARCHITECTURE = KimiLinear()
