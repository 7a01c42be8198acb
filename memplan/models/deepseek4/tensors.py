"""The weights that llama.cpp asks a DeepSeek-V4 file for.

Follows src/models/deepseek4.cpp (``load_arch_tensors``), v0.5.0; v0.4.0 asks for the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.llama.weights import Have, Wanted, ffn, head, nextn
from memplan.models.deepseek4.hparams import CSA_RATIO
from memplan.models.deepseek4.switches import switches

if TYPE_CHECKING:
    from memplan.models.deepseek4.hparams import DeepSeek4HParams
    from memplan.releases import Release


def wanted(hp: DeepSeek4HParams, have: Have, load_mtp: bool, release: Release) -> Iterator[Wanted]:
    """Everything in the order of ``load_arch_tensors``; MTP blocks are skipped unless they are asked for."""
    e, hc = hp.n_embd, hp.hc_mult
    yield from head(hp, have, tied=False)
    yield Wanted("output_hc_fn.weight", (hc * e, hc))
    yield Wanted("output_hc_base.weight", (hc,))
    yield Wanted("output_hc_scale.weight", (1,))
    for il in range(hp.n_layer_all):
        skip = il >= hp.n_layer and not load_mtp
        for w in block(hp, il, release):
            yield replace(w, skip=True) if skip else w


def block(hp: DeepSeek4HParams, il: int, release: Release) -> Iterator[Wanted]:
    """Those of one block."""
    yield from _attention(hp, il, release)
    yield from _compressors(hp, il, release)
    yield from _ffn(hp, il, release)
    if il >= hp.n_layer:
        yield from nextn(hp, il)


def _attention(hp: DeepSeek4HParams, il: int, release: Release) -> Iterator[Wanted]:
    e, heads, d, q = hp.n_embd, hp.n_head[0], hp.n_embd_head_k(), hp.n_lora_q
    groups, lora, p = hp.o_group_count, hp.o_lora_rank, f"blk.{il}."
    yield Wanted(p + "attn_norm.weight", (e,))
    yield Wanted(p + "attn_sinks.weight", (heads,))
    yield Wanted(p + "attn_q_a.weight", (e, q))
    yield Wanted(p + "attn_q_a_norm.weight", (q,))
    yield Wanted(p + "attn_q_b.weight", (q, heads * d))
    yield Wanted(p + "attn_kv.weight", (e, d))
    yield Wanted(p + "attn_kv_a_norm.weight", (d,))
    in_groups, flat = switches(release).attn_output_a_in_groups, (heads * d // groups, lora * groups)
    output_a = (heads * d // groups, lora, groups) if in_groups else flat
    yield Wanted(p + "attn_output_a.weight", output_a, reshape=in_groups, stored=flat)
    yield Wanted(p + "attn_output_b.weight", (groups * lora, e))
    mix = (2 + hp.hc_mult) * hp.hc_mult
    for part in ("attn", "ffn"):
        yield Wanted(f"{p}hc_{part}_fn.weight", (hp.hc_mult * e, mix))
        yield Wanted(f"{p}hc_{part}_base.weight", (mix,))
        yield Wanted(f"{p}hc_{part}_scale.weight", (3,))


def _compressors(hp: DeepSeek4HParams, il: int, release: Release) -> Iterator[Wanted]:
    ratio = hp.compress_ratios[il]
    if not ratio:
        return
    e, d, i, p = hp.n_embd, hp.n_embd_head_k(), hp.indexer_head_size, f"blk.{il}."
    coff = 2 if ratio == CSA_RATIO else 1
    ape = "ADD" if switches(release).adds_compressor_ape else "GET_ROWS"
    yield from _compressor(p + "attn", e, coff * d, d, ratio, ape)
    if ratio == CSA_RATIO:
        yield Wanted(p + "indexer.proj.weight", (e, hp.indexer_n_head))
        yield Wanted(p + "indexer.attn_q_b.weight", (hp.n_lora_q, hp.indexer_n_head * i))
        yield from _compressor(p + "indexer", e, 2 * i, i, ratio, ape)


def _compressor(prefix: str, e: int, width: int, out: int, ratio: int, ape: str) -> Iterator[Wanted]:
    yield Wanted(prefix + "_compressor_kv.weight", (e, width))
    yield Wanted(prefix + "_compressor_gate.weight", (e, width))
    yield Wanted(prefix + "_compressor_ape.weight", (width, ratio), op=ape)
    yield Wanted(prefix + "_compressor_norm.weight", (out,))


def _ffn(hp: DeepSeek4HParams, il: int, release: Release) -> Iterator[Wanted]:
    e, n, ff, p = hp.n_embd, hp.n_expert, hp.n_ff_exp, f"blk.{il}."
    yield Wanted(p + "ffn_gate_inp.weight", (e, n))
    if il < hp.hash_layer_count:
        yield Wanted(p + "ffn_gate_tid2eid.weight", (hp.n_expert_used[0], hp.n_vocab))
    else:
        yield Wanted(p + "exp_probs_b.bias", (n,))
    if switches(release).image_routing_bias:
        yield Wanted(p + "exp_probs_b_vl.bias", (n,), optional=True)
    yield Wanted(p + "ffn_norm.weight", (e,))
    yield from ffn(il, e, ff, "_exps", n)
    shared = ff * hp.n_expert_shared
    yield from ffn(il, e, shared, "_shexp")
