"""What releases do differently for DeepSeek-V4 alone, by the build in which each was first seen.

What they do differently for every model stands in ``memplan.releases``; ``known.py`` there says which builds were read,
and so how much earlier a change may have come.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from memplan.releases import Release


class Switches(NamedTuple):
    """One release's."""

    mtp_tensors: bool
    """DeepSeek-V4 files may hold MTP blocks (load_arch_tensors). Before, their tensors were too many to load."""

    image_routing_bias: bool
    """DeepSeek-V4 files may hold a routing bias for image tokens, ``exp_probs_b_vl`` (load_arch_tensors)."""

    attn_output_a_in_groups: bool
    """``attn_output_a`` is loaded as one matrix a group (load_arch_tensors). Before, the graph reshaped it."""

    adds_compressor_ape: bool
    """Where a compressor's position embeddings may lie is asked with an ADD (llama-arch.cpp: LLM_TENSOR_INFOS). Since,
    with a GET_ROWS."""

    hyper_connection_ops: bool
    """Hyper-connections have ops of their own: pre, comb and post (build_hc_pre, build_hc_post)."""

    swiglu_clamp: bool
    """A gated unit with limits is one op (build_moe_ffn, build_ffn). Before, both sides were clamped first."""

    compressor_snapshots: bool
    """Compressors restore and keep snapshots of their state (dsv4_build_state_restore, ..._snapshot), and what a batch
    leaves is written after the graph so far. Before, a sum over the compressed keys held that write back
    (dsv4_with_zero_dep)."""

    compressor_reads_once: bool
    """Overlapping blocks read their rows of the state in one go (build_overlap_compressed_kv_from_state). Before, the
    halves were read one by one."""

    ffn_inputs_first: bool
    """What the feed-forward's hyper-connection hands on is computed before the experts (graph::graph)."""

    rotates_compressed_keys: bool
    """With a quantised cache, compressed keys are rotated like the others (build_csa_lid_attention, ...), and rotations
    work on rows (llama_mul_mat_hadamard). Before, such a cache left every layer with attention over the raw window
    alone (build_attention)."""

    masks_follow_attention: bool
    """Masks have the type that attention takes: f16 with flash attention (dsv4_build_comp_inputs). Before, those of
    compressed keys were f32, cast layer by layer, and unified slots never used flash attention
    (dsv4_build_kq_zero_bias)."""

    blocks_over_all_slots: bool
    """A reserve counts the blocks that a batch can close over all slots together; before, slot by slot
    (llama-kv-cache-dsv4.cpp: dsv4_build_reserve_comp_plan)."""

    draft_values_viewed: bool
    """A drafter's keys are read as values through a view (build_attn with llm_graph_input_attn_k_iswa)."""

    pins_layer_ends: bool
    """The last node of each layer is pinned to the layer's device, as norms are (graph_get_cb)."""


_FIRST_BUILDS = {
    "mtp_tensors": 10235,
    "image_routing_bias": 10798,
    "attn_output_a_in_groups": 10289,
    "hyper_connection_ops": 10068,
    "swiglu_clamp": 10760,
    "compressor_snapshots": 10235,
    "compressor_reads_once": 10068,
    "ffn_inputs_first": 10159,
    "rotates_compressed_keys": 9924,
    "masks_follow_attention": 9988,
    "blocks_over_all_slots": 10605,
    "draft_values_viewed": 10605,
    "pins_layer_ends": 10159,
}
_LAST_ADDED_APE = 10087


@lru_cache(maxsize=64)
def switches(release: Release) -> Switches:
    """What a release does; a fork as the build that it was made from."""
    return Switches(
        adds_compressor_ape=release.build <= _LAST_ADDED_APE,
        **{name: release.build >= first for name, first in _FIRST_BUILDS.items()},
    )
