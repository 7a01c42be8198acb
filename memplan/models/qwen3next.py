"""Qwen3-Next: delta nets with experts, and plain rotary positions.

Follows src/models/qwen3next.cpp, read from b9842 to v0.5.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.llama.weights import Have, Wanted
from memplan.models.mtp import MTPBlock
from memplan.models.qwen35 import DeltaNetMTP
from memplan.models.qwen35moe import ExpertArchitecture, ExpertGraph, ExpertHParams

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.llama.keys import Keys
    from memplan.releases import Release


class Qwen3NextGraph(ExpertGraph[ExpertHParams]):
    """``llama_model_qwen3next::graph``."""

    embd_name = "model.embed_tokens"

    @property
    def unscaled(self) -> tuple[str, ...]:
        """Scales of the delta nets' weights; before there were MTP blocks, all but those of ``attn_output``."""
        if self.release.qwen3next_hidden_states_of_all:
            return "attn_qkv", "attn_gate"
        return "attn_q", "attn_k", "attn_v", "attn_gate", "ffn_"

    @property
    def hidden_states_of_all(self) -> bool:
        """Since it has MTP blocks."""
        return self.release.qwen3next_hidden_states_of_all

    def gate_of(self, gate: Tensor) -> Tensor:
        """Reshaped to what it is, before there were MTP blocks."""
        return gate if self.release.qwen3next_hidden_states_of_all else ops.reshape(gate, *gate.ne)

    def query_and_gate(self, joined: Tensor, size: int, n_head: int, n: int, il: int) -> tuple[Tensor, Tensor]:
        """Each head's query, and the gate behind it."""
        joined = ops.reshape(joined, 2 * size, n_head, n)
        ne, (nb0, *nb) = (size, n_head, n, 1), joined.nb
        q = self.cb(ops.view_4d(joined, ne, nb[0], nb[1], nb[2]), "Qcur_view", il)
        return q, self.cb(ops.view_4d(joined, ne, nb[0], nb[1], nb[2], size * nb0), "gate", il)

    def build_qkvz(self, cur: Tensor, il: int) -> tuple[Tensor, Tensor]:
        """Queries, keys and values in one, and the gate of the result; old files have all four in one weight."""
        if self.source.has("attn_qkv.weight", il):
            return super().build_qkvz(cur, il)
        hp, n, n_seqs = self.hp, self.n_seq_tokens, self.batch.n_seqs
        head, n_k, values = hp.ssm_d_state, hp.ssm_n_group, hp.ssm_head_v * hp.ssm_dt_rank // hp.ssm_n_group
        joined = self.cb(self.mm(il, "ssm_in", cur), "linear_attn_mixed_qkvz", il)
        joined = ops.reshape(joined, 2 * head + 2 * values, n_k, n, n_seqs)
        parts, at = [], 0
        for name, width in (("q", head), ("k", head), ("v", values), ("z", values)):
            _, nb1, nb2, nb3 = joined.nb
            part = ops.view_4d(joined, (width, n_k, n, n_seqs), nb1, nb2, nb3, at)
            parts.append(self.cb(part, name, il))
            at += joined.type.row_size(width)
        z = self.cb(ops.cont(parts.pop()), "z", il)
        flat = []
        for name, part in zip(("query", "key", "value"), parts, strict=True):
            flat.append(self.cb(ops.cont(part, part.ne[0] * n_k, n, n_seqs), f"{name}_flat", il))
        mixed = ops.concat(ops.concat(flat[0], flat[1], 0), flat[2], 0)
        return self.cb(mixed, "qkv_mixed", il), z

    def build_beta_alpha(self, cur: Tensor, il: int) -> tuple[Tensor, Tensor]:
        """Both out of one product."""
        hp, n, n_seqs = self.hp, self.n_seq_tokens, self.batch.n_seqs
        n_k, each = hp.ssm_n_group, hp.ssm_dt_rank // hp.ssm_n_group
        joined = self.cb(self.mm(il, "ssm_ba", cur), "linear_attn_mixed_ba", il)
        joined = ops.reshape(joined, 2 * each, n_k, n, n_seqs)
        ne, (nb0, nb1, nb2, nb3) = (each, n_k, n, n_seqs), joined.nb
        b = self.cb(ops.view_4d(joined, ne, nb1, nb2, nb3), "b", il)
        a = self.cb(ops.view_4d(joined, ne, nb1, nb2, nb3, each * nb0), "a", il)
        beta = ops.reshape(ops.unary(ops.cont(b), "SIGMOID"), 1, hp.ssm_dt_rank, n, n_seqs)
        return beta, ops.cont(a, hp.ssm_dt_rank, n, n_seqs)

    def repeated(self, t: Tensor) -> Tensor:
        """Key heads as many as value heads, each beside its own."""
        n_k, n_v = self.hp.ssm_n_group, self.hp.ssm_dt_rank
        if n_k == n_v:
            return t
        size, _, n, n_seqs = t.ne
        t = ops.repeat_4d(ops.reshape(t, size, 1, n_k, n * n_seqs), (size, n_v // n_k, n_k, n * n_seqs))
        return ops.reshape(t, size, n_v, n, n_seqs)


class Qwen3NextMTPGraph(DeltaNetMTP[ExpertHParams], Qwen3NextGraph):
    """``llama_model_qwen3next::graph_mtp``."""

    takes_rows = "layer"
    unscaled = ()

    def query_and_gate(self, joined: Tensor, size: int, n_head: int, n: int, il: int) -> tuple[Tensor, Tensor]:
        """As Qwen3.5's."""
        return DeltaNetMTP.query_and_gate(self, joined, size, n_head, n, il)


class Qwen3Next(ExpertArchitecture[ExpertHParams]):
    """``llama_model_qwen3next``."""

    name = "qwen3next"
    graph = Qwen3NextGraph
    rolls_back = False
    nextn_since = 10240

    def load_hparams(self, k: Keys, release: Release) -> ExpertHParams:
        """``load_arch_hparams``."""
        return ExpertHParams(**self.fields(k, release))

    def delta_net(self, hp: ExpertHParams, have: Have, p: str) -> Iterator[Wanted]:
        """A recurrent layer's weights."""
        e, n_v, values = hp.n_embd, hp.ssm_dt_rank, hp.ssm_d_state * hp.ssm_dt_rank
        keys = hp.ssm_d_state * hp.ssm_n_group
        if p + "ssm_in.weight" in have:
            yield Wanted(p + "ssm_in.weight", (e, 2 * keys + 2 * values))
        else:
            yield Wanted(p + "attn_qkv.weight", (e, 2 * keys + values))
            yield Wanted(p + "attn_gate.weight", (e, values))
        yield Wanted(p + "ssm_conv1d.weight", (hp.ssm_d_conv, 2 * keys + values))
        yield Wanted(p + "ssm_dt.bias", (n_v,))
        yield Wanted(p + "ssm_a", (n_v,), op="MUL")
        yield Wanted(p + "ssm_ba.weight", (e, 2 * n_v))
        yield Wanted(p + "ssm_norm.weight", (hp.ssm_d_state,))
        yield Wanted(p + "ssm_out.weight", (values, e))


class Qwen3NextMTP(MTPBlock[ExpertHParams], Qwen3Next):
    """Its own MTP block."""

    graph = Qwen3NextMTPGraph
    since = Qwen3Next.nextn_since


ARCHITECTURE = Qwen3Next(mtp=Qwen3NextMTP())
