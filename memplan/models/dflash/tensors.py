"""The weights that llama.cpp asks a block drafter's file for.

Follows src/models/dflash.cpp (``load_arch_tensors``), v0.5.0, and what older releases do not ask for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from memplan.llama.weights import OUTPUT, Have, Wanted, ffn, rope_factors
from memplan.models.deepseek4.tensors import block
from memplan.models.dflash.hparams import PlainHParams, StagesHParams
from memplan.models.dflash.switches import switches

if TYPE_CHECKING:
    from memplan.releases import Release


def wanted_around(hp: StagesHParams | PlainHParams, have: Have, release: Release) -> Iterator[Wanted]:
    """What is of no layer; embeddings and output may be the target's, and are then in no drafter's file."""
    e, v, more = hp.n_embd, hp.n_vocab, switches(release)
    drafted = v
    if more.own_vocabulary:
        yield Wanted("token_embd.weight", (e, v), optional=True)
        if "d2t" in have:
            drafted = have["d2t"].shape[0]
            yield Wanted("d2t", (drafted,), op="GET_ROWS", layer=OUTPUT)
    if more.markov_head and "markov_w1.weight" in have:
        rank = have["markov_w1.weight"].shape[0]
        yield Wanted("markov_w1.weight", (rank, v), op="GET_ROWS", layer=OUTPUT)
        yield Wanted("markov_w2.weight", (rank, drafted), layer=OUTPUT)
        if more.own_vocabulary:
            yield Wanted("markov_w2.scale", (1,), optional=True, layer=OUTPUT)
        yield Wanted("conf_proj.weight", (e + rank, 1), optional=more.own_vocabulary, layer=OUTPUT)
        yield Wanted("conf_proj.bias", (1,), optional=True, layer=OUTPUT)
    yield Wanted("fc.weight", (hp.n_embd_inp, e), layer=OUTPUT)
    if more.own_vocabulary:
        yield Wanted("fc.scale", (1,), optional=True, layer=OUTPUT)
    yield Wanted("enc.output_norm.weight", (e,), layer=OUTPUT)
    yield Wanted("output_norm.weight", (e,))
    if more.own_vocabulary:
        yield Wanted("output.weight", (e, drafted), optional=True)
        if more.more_layers and "output.weight" not in have and "token_embd.weight" in have:
            yield Wanted("token_embd.weight", (e, drafted), role="output.weight", duplicated=True)


def wanted_stages(hp: StagesHParams, have: Have, release: Release) -> Iterator[Wanted]:
    """Everything of a drafter with stages of DeepSeek-V4's kind."""
    yield from wanted_around(hp, have, release)
    yield Wanted("output_hc_fn.weight", (hp.hc_mult * hp.n_embd, hp.hc_mult))
    yield Wanted("output_hc_base.weight", (hp.hc_mult,))
    yield Wanted("output_hc_scale.weight", (1,))
    for il in range(hp.n_layer):
        yield from block(hp, il, release)


def wanted_plain(hp: PlainHParams, have: Have, release: Release) -> Iterator[Wanted]:
    """Everything of a plain drafter."""
    more = switches(release).more_layers
    yield from wanted_around(hp, have, release)
    for il in range(hp.n_layer):
        e, p, head, ff = hp.n_embd, f"blk.{il}.", hp.n_embd_head_k(il), hp.n_ff[il]
        yield Wanted(p + "attn_norm.weight", (e,))
        yield Wanted(p + "attn_q.weight", (e, head * hp.n_head[il]))
        yield Wanted(p + "attn_k.weight", (e, hp.n_embd_k_gqa(il)))
        yield Wanted(p + "attn_v.weight", (e, hp.n_embd_v_gqa(il)), optional=more)
        yield Wanted(p + "attn_output.weight", (head * hp.n_head[il], e))
        yield Wanted(p + "attn_q_norm.weight", (head,))
        yield Wanted(p + "attn_k_norm.weight", (head,))
        if more:
            yield Wanted(p + "post_attention_norm.weight", (e,), optional=True)
            yield Wanted(p + "post_ffw_norm.weight", (e,), optional=True)
            yield Wanted(p + "layer_output_scale.weight", (1,), optional=True)
            yield from rope_factors(il, head, "none")
        if switches(release).own_vocabulary:
            yield Wanted(p + "attn_sinks.weight", (hp.n_head[il],), optional=True)
        yield Wanted(p + "ffn_norm.weight", (e,))
        yield from ffn(il, e, ff)
