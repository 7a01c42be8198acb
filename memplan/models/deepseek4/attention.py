"""Attention of the three kinds: over the raw window alone, with chosen compressed keys (CSA), with all of them (HCA).

Follows ``src/models/deepseek4.cpp`` (``build_attention_impl``, ``build_lid_top_k``, ``build_top_k_mask``, ...) and
``src/llama-graph.cpp`` (``build_attn_mha``), v0.5.0.
"""

from __future__ import annotations

from memplan.ggml import ops
from memplan.ggml.tensor import Tensor
from memplan.gguf.types import F16, F32
from memplan.llama.hparams import CSA_RATIO, HCA_RATIO
from memplan.models.deepseek4.compressors import Compressors
from memplan.models.deepseek4.pieces import hadamard


class Attention(Compressors):
    """One layer's attention."""

    inp_pos: Tensor
    k_idxs: Tensor
    raw_mask: Tensor
    raw_rot: Tensor | None

    def lid_top_k(self, qr: Tensor, cur: Tensor, il: int) -> Tensor:
        """The compressed keys that each token attends to (``build_lid_top_k``)."""
        hp, inp = self.hp, self.lid
        n_head, head = hp.indexer_n_head, hp.indexer_head_size
        n = cur.ne[1]
        q = ops.reshape(ops.mul_mat(self.w(il, "indexer.attn_q_b"), qr), head, n_head, n)
        q = self.cb(q, "lid_q", il)
        q = self.cb(self.rope(q, self.inp_pos), "lid_q_rope", il)
        assert inp.k_rot is not None  # k_rot() always gives the indexer one
        q = self.cb(hadamard(q, inp.k_rot), "lid_q_rot", il)
        weights = self.cb(ops.scale(ops.mul_mat(self.w(il, "indexer.proj"), cur)), "lid_weights", il)
        k = self.get_k("cache_k@lid", head, il)
        k = self.cb(ops.view(k, (k.ne[0], k.ne[1], inp.kq_mask.ne[0], k.ne[3]), k.nb), "lid_k", il)
        s = k.ne[3]
        qne, qnb = q.ne, q.nb
        q = ops.view(q, (qne[0], qne[1], qne[2] // s, s), (qnb[0], qnb[1], qnb[2], qnb[3] // s))
        wne, wnb = weights.ne, weights.nb
        weights = ops.view(weights, (wne[0], wne[1] // s, wne[2], s), (wnb[0], wnb[1], wnb[2] // s, wnb[3] // s))
        if self.fused.lid:
            score = self.cb(ops.lightning_indexer(q, k, weights, inp.kq_mask), "lid_score_masked", il)
            self.fused_nodes.append(("LIGHTNING_INDEXER", score, il))
        else:
            q = self.cb(ops.permute(q, 0, 2, 1, 3), "lid_q", il)
            k = self.cb(ops.permute(k, 0, 2, 1, 3), "lid_k", il)
            kq = self.cb(ops.mul_mat(k, q), "lid_kq", il)
            kq = self.cb(ops.cont(ops.permute(kq, 2, 1, 0, 3)), "lid_kq", il)
            score = ops.sum_rows(ops.mul(ops.unary(kq, "RELU"), weights))
            score = self.cb(ops.cont(ops.permute(score, 2, 1, 0, 3)), "lid_score", il)
            score = self.cb(ops.add(score, inp.kq_mask), "lid_score_masked", il)
        top_k = ops.cont(ops.top_k(score, min(score.ne[0], hp.indexer_top_k)))
        return self.cb(top_k, "lid_top_k", il)

    def top_k_mask(self, kq_mask: Tensor, top_k: Tensor, il: int) -> Tensor:
        """The mask with all but the chosen keys closed (``build_top_k_mask``)."""
        m = ops.fill(kq_mask)
        m = ops.view(m, (1, m.ne[0], m.ne[1], m.ne[3]), (m.nb[0], m.nb[0], m.nb[1], m.nb[2]))
        k = ops.view(
            top_k, (top_k.ne[0], top_k.ne[1], top_k.ne[3], 1),
            (top_k.nb[0], top_k.nb[1], top_k.nb[2], top_k.ne[3] * top_k.nb[3]),
        )  # fmt: skip
        zeros = ops.fill(ops.new(F16 if self.fused.flash_attn else F32, 1, k.ne[0], k.ne[1], k.ne[2]))
        m = ops.set_rows(m, zeros, k)
        m = ops.view(m, (m.ne[1], m.ne[2], 1, m.ne[3]), (m.nb[0], m.nb[2], m.nb[3], m.nb[3]))
        return self.cb(ops.add(m, kq_mask), "csa_top_k_mask", il)

    def attn_mha(self, q: Tensor, k: Tensor, mask: Tensor, sinks: Tensor, n_kv_max: int, il: int) -> Tensor:
        """Attention over keys that are also the values (``build_attn_mha``)."""
        s = k.ne[3]
        q = ops.view(q, (q.ne[0], q.ne[1], q.ne[2] // s, s), (q.nb[0], q.nb[1], q.nb[2], q.nb[3] // s))
        q = ops.permute(q, 0, 2, 1, 3)
        v = k
        k = ops.permute(k, 0, 2, 1, 3)
        v = ops.permute(v, 0, 2, 1, 3)
        if self.fused.flash_attn:
            if k.type is F32:
                k = ops.cast(k, F16)
            if v.type is F32:
                v = ops.cast(v, F16)
            cur = ops.flash_attn_ext(q, k, v, mask, sinks, n_kv_max)
            self.fused_nodes.append(("FLASH_ATTN", cur, il))
            cur = ops.reshape(cur, cur.ne[0] * cur.ne[1], cur.ne[2] * cur.ne[3])
        else:
            kq = self.cb(ops.mul_mat(k, q), "kq", il)
            kq = self.cb(ops.soft_max(kq, mask, sinks), "kq_soft_max", il)
            v = self.cb(ops.cont(ops.transpose(v)), "v_cont", il)
            kqv = self.cb(ops.mul_mat(v, kq), "kqv", il)
            cur = ops.permute(kqv, 0, 2, 1, 3)
            cur = ops.cont(cur, cur.ne[0] * cur.ne[1], cur.ne[2] * cur.ne[3])
            self.on_host.append(cur)
        self.graph.expand(cur)
        return cur

    def attend(self, q: Tensor, kv: Tensor, qr: Tensor, cur: Tensor, ratio: int, il: int) -> Tensor:
        """One layer's attention of its kind (``build_raw_attention``, ``build_csa_lid_attention``, ...)."""
        hp, graph, rot = self.hp, self.graph, self.raw_rot
        top_k = self.lid_top_k(qr, cur, il) if ratio == CSA_RATIO else None
        if rot is not None:
            q = hadamard(q, rot)
            kv = hadamard(kv, rot)
        graph.expand(q)
        graph.expand(kv)
        graph.expand(self.cpy_k("cache_k", kv, self.k_idxs, il))
        k = self.get_k("cache_k", hp.n_embd_head_k, il)
        mask, n_kv_max, name = self.raw_mask, 0, "attn_raw"
        if ratio:
            which, inp = ("csa", self.csa) if ratio == CSA_RATIO else ("hca", self.hca)
            self.cb(k, f"{which}_raw_k", il)
            comp = self.get_k(f"cache_k@{which}", hp.n_embd_head_k, il)
            comp = ops.view(comp, (comp.ne[0], comp.ne[1], inp.kq_mask.ne[0], comp.ne[3]), comp.nb)
            k = self.cb(ops.concat(k, self.cb(comp, f"{which}_comp_k", il), 2), f"{which}_k_all", il)
            comp_mask = inp.kq_mask
            name = "attn_hca"
            if top_k is not None:
                comp_mask = self.top_k_mask(inp.kq_mask, top_k, il)
                n_kv_max = min(mask.ne[0], hp.n_swa) + top_k.ne[0]
                name = "attn_csa_lid"
            mask = ops.concat(mask, comp_mask, 0)
            self.cb(mask, "hca_kq_mask" if top_k is None else "csa_lid_kq_mask", il)
        out = self.attn_mha(q, k, mask, self.w(il, "attn_sinks"), n_kv_max, il)
        if rot is not None:
            out = hadamard(out, rot)
        return self.cb(out, name, il)

    def attention(self, cur: Tensor, il: int) -> Tensor:
        """``build_attention_impl``."""
        hp = self.hp
        n_head, head, n = hp.n_head, hp.n_embd_head_k, cur.ne[1]
        groups, o_lora = hp.o_group_count, hp.o_lora_rank
        qr = self.cb(ops.mul_mat(self.w(il, "attn_q_a"), cur), "qr", il)
        qr = self.cb(self.norm(qr, self.w(il, "attn_q_a_norm"), il), "qr_norm", il)
        q = ops.rms_norm(ops.reshape(ops.mul_mat(self.w(il, "attn_q_b"), qr), head, n_head, n))
        q = self.cb(self.rope(self.cb(q, "q_norm", il), self.inp_pos), "q", il)
        kv = self.norm(ops.mul_mat(self.w(il, "attn_kv"), cur), self.w(il, "attn_kv_a_norm"), il)
        kv = self.cb(ops.reshape(kv, head, 1, n), "kv_norm", il)
        kv = self.cb(self.rope(kv, self.inp_pos), "kv", il)
        ratio = hp.compress_ratios[il]
        if ratio == CSA_RATIO:
            self.csa_compressors(cur, il)
        elif ratio == HCA_RATIO:
            self.hca_compressor(cur, il)
        out = self.attend(q, kv, qr, cur, ratio, il)
        out = ops.reshape(out, head, n_head, n)
        out = self.cb(self.rope(out, self.inp_pos, back=True), "attn_derope", il)
        out = ops.permute(ops.reshape(out, n_head // groups * head, groups, n), 0, 2, 1, 3)
        oa = self.cb(ops.mul_mat(self.w(il, "attn_output_a"), out), "attn_wo_a", il)
        oa = ops.cont(ops.permute(oa, 0, 2, 1, 3), o_lora * groups, n)
        return self.cb(ops.mul_mat(self.w(il, "attn_output_b"), oa), "attn_out", il)
