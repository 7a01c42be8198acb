"""The hyper-parameters of block drafters.

Follows src/models/dflash.cpp (``load_arch_hparams``), v0.5.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from memplan.errors import UnsupportedArchitecture
from memplan.llama.hparams import HParams, common, swa_layers
from memplan.models.deepseek4.hparams import SQRT_SOFTPLUS, DeepSeek4HParams
from memplan.models.dflash.switches import switches

if TYPE_CHECKING:
    from memplan.llama.keys import Keys
    from memplan.releases import Release


@dataclass(frozen=True, kw_only=True)
class DraftHParams:
    """What every block drafter has.

    ``targets``: the target's layers whose inputs it reads.  ``n_embd_inp``: their width together.  ``block_size``:
    tokens of a block.  ``from_anchor``: whether the first token of a block is drafted, too.
    """

    targets: frozenset[int]
    n_embd_inp: int
    block_size: int
    from_anchor: bool


@dataclass(frozen=True, kw_only=True)
class StagesHParams(DraftHParams, DeepSeek4HParams):
    """Stages of DeepSeek-V4's kind."""


@dataclass(frozen=True, kw_only=True)
class PlainHParams(DraftHParams, HParams):
    """Dense layers.  ``act``: of the gated unit.  ``scales_embd``, ``scales_attn``: whether embeddings, and results of
    attention, are scaled."""

    act: str
    scales_embd: bool
    scales_attn: bool


def load_stages(k: Keys, release: Release) -> StagesHParams:
    """Those of stages. Raises MissingKey and BadHyperParameter."""
    fields, n_swa = _common(k, release), k.u32("attention.sliding_window")
    n_all = fields["n_layer_all"]
    gating = k.u32("expert_gating_func")
    k.check(gating == SQRT_SOFTPLUS, f"expert_gating_func is {gating}; only sqrtsoftplus ({SQRT_SOFTPLUS}) is loaded")
    ratios = k.u32_array("attention.compress_ratios", n_all) if k.value("attention.compress_ratios") else (0,) * n_all
    k.check(not any(ratios[:n_all]), "attention.compress_ratios must be 0 on all stages of a drafter")
    groups = k.u32("attention.output_group_count")
    k.check(groups > 0, "attention.output_group_count is zero")
    k.check(n_swa > 0, "attention.sliding_window is zero")
    clamp = k.f32_a_layer("swiglu_clamp_exp", n_all)
    shared = clamp if k.value("swiglu_clamp_shexp") is None else k.f32_a_layer("swiglu_clamp_shexp", n_all)
    for key in ("attention.layer_norm_rms_epsilon", "hyper_connection.epsilon"):
        k.f32(key)
    return StagesHParams(
        **fields,
        n_swa=n_swa,
        is_swa=(True,) * n_all,
        n_lora_q=k.u32("attention.q_lora_rank"),
        o_group_count=groups,
        o_lora_rank=k.u32("attention.output_lora_rank"),
        compress_ratios=(0,) * n_all,
        indexer_n_head=0,
        indexer_head_size=0,
        indexer_top_k=0,
        n_expert_shared=k.u32("expert_shared_count"),
        n_ff_exp=k.u32_a_layer("expert_feed_forward_length", n_all)[0],
        expert_weights_scale=k.f32("expert_weights_scale"),
        expert_weights_norm=k.flag("expert_weights_norm"),
        swiglu_clamp_exp=clamp,
        swiglu_clamp_shexp=shared,
        hc_mult=k.u32("hyper_connection.count"),
        hc_sinkhorn_iters=k.u32("hyper_connection.sinkhorn_iterations"),
        hash_layer_count=0,
    )


def load_plain(k: Keys, release: Release) -> PlainHParams:
    """Those of the plain form. Raises MissingKey, BadHyperParameter, UnsupportedArchitecture."""
    if "selector_hidden.weight" in k.header.tensors:
        raise UnsupportedArchitecture("a dflash drafter with a selector (DFlash2) is not modelled")
    fields = _common(k, release)
    k.f32("attention.layer_norm_rms_epsilon")
    n_swa, more = k.u32("attention.sliding_window", 0), switches(release)
    if n_swa:
        fields |= {"n_swa": n_swa, "is_swa": swa_layers(k, fields["n_layer_all"])}
    act = k.text("hidden_act", "silu") if more.more_layers else "silu"
    k.check(act in ("silu", "gelu", "gelu_pytorch_tanh"), f"hidden_act {act} is none that llama.cpp loads")
    return PlainHParams(
        **fields,
        act="SILU" if act == "silu" else "GELU",
        scales_embd=more.more_layers and k.f32("embedding_scale", 0.0) != 0.0,
        scales_attn=more.values_scaled and k.f32("attention.value_scale", 0.0) != 0.0,
    )


def _common(k: Keys, release: Release) -> dict[str, Any]:
    fields = common(k, release)
    targets = k.u32_array("target_layers", 1)
    anchored = switches(release).own_vocabulary
    return fields | {
        "targets": frozenset(targets),
        "n_embd_inp": len(targets) * fields["n_embd"],
        "block_size": k.u32("block_size", 0),
        "from_anchor": k.flag("sample_from_anchor", True) if anchored else True,
    }
