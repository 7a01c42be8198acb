"""Attention of the three kinds: over the raw window alone, with chosen compressed keys (CSA), with all of them (HCA).

Follows ``src/models/deepseek4.cpp`` (``build_attention_impl``, ``build_csa_lid_attention``, ``build_hca_attention``,
...) and ``src/llama-graph.cpp`` (``build_attn_mha``), v0.5.0, and for older forms b9842.
"""

from __future__ import annotations

from memplan.ggml import ops
from memplan.ggml.tensor import Tensor
from memplan.gguf.types import GGMLType
from memplan.models.deepseek4.hparams import CSA_RATIO, HCA_RATIO
from memplan.models.deepseek4.indexer import LightningIndexer


class Attention(LightningIndexer):
    """One layer's attention."""

    k_idxs: Tensor
    raw_mask: Tensor
    raw_rot: Tensor | None

    def attend_to(self, q: Tensor, kv: Tensor, qr: Tensor, cur: Tensor, ratio: int, il: int) -> Tensor:
        """One layer's attention of its kind (``build_raw_attention``, ``build_csa_lid_attention``, ...)."""
        hp, graph, rot = self.hp, self.graph, self.raw_rot
        if rot is not None and not self.switches.rotates_compressed_keys:
            ratio = 0
        top_k = self.lid_top_k(qr, cur, il) if ratio == CSA_RATIO else None
        if rot is not None:
            q = self.hadamard(q, rot)
            kv = self.hadamard(kv, rot)
        graph.expand(q)
        graph.expand(kv)
        graph.expand(self.cpy_k("cache_k", kv, self.k_idxs, il))
        k = self.get_k("cache_k", hp.n_embd_head_k(), 1, il)
        mask, n_kv_max, name = self.raw_mask, 0, "attn_raw"
        if ratio:
            which, inp = ("csa", self.csa) if ratio == CSA_RATIO else ("hca", self.hca)
            self.cb(k, f"{which}_raw_k", il)
            comp = self.get_k(f"cache_k@{which}", hp.n_embd_head_k(), 1, il)
            comp = ops.view(comp, (comp.ne[0], comp.ne[1], inp.kq_mask.ne[0], comp.ne[3]), comp.nb)
            k = self.cb(ops.concat(k, self.cb(comp, f"{which}_comp_k", il), 2), f"{which}_k_all", il)
            comp_mask = inp.kq_mask
            name = "attn_hca"
            if top_k is not None:
                comp_mask = self.top_keys_mask(inp.kq_mask, top_k, self.masks.compressed)
                self.cb(comp_mask, "csa_top_k_mask", il)
                n_kv_max = min(mask.ne[0], hp.n_swa) + top_k.ne[0]
                name = "attn_csa_lid"
            mask = ops.concat(mask, _as(self.masks.raw, comp_mask), 0)
            self.cb(mask, "hca_kq_mask" if top_k is None else "csa_lid_kq_mask", il)
        sinks = self.w(il, "attn_sinks")
        # a bias of nothing keeps unified slots from flash attention (dsv4_build_kq_zero_bias)
        bias = "FLASH_ATTN" in self.fused and not self.masks.flash
        out = self.build_attn_mha(q, k, k, mask, il, sinks=sinks, n_kv_max=n_kv_max, bias=bias)
        if rot is not None and self.switches.rotates_compressed_keys:
            out = self.hadamard(out, rot)
        return self.cb(out, name, il)

    def output_a(self, il: int) -> Tensor:
        """The first output projection, a matrix a group."""
        w = self.w(il, "attn_output_a")
        if self.switches.attn_output_a_in_groups:
            return w
        return ops.reshape(w, w.ne[0], self.hp.o_lora_rank, self.hp.o_group_count)

    def attention(self, cur: Tensor, il: int) -> Tensor:
        """``build_attention_impl``."""
        hp = self.hp
        n_head, head, n = hp.n_head[0], hp.n_embd_head_k(), cur.ne[1]
        groups, o_lora = hp.o_group_count, hp.o_lora_rank
        qr = self.cb(ops.mul_mat(self.w(il, "attn_q_a"), cur), "qr", il)
        qr = self.cb(self.norm(qr, self.w(il, "attn_q_a_norm"), il), "qr_norm", il)
        q = ops.rms_norm(ops.reshape(ops.mul_mat(self.w(il, "attn_q_b"), qr), head, n_head, n))
        q = self.cb(self.rope_end(self.cb(q, "q_norm", il), self.inp_pos, f"q_pe-{il}"), "q", il)
        kv = self.norm(ops.mul_mat(self.w(il, "attn_kv"), cur), self.w(il, "attn_kv_a_norm"), il)
        kv = self.cb(ops.reshape(kv, head, 1, n), "kv_norm", il)
        kv = self.cb(self.rope_end(kv, self.inp_pos, f"kv_pe-{il}"), "kv", il)
        ratio = hp.compress_ratios[il]
        if ratio == CSA_RATIO:
            self.csa_compressors(cur, il)
        elif ratio == HCA_RATIO:
            self.hca_compressor(cur, il)
        out = self.attend_to(q, kv, qr, cur, ratio, il)
        out = ops.reshape(out, head, n_head, n)
        out = self.cb(self.rope_end(out, self.inp_pos, back=True), "attn_derope", il)
        out = ops.permute(ops.reshape(out, n_head // groups * head, groups, n), 0, 2, 1, 3)
        oa = self.cb(ops.mul_mat(self.output_a(il), out), "attn_wo_a", il)
        oa = ops.cont(ops.permute(oa, 0, 2, 1, 3), o_lora * groups, n)
        return self.cb(ops.mul_mat(self.w(il, "attn_output_b"), oa), "attn_out", il)


def _as(type: GGMLType, t: Tensor) -> Tensor:
    """``t`` in another type, if it is in another."""
    return t if t.type is type else ops.cast(t, type)
