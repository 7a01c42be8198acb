"""Gated delta nets: linear attention with a state that decays and is corrected.

Follows src/models/delta-net-base.cpp (``llm_build_delta_net_base``) and src/models/models.h (``build_gdn_l2_norm``),
read from b9842 to v0.5.0.
"""

from __future__ import annotations

from collections.abc import Sequence

from memplan.ggml import ops
from memplan.ggml.tensor import Tensor
from memplan.llama.graph.base import H
from memplan.llama.graph.recurrent import Recurrent

AUTOREGRESSIVE, CHUNKED = "GDN_AR", "GDN_CH"
"""The fused ops, for one token a sequence and for several (``LLM_FUSED_OP_GDN_*``)."""


class DeltaNet(Recurrent[H]):
    """One layer's gated delta net.

    Shapes are (elements, heads, tokens of a sequence, sequences) for ``q``, ``k``, ``v``, the decay ``g`` (one a head,
    or one an element) and ``beta`` (one a head); a state is (elements, elements, heads, sequences).
    """

    def build_conv_state(self, rs: Sequence[Tensor], qkv: Tensor, kernel: int, channels: int, il: int) -> Tensor:
        """What the convolution reads, older tokens first; the newest are kept for the next batch."""
        n_seqs = self.batch.n_seqs
        r = self.leaf("cache_r", il)
        states = self.cb(self.build_rs(rs, r), "conv_states", il)
        states = self.cb(ops.reshape(states, kernel - 1, channels, n_seqs), "conv_states_reshaped", il)
        qkv = self.cb(ops.transpose(qkv), "qkv_mixed_transposed", il)
        conv_input = self.cb(ops.concat(states, qkv, 0), "conv_input", il)
        snapshots = self.states.n_rs_seq
        row = r.nb[1]
        for t in range(1, snapshots + 2):
            at = max(0, conv_input.ne[0] - states.ne[0] - snapshots - 1 + t)
            last = ops.view_3d(
                conv_input,
                (kernel - 1, channels, n_seqs),
                conv_input.nb[1],
                conv_input.nb[2],
                at * conv_input.nb[0],
            )
            update = ops.view_2d(r, (kernel - 1) * channels, n_seqs, row, (snapshots + 1 - t) * self.states.cells * row)
            if not snapshots:
                self.cb(last, "conv_state_last", il)
                self.cb(update, "conv_state_update", il)
            self.graph.expand(ops.cpy(last, update))
        return conv_input

    def build_gdn_l2_norm(self, x: Tensor) -> Tensor:
        """Rows of length one (``build_gdn_l2_norm``; before v0.5.0, ``ggml_l2_norm``)."""
        return ops.scale(ops.rms_norm(x)) if self.release.delta_net_rms_norm else ops.l2_norm(x)

    def build_recurrent_attn(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, il: int
    ) -> Tensor:
        """The result, (elements, heads, tokens, sequences); new states go where the old ones were."""
        s, n_seqs, graph = self.leaf("cache_s", il), self.batch.n_seqs, self.graph
        size, snapshots = s.ne[0], self.states.n_rs_seq
        if not snapshots:
            output, new_state = self.build_delta_net(q, k, v, g, beta, state, il)
            self.cb(output, "attn_output", il)
            self.cb(new_state, "new_state", il)
            graph.expand(ops.cpy(new_state, ops.view_2d(s, size, n_seqs, s.nb[1], 0)))
            return output
        result = self._fused(q, k, v, g, beta, state, snapshots + 1, il)
        output = self.cb(self._output(result, v), "attn_output", il)
        written = min(v.ne[2], snapshots + 1)
        row = s.nb[1]
        src = ops.view_3d(result, (size, n_seqs, written), row, row * n_seqs, v.nelements * result.nb[0])
        graph.expand(ops.cpy(src, ops.view_3d(s, (size, n_seqs, written), row, self.states.cells * row)))
        return output

    def build_delta_net(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, il: int
    ) -> tuple[Tensor, Tensor]:
        """The result and the state after the batch."""
        if (AUTOREGRESSIVE if q.ne[2] == 1 else CHUNKED) in self.fused:
            result = self._fused(q, k, v, g, beta, state, 1, il)
            at = v.nelements * result.nb[0]
            new_state = ops.view_4d(result, state.ne, *_nb(result, *state.ne), at)
            return self._output(result, v), new_state
        if q.ne[2] == 1:
            return self._autoregressive(q, k, v, g, beta, state, il)
        return self._chunking(q, k, v, g, beta, state, il)

    def _fused(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, states: int, il: int
    ) -> Tensor:
        result = ops.gated_delta_net(q, k, v, g, beta, state, states)
        self.fused_nodes.append((AUTOREGRESSIVE if v.ne[2] == 1 else CHUNKED, result, il))
        return result

    @staticmethod
    def _output(result: Tensor, v: Tensor) -> Tensor:
        return ops.view_4d(result, v.ne, *_nb(result, *v.ne))

    def _autoregressive(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, s: Tensor, il: int
    ) -> tuple[Tensor, Tensor]:
        """One token a sequence, from small ops (``build_delta_net_autoregressive``)."""
        heads, n_seqs = v.ne[1], v.ne[3]
        q, k, v = (ops.permute(t, 0, 2, 1, 3) for t in (ops.scale(q), k, v))
        for t, name in ((q, "q_in"), (k, "k_in"), (v, "v_in"), (beta, "b_in"), (g, "g_in")):
            self.cb(t, name, il)
        g = ops.reshape(g, 1, g.ne[0], heads, n_seqs)
        beta = ops.reshape(beta, 1, 1, heads, n_seqs)
        s = ops.mul(s, ops.unary(g, "EXP"))
        sk = ops.sum_rows(ops.mul(s, k))
        d = ops.mul(ops.sub(v, ops.transpose(sk)), beta)
        kd = ops.mul(ops.repeat_4d(k, s.ne), ops.transpose(d))
        s = self.cb(ops.add(s, kd), "dnet_add_ar_state", il)
        return ops.permute(ops.sum_rows(ops.mul(s, q)), 2, 0, 1, 3), s

    def _chunking(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, s: Tensor, il: int
    ) -> tuple[Tensor, Tensor]:
        """Several tokens a sequence, chunk by chunk, from small ops (``build_delta_net_chunking``)."""
        size, heads, tokens, n_seqs = v.ne
        per_element = g.ne[:2] == (q.ne[0], q.ne[1])
        chunk = 16 if per_element else 64
        pad = -tokens % chunk
        chunks = (tokens + pad) // chunk
        q = ops.scale(q)
        for t, name in ((q, "q_in"), (k, "k_in"), (v, "v_in"), (beta, "b_in"), (g, "g_in")):
            self.cb(t, name, il)
        q, k, v, g, beta = (ops.pad(ops.permute(t, 0, 2, 1, 3), 0, pad) for t in (q, k, v, g, beta))
        v_b = self.cb(ops.mul(v, beta), "v_b", il)
        k_b = self.cb(ops.mul(k, beta), "k_b", il)
        q, k, k_b, v_b, g = (ops.reshape(t, t.ne[0], chunk, chunks, t.ne[2] * n_seqs) for t in (q, k, k_b, v_b, g))
        g_cs = self.cb(ops.cumsum(ops.cont(ops.transpose(g))), "g_cs", il)
        kb, kq = (self._decayed_per_element if per_element else self._decayed)(q, k, k_b, g_cs, il)
        kq = self.cb(ops.tri(kq), "kq", il)
        attn = self.cb(ops.tri(kb), "attn", il)
        identity = ops.diag(ops.fill(ops.view_1d(attn, chunk, 0)))
        lhs = self.cb(ops.add(attn, identity), "dnet_add_ch_lhs", il)
        attn = self.cb(ops.unary(attn, "NEG"), "attn_pre_solve", il)
        attn = self.cb(ops.add(ops.solve_tri(lhs, attn), identity), "dnet_add_ch_attn_solved", il)
        v = ops.mul_mat(ops.cont(ops.transpose(v_b)), attn)
        g_exp = ops.unary(g_cs, "EXP")
        k_b_g = self.cb(ops.mul(ops.cont(ops.transpose(k_b)), g_exp), "k_beta_g_exp", il)
        k_cd = self.cb(ops.mul_mat(k_b_g, attn), "k_cumdecay", il)
        q_g_exp = ops.mul(q, ops.cont(ops.transpose(g_exp)))
        nb = g_cs.nb
        g_last = ops.view_4d(g_cs, (1, *g_cs.ne[1:]), nb[1], nb[2], nb[3], (chunk - 1) * nb[0])
        g_last = ops.cont(self.cb(g_last, "g_last", il))
        g_last_exp = self.cb(ops.transpose(ops.unary(g_last, "EXP")), "g_last_exp_t", il)
        g_diff = self.cb(ops.unary(ops.sub(g_cs, g_last), "NEG"), "g_diff", il)
        kg = ops.mul(k, ops.cont(ops.transpose(ops.unary(g_diff, "EXP"))))
        kg = self.cb(kg, "key_gdiff", il)
        kg = self.cb(ops.cont(ops.transpose(kg)), "key_gdiff_t", il)
        s = self.cb(ops.reshape(s, size, size, 1, heads * n_seqs), "dnet_add_ch_state", il)
        v_t = ops.cont(ops.transpose(v))
        for i in range(chunks):
            of_k, of_v, of_kq, of_q, of_kg = (_slice(t, i) for t in (k_cd, v_t, kq, q_g_exp, kg))
            v_prime = self.cb(ops.mul_mat(of_k, s), "v_prime", il)
            v_new = self.cb(ops.sub(of_v, v_prime), "v_t_new", il)
            v_attn = self.cb(ops.mul_mat(v_new, of_kq), "v_attn", il)
            inter = self.cb(ops.mul_mat(s, of_q), "attn_inter", il)
            out = self.cb(ops.add(inter, v_attn), "dnet_add_ch_attn_out", il)
            v = ops.set_inplace(v, out)
            kgv = ops.mul_mat(of_kg, v_new)
            s = self.cb(ops.add(ops.mul(s, _slice(g_last_exp, i)), kgv), "dnet_add_ch_state", il)
        out = ops.view_4d(v, (size, tokens, heads, n_seqs), *_nb(v, size, chunk * chunks, heads))
        s = self.cb(ops.reshape(s, size, size, heads, n_seqs), "output_state", il)
        return ops.permute(out, 0, 2, 1, 3), s

    def _decayed(self, q: Tensor, k: Tensor, k_b: Tensor, g_cs: Tensor, il: int) -> tuple[Tensor, Tensor]:
        """Products of keys with keys and queries within a chunk, with one decay a head."""
        chunk, _, chunks, rest = g_cs.ne
        square = (chunk, chunk, chunks, rest)
        g_j = ops.repeat_4d(ops.reshape(g_cs, 1, chunk, chunks, rest), square)
        mask = ops.unary(ops.tri(ops.sub(g_j, g_cs)), "EXP")
        self.cb(mask, "decay_mask", il)
        return ops.mul(ops.mul_mat(k, k_b), mask), ops.mul(ops.mul_mat(k, q), mask)

    def _decayed_per_element(self, q: Tensor, k: Tensor, k_b: Tensor, g_cs: Tensor, il: int) -> tuple[Tensor, Tensor]:
        """The same with a decay for each element of a head."""
        chunk, size, chunks, rest = g_cs.ne
        n = chunks * rest
        g_j = ops.repeat_4d(ops.reshape(g_cs, 1, chunk, size, n), (chunk, chunk, size, n))
        mask = ops.tri(ops.sub(g_j, ops.reshape(g_cs, chunk, 1, size, n)))
        mask = self.cb(ops.unary(mask, "EXP"), "decay_mask", il)
        mask = ops.cont(ops.permute(mask, 2, 1, 0, 3), size, chunk, chunk, n)
        k_j = ops.reshape(k, size, 1, chunk, n)
        products = []
        for t in (k_b, q):
            product = ops.mul_mat(ops.mul(mask, ops.reshape(t, size, chunk, 1, n)), k_j)
            products.append(ops.cont(ops.transpose(ops.reshape(product, chunk, chunk, chunks, rest))))
        return products[0], products[1]


def _nb(t: Tensor, *ne: int) -> tuple[int, int, int]:
    """Strides of rows, matrices and what lies above, for extents without gaps."""
    nb1 = t.type.row_size(ne[0])
    return nb1, nb1 * ne[1], nb1 * ne[1] * ne[2]


def _slice(t: Tensor, i: int) -> Tensor:
    """Element ``i`` of the third dimension (``get_slice_2d``)."""
    return ops.view_4d(t, (t.ne[0], t.ne[1], 1, t.ne[3]), t.nb[1], t.nb[2], t.nb[3], i * t.nb[2])
