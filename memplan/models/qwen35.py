"""Qwen3.5 and 3.6: three layers with a gated delta net to each with attention, whose result is gated.

Follows src/models/qwen35.cpp, read from b9842 to v0.5.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from memplan.ggml import ops
from memplan.llama.context import GATED_DELTA_NET, Fused
from memplan.llama.graph.delta_net import DeltaNet
from memplan.llama.hparams import common
from memplan.llama.memory.recurrent import hybrid_memory
from memplan.llama.refusals import Refusal, died
from memplan.llama.ssm import SSMHParams, ssm_keys
from memplan.llama.weights import Have, Wanted, ffn, nextn, qkv
from memplan.models.base import Architecture, Cuts, ModelGraph
from memplan.models.mtp import MTPBlock, MTPHead

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.llama.context import Paths
    from memplan.llama.keys import Keys
    from memplan.llama.memory.base import Memory
    from memplan.llama.memory.kv import CacheBuilder
    from memplan.releases import Release

INTERVAL = 4
"""Each so many-th layer has attention, where the model does not say which."""


@dataclass(frozen=True, kw_only=True)
class DeltaNetHParams(SSMHParams):
    """``ssm_n_group`` key heads of ``ssm_d_state`` elements and ``ssm_dt_rank`` value heads."""

    @property
    def ssm_head_v(self) -> int:
        """Elements of a value head."""
        return self.ssm_d_inner // self.ssm_dt_rank


@dataclass(frozen=True, kw_only=True)
class Qwen35HParams(DeltaNetHParams):
    """Positions of a token are four: text, time, height and width."""

    @property
    def n_pos_per_embd(self) -> int:
        """Positions a token."""
        return 4


H = TypeVar("H", bound=DeltaNetHParams)


class DeltaNetGraph(ModelGraph[H], DeltaNet[H]):
    """A model of gated delta nets, with attention in some layers."""

    embd_name = "model.input_embed"

    @property
    def hidden_states_of_all(self) -> bool:
        """Whether the last layer's hidden states are kept for all tokens, which drafts read."""
        return True

    def head(self) -> tuple[Tensor, ...]:
        """Embeddings, and the numbers of the states that are read."""
        cur = self.cb(self.build_inp_embd(), self.embd_name, -1)
        rs = self.build_rs_inp()
        self.attention_inputs()
        self.inp_pos = self.build_inp_pos()
        self.inp_out_ids = self.build_inp_out_ids()
        return cur, *rs

    def layer(self, il: int, *given: Tensor) -> Cuts:
        """Attention or a delta net, then the feed-forward part."""
        inp, *rs = given
        cur = self.cb(self.norm(inp, self.w(il, "attn_norm"), il), "attn_norm", il)
        self.graph.expand(cur)
        cur = self.build_layer_attn_linear(rs, cur, il) if self.hp.is_recr[il] else self.build_layer_attn(cur, il)
        if not self.hidden_states_of_all:
            cur, inp = self.rows_asked_for(il, cur, inp)
        residual, *rs = yield (self.cb(ops.add(cur, inp), "attn_residual", il), *rs)
        cur = self.cb(self.norm(residual, self.w(il, "post_attention_norm"), il), "attn_post_norm", il)
        cur = self.cb(self.build_layer_ffn(cur, il), "ffn_out", il)
        return self.cb(ops.add(cur, residual), "l_out", il), *rs

    def tail(self, *given: Tensor) -> Tensor:
        """The last norm, whose result drafts read, before the tokens that are asked for are taken out."""
        if not self.hidden_states_of_all:
            return self.build_output(given[0])
        return self.build_output_of_all(given[0], self.inp_out_ids)

    # --- attention ----------------------------------------------------------------------------------------------------

    def build_layer_attn(self, cur: Tensor, il: int) -> Tensor:
        """Attention; one product makes queries and the gate of their results."""
        hp, n = self.hp, cur.ne[1]
        size, n_head, n_head_kv = hp.n_embd_head_k(il), hp.n_head[il], hp.n_head_kv[il]
        joined, k, v = self.build_qkv_rows(cur, il, 2 * size * n_head, size * n_head_kv, size * n_head_kv)
        for t, name in ((joined, "Qcur_full"), (k, "Kcur"), (v, "Vcur")):
            self.cb(t, name, il)
        q, gate = self.query_and_gate(joined, size, n_head, n, il)
        q = self.cb(self.norm(q, self.w(il, "attn_q_norm"), il), "Qcur_normed", il)
        k = self.norm(ops.reshape(k, size, n_head_kv, n), self.w(il, "attn_k_norm"), il)
        self.cb(k, "Kcur_normed", il)
        q = self.cb(self.rope(q, self.inp_pos, il), "Qcur", il)
        k = self.cb(self.rope(k, self.inp_pos, il), "Kcur", il)
        v = self.cb(ops.reshape(v, size, n_head_kv, n), "Vcur", il)
        cur = self.cb(self.build_attn(self.inp_attn, q, k, v, il, out=""), "attn_pregate", il)
        gate = self.cb(ops.cont(gate, size * n_head, n), "gate_reshaped", il)
        gate = self.cb(ops.unary(gate, "SIGMOID"), "gate_sigmoid", il)
        cur = self.cb(ops.mul(cur, self.gate_of(gate)), "attn_gated", il)
        return self.cb(self.mm(il, "attn_output", cur), "attn_output", il)

    def query_and_gate(self, joined: Tensor, size: int, n_head: int, n: int, il: int) -> tuple[Tensor, Tensor]:
        """Each head's query, and the gate behind it."""
        row = joined.type.row_size
        ne, nb1, nb2 = (size, n_head, n), row(2 * size), row(2 * size * n_head)
        q = self.cb(ops.view_3d(joined, ne, nb1, nb2), "Qcur_reshaped", il)
        return q, ops.view_3d(joined, ne, nb1, nb2, row(size))

    def gate_of(self, gate: Tensor) -> Tensor:
        """The gate as attention's result is multiplied with it."""
        return gate

    # --- delta nets ---------------------------------------------------------------------------------------------------

    def build_layer_attn_linear(self, rs: list[Tensor], cur: Tensor, il: int) -> Tensor:
        """A gated delta net over convolved queries, keys and values."""
        hp, n_seqs, n = self.hp, self.batch.n_seqs, self.n_seq_tokens
        head_k, n_k, head_v, n_v = hp.ssm_d_state, hp.ssm_n_group, hp.ssm_head_v, hp.ssm_dt_rank
        mixed, z = self.build_qkvz(cur, il)
        beta, alpha = self.build_beta_alpha(cur, il)
        decay = self.cb(ops.unary(ops.add(alpha, self.leaf("ssm_dt.bias", il)), "SOFTPLUS"), "a_softplus", il)
        decay = self.cb(ops.mul(decay, self.leaf("ssm_a", il)), "gate", il)
        decay = ops.reshape(decay, 1, n_v, n, n_seqs)
        kernel = self.w(il, "ssm_conv1d")
        conv_input = self.build_conv_state(rs, mixed, kernel.ne[0], hp.ssm_conv_channels, il)
        state = self.build_rs(rs, self.leaf("cache_s", il))
        state = self.cb(ops.reshape(state, head_v, head_v, n_v, n_seqs), "state_predelta", il)
        conv = self.cb(ops.ssm_conv(conv_input, kernel), "conv_output_raw", il)
        conv = self.cb(ops.unary(conv, "SILU"), "conv_output_silu", il)
        row = conv.type.row_size
        nb2 = row(2 * head_k * n_k + head_v * n_v)
        q = self.cb(ops.view_4d(conv, (head_k, n_k, n, n_seqs), row(head_k), nb2, nb2 * n), "q_conv", il)
        at = row(head_k * n_k)
        k = self.cb(ops.view_4d(conv, (head_k, n_k, n, n_seqs), row(head_k), nb2, nb2 * n, at), "k_conv", il)
        v = ops.view_4d(conv, (head_v, n_v, n, n_seqs), row(head_v), nb2, nb2 * n, 2 * at)
        q, k = self.repeated(self.build_gdn_l2_norm(q)), self.repeated(self.build_gdn_l2_norm(k))
        for t, name in ((q, "q"), (k, "k"), (v, "v")):
            self.cb(t, f"{name}_conv_predelta", il)
        cur = self.build_recurrent_attn(q, k, v, decay, beta, state, il)
        z = ops.reshape(z, head_v, n_v, n, n_seqs)
        cur = ops.mul(self.norm(cur, self.w(il, "ssm_norm"), il), ops.unary(z, "SILU"))
        cur = self.cb(ops.reshape(cur, head_v * n_v, n, n_seqs), "final_output", il)
        cur = self.cb(self.mm(il, "ssm_out", cur), "linear_attn_out", il)
        return ops.reshape(cur, hp.n_embd, n * n_seqs)

    def build_qkvz(self, cur: Tensor, il: int) -> tuple[Tensor, Tensor]:
        """Queries, keys and values in one, for each sequence, and the gate of the result."""
        mixed = self.mm(il, "attn_qkv", cur)
        mixed = ops.reshape(mixed, mixed.ne[0], self.n_seq_tokens, self.batch.n_seqs)
        self.cb(mixed, "linear_attn_qkv_mixed", il)
        return mixed, self.cb(self.mm(il, "attn_gate", cur), "z", il)

    def build_beta_alpha(self, cur: Tensor, il: int) -> tuple[Tensor, Tensor]:
        """How much of a value is written, and how fast the state decays, each a head."""
        n_v, n, n_seqs = self.hp.ssm_dt_rank, self.n_seq_tokens, self.batch.n_seqs
        beta = self.cb(ops.reshape(self.mm(il, "ssm_beta", cur), 1, n_v, n, n_seqs), "beta", il)
        beta = self.cb(ops.unary(beta, "SIGMOID"), "beta_sigmoid", il)
        return beta, self.cb(ops.reshape(self.mm(il, "ssm_alpha", cur), n_v, n, n_seqs), "alpha", il)

    def repeated(self, t: Tensor) -> Tensor:
        """Key heads as many as value heads; the fused ops do without."""
        n_k, n_v = self.hp.ssm_n_group, self.hp.ssm_dt_rank
        if n_k == n_v or all(probe.op in self.fused for probe in GATED_DELTA_NET):
            return t
        return ops.repeat_4d(t, (t.ne[0], n_v, t.ne[2], t.ne[3]))

    def build_layer_ffn(self, cur: Tensor, il: int) -> Tensor:
        """The feed-forward part."""
        return self.build_ffn(cur, il)


class Qwen35Graph(DeltaNetGraph[Qwen35HParams]):
    """``llama_model_qwen35::graph``."""

    rope_type = ops.ROPE_IMROPE


class DeltaNetMTP(MTPHead[H], DeltaNetGraph[H]):
    """``graph_mtp``: attention, then the feed-forward part."""

    def layer(self, il: int, *given: Tensor) -> Cuts:
        """The block."""
        (inp,) = given
        cur = self.cb(self.norm(inp, self.w(il, "attn_norm"), il), "mtp_attn_norm", il)
        cur = self.build_layer_attn(cur, il)
        if self.takes_rows == "layer":
            cur, inp = ops.get_rows(cur, self.inp_out_ids), ops.get_rows(inp, self.inp_out_ids)
        residual = yield self.cb(ops.add(cur, inp), "mtp_attn_residual", il)
        cur = self.cb(self.norm(residual, self.w(il, "post_attention_norm"), il), "mtp_attn_post_norm", il)
        return self.cb(ops.add(self.build_layer_ffn(cur, il), residual), "mtp_post_ffn", il)


class Qwen35MTPGraph(DeltaNetMTP[Qwen35HParams], Qwen35Graph):
    """``llama_model_qwen35::graph_mtp``."""


class DeltaNetArchitecture(Architecture[H]):
    """What Qwen3-Next, Qwen3.5 and 3.6 have in common."""

    equal_heads = True
    long_graphs = True
    always_drafts_since = 0
    rolls_back = True
    """Whether states have snapshots."""
    nextn_since = 0
    """The first build seen that knows of its MTP blocks."""

    def memory(self, hp: H, build: CacheBuilder, release: Release) -> Memory:
        """A cache for layers with attention, states for the others; MTP blocks have neither."""
        recurring = [il for il in range(hp.n_layer) if hp.is_recr[il]]
        attention = [il for il in range(hp.n_layer) if not hp.is_recr[il]]
        return hybrid_memory(hp, build, attention, recurring, rolls_back=self.rolls_back)

    def layer_kind(self, hp: H, il: int) -> bool:
        """Recurrent or not."""
        return hp.is_recr[il]

    def check_graph(self, hp: H, memory: Memory, release: Release) -> Refusal | None:
        """Value heads that are no multiple of the key heads, besides."""
        if any(hp.is_recr) and hp.ssm_dt_rank % hp.ssm_n_group:
            return died("H_v % H_k == 0")
        return super().check_graph(hp, memory, release)

    def fused(self, release: Release, paths: Paths) -> Fused:
        """Delta nets."""
        return frozenset(probe.op for probe in GATED_DELTA_NET)

    # --- hyper-parameters and weights ---------------------------------------------------------------------------------

    def fields(self, k: Keys, release: Release) -> dict[str, Any]:
        """Hyper-parameters that all of them have, by field."""
        fields = common(k, release, self.nextn_since)
        k.f32("attention.layer_norm_rms_epsilon")
        n_all = fields["n_layer_all"]
        n_layer = n_all - fields["n_layer_nextn"]
        interval = k.u32("full_attention_interval", INTERVAL)
        said = k.flag_a_layer("attention.recurrent_layers", n_all)
        if said is None:
            k.check(interval > 0, "full_attention_interval is 0")
            said = tuple(il < n_layer and (il + 1) % interval != 0 for il in range(n_all))
        return fields | ssm_keys(k) | {"is_recr": said}

    def mtp_block(self, hp: H, have: Have, il: int, release: Release, *, skip: bool) -> Iterator[Wanted]:
        """A layer's weights, and what drafts."""
        for w in (*self.block(hp, have, il, release, skip), *nextn(hp, il)):
            yield replace(w, skip=skip)

    def block(self, hp: H, have: Have, il: int, release: Release, skip: bool = False) -> Iterator[Wanted]:
        """A layer's weights (``load_arch_tensors``); ``skip``: of a block that is not loaded."""
        p, e, size = f"blk.{il}.", hp.n_embd, hp.n_embd_head_k(il)
        n_q = size * hp.n_head[il]
        yield Wanted(p + "attn_norm.weight", (e,))
        yield Wanted(p + "post_attention_norm.weight", (e,))
        if hp.is_recr[il]:
            yield from self.delta_net(hp, have, p)
        else:
            yield from qkv(have, il, e, 2 * n_q, hp.n_embd_k_gqa(il), hp.n_embd_v_gqa(il), skip=skip)
            yield Wanted(p + "attn_output.weight", (n_q, e))
            yield Wanted(p + "attn_q_norm.weight", (size,))
            yield Wanted(p + "attn_k_norm.weight", (size,))
        yield from self.feed_forward(hp, have, il, skip=skip)

    def delta_net(self, hp: H, have: Have, p: str) -> Iterator[Wanted]:
        """A recurrent layer's weights."""
        e, n_v, values = hp.n_embd, hp.ssm_dt_rank, hp.ssm_d_state * hp.ssm_dt_rank
        channels = 2 * hp.ssm_d_state * hp.ssm_n_group + values
        yield Wanted(p + "attn_qkv.weight", (e, channels))  # llama.cpp crashes later on without these two
        yield Wanted(p + "attn_gate.weight", (e, values))
        yield Wanted(p + "ssm_conv1d.weight", (hp.ssm_d_conv, channels))
        yield Wanted(p + "ssm_dt.bias", (n_v,))
        yield Wanted(p + "ssm_a", (n_v,), op="MUL")
        yield Wanted(p + "ssm_beta.weight", (e, n_v))
        yield Wanted(p + "ssm_alpha.weight", (e, n_v))
        yield Wanted(p + "ssm_norm.weight", (hp.ssm_d_state,))
        yield Wanted(p + "ssm_out.weight", (values, e))

    def feed_forward(self, hp: H, have: Have, il: int, *, skip: bool) -> Iterator[Wanted]:
        """The feed-forward part's weights."""
        return ffn(il, hp.n_embd, hp.n_ff[0])


class Qwen35(DeltaNetArchitecture[Qwen35HParams]):
    """``llama_model_qwen35``."""

    name = "qwen35"
    graph: type[DeltaNetGraph[Qwen35HParams]] = Qwen35Graph

    def load_hparams(self, k: Keys, release: Release) -> Qwen35HParams:
        """``load_arch_hparams``."""
        k.u32_a_layer("rope.dimension_sections", 4)
        return Qwen35HParams(**self.fields(k, release))


class Qwen35MTP(MTPBlock[Qwen35HParams], Qwen35):
    """Its own MTP block."""

    graph = Qwen35MTPGraph


ARCHITECTURE = Qwen35(mtp=Qwen35MTP())
