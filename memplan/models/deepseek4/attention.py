"""Attention of the three kinds: over the raw window alone, with chosen compressed keys (CSA), with all of them (HCA).

Follows ``src/models/deepseek4.cpp`` (``build_attention_impl``, ``build_csa_lid_attention``, ``build_hca_attention``,
...) and ``src/llama-graph.cpp`` (``build_attn_mha``), v0.5.0, and for older forms b9842.
"""

from __future__ import annotations

from memplan.ggml import ops
from memplan.ggml.tensor import Tensor
from memplan.gguf.types import F16, F32, GGMLType
from memplan.llama.hparams import CSA_RATIO, HCA_RATIO
from memplan.models.deepseek4.indexer import LightningIndexer


class Attention(LightningIndexer):
    """One layer's attention."""

    k_idxs: Tensor
    raw_mask: Tensor
    raw_rot: Tensor | None

    def attn_mha(self, q: Tensor, k: Tensor, mask: Tensor, sinks: Tensor, n_kv_max: int, il: int) -> Tensor:
        """Attention over keys that are also the values (``build_attn_mha``)."""
        s = k.ne[3]
        q = ops.view(q, (q.ne[0], q.ne[1], q.ne[2] // s, s), (q.nb[0], q.nb[1], q.nb[2], q.nb[3] // s))
        q = ops.permute(q, 0, 2, 1, 3)
        v = k
        k = ops.permute(k, 0, 2, 1, 3)
        v = ops.permute(v, 0, 2, 1, 3)
        if self.masks.flash:
            k = _f16_of_f32(k)
            v = _f16_of_f32(v)
            cur = ops.flash_attn_ext(q, k, v, mask, sinks, n_kv_max)
            self.fused_nodes.append(("FLASH_ATTN", cur, il))
            cur = ops.reshape(cur, cur.ne[0] * cur.ne[1], cur.ne[2] * cur.ne[3])
        else:
            kq = self.cb(ops.mul_mat(k, q), "kq", il)
            if self.fused.flash_attn:
                # a bias of nothing keeps unified slots from flash attention (dsv4_build_kq_zero_bias)
                bias = ops.fill(ops.new(F32, mask.ne[0], mask.ne[1], q.ne[2], mask.ne[3]))
                kq = self.cb(ops.add(kq, bias), "kq_plus_kq_b", il)
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
        if rot is not None and not self.release.rotates_compressed_keys:
            ratio = 0
        top_k = self.lid_top_k(qr, cur, il) if ratio == CSA_RATIO else None
        if rot is not None:
            q = self.hadamard(q, rot)
            kv = self.hadamard(kv, rot)
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
            mask = ops.concat(mask, _as(self.masks.raw, comp_mask), 0)
            self.cb(mask, "hca_kq_mask" if top_k is None else "csa_lid_kq_mask", il)
        out = self.attn_mha(q, k, mask, self.w(il, "attn_sinks"), n_kv_max, il)
        if rot is not None and self.release.rotates_compressed_keys:
            out = self.hadamard(out, rot)
        return self.cb(out, name, il)

    def output_a(self, il: int) -> Tensor:
        """The first output projection, a matrix a group."""
        w = self.w(il, "attn_output_a")
        if self.release.attn_output_a_in_groups:
            return w
        return ops.reshape(w, w.ne[0], self.hp.o_lora_rank, self.hp.o_group_count)

    def attention(self, cur: Tensor, il: int) -> Tensor:
        """``build_attention_impl``."""
        hp = self.hp
        n_head, head, n = hp.n_head, hp.n_embd_head_k, cur.ne[1]
        groups, o_lora = hp.o_group_count, hp.o_lora_rank
        qr = self.cb(ops.mul_mat(self.w(il, "attn_q_a"), cur), "qr", il)
        qr = self.cb(self.norm(qr, self.w(il, "attn_q_a_norm"), il), "qr_norm", il)
        q = ops.rms_norm(ops.reshape(ops.mul_mat(self.w(il, "attn_q_b"), qr), head, n_head, n))
        q = self.cb(self.rope(self.cb(q, "q_norm", il), self.inp_pos, f"q_pe-{il}"), "q", il)
        kv = self.norm(ops.mul_mat(self.w(il, "attn_kv"), cur), self.w(il, "attn_kv_a_norm"), il)
        kv = self.cb(ops.reshape(kv, head, 1, n), "kv_norm", il)
        kv = self.cb(self.rope(kv, self.inp_pos, f"kv_pe-{il}"), "kv", il)
        ratio = hp.compress_ratios[il]
        if ratio == CSA_RATIO:
            self.csa_compressors(cur, il)
        elif ratio == HCA_RATIO:
            self.hca_compressor(cur, il)
        out = self.attend(q, kv, qr, cur, ratio, il)
        out = ops.reshape(out, head, n_head, n)
        out = self.cb(self.rope(out, self.inp_pos, back=True), "attn_derope", il)
        out = ops.permute(ops.reshape(out, n_head // groups * head, groups, n), 0, 2, 1, 3)
        oa = self.cb(ops.mul_mat(self.output_a(il), out), "attn_wo_a", il)
        oa = ops.cont(ops.permute(oa, 0, 2, 1, 3), o_lora * groups, n)
        return self.cb(ops.mul_mat(self.w(il, "attn_output_b"), oa), "attn_out", il)


def _f16_of_f32(t: Tensor) -> Tensor:
    """``t`` as flash attention takes it: f32 is cast to f16."""
    return ops.cast(t, F16) if t.type is F32 else t


def _as(type: GGMLType, t: Tensor) -> Tensor:
    """``t`` in another type, if it is in another."""
    return t if t.type is type else ops.cast(t, type)
