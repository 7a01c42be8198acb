"""The releases that are modelled, oldest first: the only place that knows build numbers.

Each entry says what its source does differently from the one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from memplan.releases.switches import Indexer, QuantizedConcat, Release, SplitInputs

B9842 = Release(
    name="b9842",
    build=9842,
    changed=(
        "DeepSeek-V4 as it was merged. No fused indexer and no fused hyper-connections: about 33,600 nodes, and two"
        " copies of lid_kq at once, 8 GiB at a context of 131072 and a ubatch of 512. Unified slots (llama-server's"
        " default) run without flash attention, over the keys of all slots. With a quantised cache only the sliding"
        " window is attended to. A split has at most 30 inputs. -sm row aborts."
    ),
    mtp_tensors=False,
    image_routing_bias=False,
    experts_used_by_layer=False,
    attn_output_a_in_groups=False,
    adds_compressor_ape=True,
    equal_cache_types=False,
    indexer=Indexer.UNFUSED,
    hyper_connection_ops=False,
    rope_at_offset=False,
    swiglu_clamp=False,
    compressor_snapshots=False,
    compressor_reads_once=False,
    ffn_inputs_first=False,
    rotates_compressed_keys=False,
    masks_follow_attention=False,
    blocks_over_all_slots=False,
    indexer_probe=False,
    gated_delta_net_probe=True,
    pins_layer_ends=False,
    clamps_inplace=True,
    split_inputs=SplitInputs.AT_MOST_30,
    sinks_place_attention=True,
    copies_unread_inputs=False,
    cuda_indexer=False,
    cuda_indexer_keys=frozenset({"f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"}),
    cuda_indexer_keys_unknown=frozenset(),
    cuda_keeps_moe_sum_inputs=False,
    cuda_keeps_topk_inputs=False,
    cuda_joins_shared_experts=False,
    cuda_fa_mixed_types=False,
    cuda_fa_mma_decode=False,
    cuda_sums_strided_rows=False,
    cuda_dups_integers=False,
    cuda_multiplies_dense_rows_only=False,
    cuda_concat=QuantizedConcat.NONE,
    cuda_sets_f16_rows=False,
    cuda_gets_k_quant_rows=False,
    cuda_q2_0=False,
    cuda_splits_rows=True,
)

LID_CUDA = replace(
    B9842,
    name="lid-cuda",
    changed=(
        "A fork of b9842 with a fused indexer of its own, on CUDA too, so lid_kq is gone. Unified slots still run"
        " without flash attention, over the keys of all slots. One report, of two RTX 3090 with experts on the host (no"
        " pipeline parallelism), a context of 262144 and a ubatch of 2048: compute buffers of 389 GiB and more a card"
        " with the default of 4 slots, of about 3 GiB with -np 1. Known by its answers, not by its source."
    ),
    indexer=Indexer.MASK_AFTER,
    cuda_indexer=True,
    cuda_indexer_keys=frozenset({"f16"}),
    cuda_indexer_keys_unknown=frozenset({"f32"}),
)

B9924 = replace(
    B9842,
    name="b9924",
    build=9924,
    changed=(
        "With a quantised cache, compressed keys are attended to as well; b9842 left them out. So compute buffers"
        " grow with the context there too. A few more nodes: 33,689 in place of 33,605 with one slot."
    ),
    rotates_compressed_keys=True,
    cuda_multiplies_dense_rows_only=True,
    cuda_concat=QuantizedConcat.CONTIGUOUS,
    cuda_splits_rows=False,
)

B9988 = replace(
    B9924,
    name="b9988",
    build=9988,
    changed=(
        "Unified slots use flash attention, with masks in f16. The fused indexer exists, but only on the CPU."
        " When it makes a context, llama.cpp looks whether every device has it (its probe), and with a GPU turns it"
        " off: the unfused chain is built, with its two copies of lid_kq."
    ),
    indexer=Indexer.FUSED,
    masks_follow_attention=True,
    indexer_probe=True,
    cuda_sets_f16_rows=True,
)

B10068 = replace(
    B9988,
    name="b10068",
    build=10068,
    changed=(
        "CUDA has the fused indexer: lid_kq is gone, and with it nearly all growth with the context."
        " Hyper-connections have fused ops: 9,448 nodes in place of 33,600. Compressors read their state in one go."
    ),
    hyper_connection_ops=True,
    compressor_reads_once=True,
    cuda_indexer=True,
    cuda_concat=QuantizedConcat.WITHIN_STREAMS,
)

B10361 = replace(
    B10068,
    name="b10361",
    build=10361,
    changed=(
        "Compressor states have rollback snapshots, one for each token that speculative decoding drafts, and grow"
        " with them. K and V caches must have the same type. A split can have more than 30 inputs, so settings that"
        " aborted now start. Files with MTP tensors load. Metal has the fused indexer and hyper-connections."
    ),
    mtp_tensors=True,
    attn_output_a_in_groups=True,
    adds_compressor_ape=False,
    equal_cache_types=True,
    compressor_snapshots=True,
    ffn_inputs_first=True,
    pins_layer_ends=True,
    split_inputs=SplitInputs.DOUBLED,
    sinks_place_attention=False,
    cuda_gets_k_quant_rows=True,
    cuda_q2_0=True,
)

B10549 = replace(
    B10361,
    name="b10549",
    build=10549,
    changed=(
        "Nothing for memory on CUDA and the CPU: the graph and the sizes are those of b10361. On Metal, flash attention"
        " keeps room for f16 copies of K and V."
    ),
)

B10568 = replace(
    B10549,
    name="b10568",
    build=10568,
    changed=(
        "Rotary positions are applied at an offset within each head, in place of split, rope and concat: some 640"
        " nodes fewer. But the result, q, now takes over the place of q_norm. Before, q was a new tensor, in the"
        " place that the product with attn_q_b had left; now much of that place stays empty, too small for the"
        " result of attention. The same tensors are alive, with other gaps between them, so compute buffers move"
        " both ways: with unquantised caches about half of them grow (one report: 2366.28 to 2570.28 MiB on one"
        " card), with quantised caches most shrink a little."
    ),
    rope_at_offset=True,
)

V0_4_0 = replace(
    B10568,
    name="v0.4.0",
    build=10852,
    changed=(
        "The indexer is never turned off: where a device lacks the op, it runs on the host, with splits around it."
        " Gates with limits are one op. CUDA keeps the inputs of the experts' weighted sum until the sum is done. A"
        " reserve holds one more compressed block for each slot. Vulkan has the fused indexer. A"
        " server (RPC) no longer turns pipeline parallelism off."
    ),
    image_routing_bias=True,
    experts_used_by_layer=True,
    swiglu_clamp=True,
    blocks_over_all_slots=True,
    indexer_probe=False,
    gated_delta_net_probe=False,
    clamps_inplace=False,
    cuda_keeps_moe_sum_inputs=True,
)

V0_5_0 = replace(
    V0_4_0,
    name="v0.5.0",
    build=11200,
    changed=(
        "CUDA also keeps the tensors of the experts' top-k gating, so a few compute buffers grow. CUDA's flash"
        " attention takes caches of q4_1, q5_0 and q5_1; before, attention over those ran on the host."
    ),
    split_inputs=SplitInputs.ANY,
    cuda_keeps_topk_inputs=True,
    cuda_fa_mixed_types=True,
    cuda_fa_mma_decode=True,
    cuda_sums_strided_rows=True,
    cuda_dups_integers=True,
)

B11434 = replace(
    V0_5_0,
    name="b11434",
    build=11434,
    changed=(
        "Pipeline parallelism keeps copies of every input of the graph, the embeddings too, which a batch of tokens"
        " does not read: CUDA_Host's compute buffer grows by 12 bytes for each token of the ubatch and each value of"
        " its embedding (24 MiB for DeepSeek-V4-Flash at a ubatch of 512). CUDA computes a shared expert beside"
        " routed ones where both are quantised to one type, so compute buffers of such files change a little."
    ),
    copies_unread_inputs=True,
    cuda_joins_shared_experts=True,
)

RELEASES: tuple[Release, ...] = (B9842, B9924, B9988, B10068, B10361, B10549, B10568, V0_4_0, V0_5_0, B11434)
"""Every modelled release of llama.cpp itself, oldest first."""

FORKS: tuple[Release, ...] = (LID_CUDA,)
"""Modelled forks, found by name alone."""

LATEST = [r for r in RELEASES if r.name.startswith("v")][-1]
"""The newest tag, which is what no ``--llama`` means: a build after it is asked for by number."""

TAGGED: Mapping[str, int] = {"v0.3.0": 10621}
"""Builds of tags that are not modelled themselves."""
