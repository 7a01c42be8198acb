"""DeepSeek-V4's hyper-parameters.

Follows src/models/deepseek4.cpp (``load_arch_hparams``), v0.5.0; v0.4.0 reads the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.errors import shown
from memplan.llama.hparams import HParams, common
from memplan.llama.keys import Keys
from memplan.models.deepseek4.switches import switches

if TYPE_CHECKING:
    from memplan.releases import Release

SQRT_SOFTPLUS = 4
"""``expert_gating_func`` of sqrtsoftplus, the only scoring that the loader takes."""

CSA_RATIO = 4
HCA_RATIO = 128


@dataclass(frozen=True, kw_only=True)
class DeepSeek4HParams(HParams):
    """What a DeepSeek-V4 model has beside what all models have.

    Every layer slides, so heads have the sizes of sliding layers throughout.
    ``compress_ratios``: 0, 4 (CSA) or 128 (HCA) a block, ``n_layer_all`` entries.  ``hash_layer_count``: the first so
    many layers pick experts by token id.  ``hc_mult``: hyper-connection streams.  ``swiglu_clamp_exp``,
    ``swiglu_clamp_shexp``: limits a block; none where at most 1e-6.
    """

    n_lora_q: int
    o_group_count: int
    o_lora_rank: int
    compress_ratios: tuple[int, ...]
    indexer_n_head: int
    indexer_head_size: int
    indexer_top_k: int
    n_expert_shared: int
    n_ff_exp: int
    expert_weights_scale: float
    expert_weights_norm: bool
    swiglu_clamp_exp: tuple[float, ...]
    swiglu_clamp_shexp: tuple[float, ...]
    hc_mult: int
    hc_sinkhorn_iters: int
    hash_layer_count: int

    @property
    def n_embd_out(self) -> int:
        """Width of the hidden state that a context gives out."""
        return self.hc_mult * self.n_embd


def load_hparams(k: Keys, release: Release) -> DeepSeek4HParams:
    """``load_arch_hparams``. Raises MissingKey and BadHyperParameter."""
    fields = common(k, release)
    n_all, n_expert = fields["n_layer_all"], fields["n_expert"]
    nextn = fields["n_layer_nextn"] if switches(release).mtp_tensors else 0
    if nextn and f"blk.{n_all - nextn}.nextn.eh_proj.weight" not in k.header.tensors:
        nextn = 0
    for key in ("attention.head_count", "attention.head_count_kv", "expert_used_count", "expert_feed_forward_length"):
        k.one_value(key, n_all)
    n_embd, n_head = fields["n_embd"], fields["n_head"][0]
    k.check(n_embd > 0 and n_head > 0, f"embedding_length {n_embd} and head_count {n_head} must not be zero")
    k.check(n_expert > 0, f"expert_count is {n_expert}; llama.cpp takes 1 to 1024 here")
    gating = k.u32("expert_gating_func")
    k.check(gating == SQRT_SOFTPLUS, f"expert_gating_func is {gating}; only sqrtsoftplus ({SQRT_SOFTPLUS}) is loaded")
    clamp = k.f32_a_layer("swiglu_clamp_exp", n_all)
    has_shexp = k.value("swiglu_clamp_shexp") is not None
    hc, o_groups = k.u32("hyper_connection.count"), k.u32("attention.output_group_count")
    k.check(hc > 0, "hyper_connection.count is zero")
    k.check(o_groups > 0, "attention.output_group_count is zero")
    for key in ("attention.layer_norm_rms_epsilon", "hyper_connection.epsilon", "attention.compress_rope_freq_base"):
        k.f32(key)
    fields |= {"n_layer_nextn": nextn, "n_swa": k.u32("attention.sliding_window"), "is_swa": (True,) * n_all}
    return DeepSeek4HParams(
        **fields,
        n_lora_q=k.u32("attention.q_lora_rank"),
        o_group_count=o_groups,
        o_lora_rank=k.u32("attention.output_lora_rank"),
        compress_ratios=_ratios(k, "attention.compress_ratios", n_all),
        indexer_n_head=k.u32("attention.indexer.head_count"),
        indexer_head_size=k.u32("attention.indexer.key_length"),
        indexer_top_k=k.u32("attention.indexer.top_k"),
        n_expert_shared=k.u32("expert_shared_count"),
        n_ff_exp=k.u32_a_layer("expert_feed_forward_length", n_all)[0],
        expert_weights_scale=k.f32("expert_weights_scale"),
        expert_weights_norm=k.flag("expert_weights_norm"),
        swiglu_clamp_exp=clamp,
        swiglu_clamp_shexp=k.f32_a_layer("swiglu_clamp_shexp", n_all) if has_shexp else clamp,
        hc_mult=hc,
        hc_sinkhorn_iters=k.u32("hyper_connection.sinkhorn_iterations"),
        hash_layer_count=k.u32("hash_layer_count"),
    )


def _ratios(k: Keys, key: str, n: int) -> tuple[int, ...]:
    """At least ``n`` elements, each 0, 4 or 128 (``load_arch_hparams``, ``load_arch_tensors``)."""
    items = k.u32_array(key, n)[:n]
    for i, r in enumerate(items):
        if r not in (0, CSA_RATIO, HCA_RATIO):
            raise k.fault(key, f"ratio {shown(str(r))} of block {i} is none of 0, {CSA_RATIO}, {HCA_RATIO}")
    return items
