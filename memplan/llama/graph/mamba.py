"""State spaces (Mamba 2).

Follows src/models/mamba-base.cpp (``build_mamba2_layer``), read from b9842 to v0.5.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from memplan.ggml import ops
from memplan.ggml.tensor import Tensor
from memplan.llama.graph.recurrent import Recurrent
from memplan.llama.ssm import SSMHParams

S = TypeVar("S", bound=SSMHParams)


class Mamba(Recurrent[S]):
    """One layer's state space."""

    def build_mamba2_layer(self, rs: Sequence[Tensor], cur: Tensor, il: int) -> Tensor:
        """(n_embd, tokens) from the same."""
        hp, graph, snapshots = self.hp, self.graph, self.states.n_rs_seq
        n_seqs, n_tokens, cells = self.batch.n_seqs, self.n_seq_tokens, self.states.cells
        d_inner, n_head, n_group, channels = hp.ssm_d_inner, hp.ssm_dt_rank, hp.ssm_n_group, hp.ssm_conv_channels
        head, d_state, d_conv = d_inner // n_head, hp.ssm_d_state, hp.ssm_d_conv
        r, s = self.leaf("cache_r", il), self.leaf("cache_s", il)
        conv = ops.reshape(self.build_rs(rs, r), d_conv - 1, channels, n_seqs)
        if not self.release.mamba_projects_rows:
            cur = ops.reshape(cur, cur.ne[0], n_tokens, n_seqs)
        zxbcdt = self.mm(il, "ssm_in", cur)
        if self.release.mamba_projects_rows:
            zxbcdt = ops.reshape(zxbcdt, zxbcdt.ne[0], n_tokens, n_seqs)
        row, (_, nb1, nb2, _) = zxbcdt.type.row_size, zxbcdt.nb
        z = ops.view_4d(zxbcdt, (head, n_head, n_tokens, n_seqs), row(head), nb1, nb2)
        xbc = ops.view_3d(zxbcdt, (channels, n_tokens, n_seqs), nb1, nb2, row(d_inner))
        dt = ops.view_3d(zxbcdt, (n_head, n_tokens, n_seqs), nb1, nb2, row(d_inner + channels))

        conv_x = ops.concat(conv, ops.transpose(xbc), 0)
        written = min(n_tokens, snapshots + 1)
        for slot in range(written):
            ne, at = (d_conv - 1, channels, n_seqs), (n_tokens - slot) * conv_x.nb[0]
            last = ops.view_3d(conv_x, ne, conv_x.nb[1], conv_x.nb[2], at)
            graph.expand(ops.cpy(last, self._update(r, n_seqs, slot * cells)))
        xbc = ops.add(ops.ssm_conv(conv_x, self.w(il, "ssm_conv1d")), self.leaf("ssm_conv1d.bias", il))
        xbc = ops.unary(xbc, "SILU")

        _, nb1, nb2, _ = xbc.nb
        x = ops.view_4d(xbc, (head, n_head, n_tokens, n_seqs), row(head), nb1, nb2)
        groups = (d_state, n_group, n_tokens, n_seqs)
        b = ops.view_4d(xbc, groups, row(d_state), nb1, nb2, row(d_inner))
        c = ops.view_4d(xbc, groups, row(d_state), nb1, nb2, row(d_inner + n_group * d_state))
        dt = ops.add(ops.cont(dt), self.leaf("ssm_dt.bias", il))
        a = self.leaf("ssm_a", il)

        def scan(states: Tensor, ids: Tensor) -> Tensor:
            ssm = ops.reshape(states, d_state, head, n_head, s.ne[1])
            return ops.ssm_scan(ssm, x, dt, a, b, c, ids, snapshots + 1)

        y_ssm = self.build_rs(rs, s, scan)
        size = s.ne[0]
        if self.release.mamba_projects_rows:
            left = ops.view_3d(y_ssm, (size, n_seqs, written), s.nb[1], n_seqs * s.nb[1], x.nelements * x.nb[0])
            kept = ops.view_3d(s, (size, n_seqs, written), s.nb[1], cells * s.nb[1])
        else:
            left = ops.view_1d(y_ssm, size * n_seqs, x.nelements * x.nb[0])
            kept = self._update(s, n_seqs, 0)
        graph.expand(ops.cpy(left, kept))
        y = ops.view_4d(y_ssm, x.ne, x.nb[1], n_head * x.nb[1], n_tokens * n_head * x.nb[1])
        y = self.cb(ops.add(y, ops.mul(x, self.leaf("ssm_d", il))), "mamba2_y_add_d", il)
        y = ops.glu(ops.cont(z), y, "SWIGLU")
        norm = self.maybe("ssm_norm.weight", il)
        if norm is not None:
            y = self.norm(ops.reshape(y, d_inner // n_group, n_group, n_tokens, n_seqs), norm, il)
        if self.release.mamba_projects_rows:
            cur = self.mm(il, "ssm_out", ops.reshape(y, d_inner, n_tokens * n_seqs))
        else:
            cur = self.mm(il, "ssm_out", ops.reshape(y, d_inner, n_tokens, n_seqs))
            cur = ops.reshape(cur, cur.ne[0], n_tokens * n_seqs)
        return self.cb(cur, "mamba_out", il)

    def _update(self, states: Tensor, n_seqs: int, at: int) -> Tensor:
        """The batch's cells of a state, from cell ``at`` on."""
        if self.release.mamba_projects_rows:
            return ops.view_2d(states, states.ne[0], n_seqs, states.nb[1], at * states.nb[1])
        return ops.view_1d(states, states.ne[0] * n_seqs, 0)
