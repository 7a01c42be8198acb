"""The builds that are modelled, oldest first.

Beside it build numbers stand in ``other_backends`` and ``cuda_pools``, and with rules that one build alone decides
(``..._SINCE``). Each entry says what its source does differently from the one before: ``_asked`` makes those of which a
real llama.cpp was asked, ``_read`` those between them of which the source alone was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from memplan.releases.switches import Indexer, QuantizedConcat, Release, SplitInputs

B9842 = Release(
    name="b9842",
    build=9842,
    after=9840,
    asked=True,
    others_asked=True,
    changed=(
        "DeepSeek-V4 as it was merged. No fused indexer and no fused hyper-connections: about 33,600 nodes, and two"
        " copies of lid_kq at once, 8 GiB at a context of 131072 and a ubatch of 512. Unified slots (llama-server's"
        " default) run without flash attention, over the keys of all slots. With a quantised cache only the sliding"
        " window is attended to. A split has at most 30 inputs. -sm row aborts."
    ),
)


def _read(before: Release, build: int, after: int, changed: str, **turned: object) -> Release:
    """A build whose source was read and which was not asked; see ``Release`` for ``after``."""
    switches: dict[str, Any] = {"name": f"b{build}", "asked": False} | turned
    return replace(before, build=build, after=after, changed=changed, **switches)


def _asked(before: Release, build: int, after: int, changed: str, **turned: object) -> Release:
    """A build that was asked; ``turned``: its tag as ``name``, too, where it has one."""
    return _read(before, build, after, changed, **({"asked": True} | turned))


LID_CUDA = replace(
    B9842,
    name="lid-cuda",
    others_asked=False,
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

ANTIREZ = replace(
    B9842,
    name="antirez",
    build=8920,
    after=8920,
    asked=False,
    changed=(
        "antirez' fork of build 8920, the first llama.cpp with DeepSeek-V4 (April 2026, for Metal and the CPU): keys of"
        " the sliding window, compressed keys of each slot without padding, and recurrent states of 0.5 MiB for each"
        " slot and layer that compresses. Weights and caches alone are followed, by its source. Compute buffers are"
        " missing: they are reserved for a graph with nodes for every token of the ubatch, and no answer is known to"
        " hold one against."
    ),
    hybrid_memory=True,
    graphs_followed=False,
)

B9924 = _asked(
    B9842,
    9924,
    9842,
    "With a quantised cache, compressed keys are attended to as well; b9842 left them out. So compute buffers"
    " grow with the context there too. A few more nodes: 33,689 in place of 33,605 with one slot.",
    others_asked=False,
    cuda_multiplies_dense_rows_only=True,
    cuda_concat=QuantizedConcat.CONTIGUOUS,
    cuda_splits_rows=False,
)

B9988 = _asked(
    B9924,
    9988,
    9924,
    "Unified slots use flash attention, with masks in f16. The fused indexer exists, but only on the CPU."
    " When it makes a context, llama.cpp looks whether every device has it (its probe), and with a GPU turns it"
    " off: the unfused chain is built, with its two copies of lid_kq.",
    indexer=Indexer.FUSED,
    indexer_probe=True,
    cuda_sets_f16_rows=True,
)

B10068 = _asked(
    B9988,
    10068,
    9988,
    "CUDA has the fused indexer: lid_kq is gone, and with it nearly all growth with the context."
    " Hyper-connections have fused ops: 9,448 nodes in place of 33,600. Compressors read their state in one go."
    " At run time, CUDA sorts a top-k in chunks of at most 64 MiB of scores, and cuBLAS gets both sides converted.",
    others_asked=True,
    cuda_indexer=True,
    cuda_concat=QuantizedConcat.WITHIN_STREAMS,
)


_B10088 = _read(
    B10068,
    10088,
    10068,
    "A compressor's position embeddings may have any type that rows can be read of. Before, those in bf16 lay on the"
    " host, as CUDA adds f32 and f16 alone.",
)
_B10103 = _read(
    _B10088,
    10103,
    10088,
    "CUDA reads rows of k-quants, i-quants and MXFP4, so token embeddings of such a type lie in pinned memory"
    " (CUDA_Host), as other weights on the host do. Before, they lay in plain memory (CPU).",
    cuda_gets_k_quant_rows=True,
)
_B10159 = _read(
    _B10103,
    10159,
    10142,
    "The last node of each layer stays on the layer's device, and attention no longer follows its sinks. So there are"
    " fewer splits. What the feed-forward's hyper-connection hands on is computed before the experts. GLM-5's"
    " indexer is used, with a cache of its own.",
    sinks_place_attention=False,
    gpt_oss_hidden_states_of_all=True,
)
_B10178 = _read(
    _B10159,
    10178,
    10159,
    "Vulkan's flash attention takes an iq4_nl cache. GLM-5's MTP blocks have no caches where nothing drafts.",
)
_B10199 = _read(
    _B10178,
    10199,
    10189,
    "CUDA has kernels for q2_0. Vulkan joins quantised tensors, as the keys of a quantised cache are.",
    cuda_q2_0=True,
)
_B10216 = _read(
    _B10199,
    10216,
    10204,
    "K and V caches of DeepSeek-V4, and of models with latent attention, must have the same type, and a quantised V"
    " cache turns flash attention on where that is left to llama.cpp. Qwen3.5's MTP blocks, Step-3.5's and"
    " GLM-5's are loaded for drafts alone.",
    equal_cache_types=True,
    skips_mtp_blocks=True,
)
_B10223 = _read(
    _B10216,
    10223,
    10218,
    "Vulkan computes a gating by the root of a softplus, DeepSeek-V4's, as one: another order of nodes.",
)
_B10235 = _read(
    _B10223,
    10235,
    10227,
    "Compressor states have rollback snapshots, one for each token that speculative decoding drafts, and grow with"
    " them. Files with MTP tensors load. Metal has the fused hyper-connections, and adds f16 masks: before, the unfused"
    " indexer of each layer went to the host for that, in two splits more.",
)
_B10240 = _read(
    _B10235,
    10240,
    10235,
    "Metal has the fused indexer. Qwen3-Next works on all tokens up to its last norm, which drafts read."
    " DeepSeek-V3.2's MTP blocks have no caches where nothing drafts.",
    qwen3next_hidden_states_of_all=True,
)
_B10248 = _read(
    _B10240,
    10248,
    10240,
    "A split can have more than 30 inputs, so settings that aborted now start. GLM-5.2's indexer has keys in the layers"
    " alone that choose.",
    split_inputs=SplitInputs.DOUBLED,
)
_B10289 = _read(
    _B10248,
    10289,
    10248,
    "attn_output_a is loaded as one matrix for each group: one node fewer a layer, and nothing for memory.",
    loads_mtp_biases=False,
)
_B10355 = _read(
    _B10289,
    10355,
    10327,
    "Nemotron-H works on all tokens up to its last norm, which drafts read.",
    nemotron_hidden_states_of_all=True,
)

B10361 = _asked(
    _B10355,
    10361,
    10355,
    "Nothing for buffers. State spaces' prompts are scanned in chunks, through cuBLAS, which takes memory of CUDA"
    " devices at run time.",
    others_asked=True,
)

B10549 = _asked(
    B10361,
    10549,
    10362,
    "Nothing for memory on CUDA and the CPU: the graph and the sizes are those of b10361. On Metal, flash attention"
    " keeps room for f16 copies of K and V.",
    others_asked=False,
)

B10568 = _asked(
    B10549,
    10568,
    10549,
    "Rotary positions are applied at an offset within each head, in place of split, rope and concat: some 640"
    " nodes fewer. But the result, q, now takes over the place of q_norm. Before, q was a new tensor, in the"
    " place that the product with attn_q_b had left; now much of that place stays empty, too small for the"
    " result of attention. The same tensors are alive, with other gaps between them, so compute buffers move"
    " both ways: with unquantised caches about half of them grow (one report: 2366.28 to 2570.28 MiB on one"
    " card), with quantised caches most shrink a little.",
    rope_at_offset=True,
)

_B10605 = _read(
    B10568,
    10605,
    10568,
    "A reserve holds one more compressed block for each slot. State spaces project tokens, not sequences of them.",
    infers_draft_kind=True,
    mmap_asks_devices=True,
    kda_decay_is_factor=True,
    mamba_projects_rows=True,
)
_B10662 = _read(
    _B10605,
    10662,
    10605,
    "A clamp is a tensor of its own; before, it overwrote its source. Vulkan has the fused indexer. A server (RPC) no"
    " longer turns pipeline parallelism off.",
    clamps_inplace=False,
)
_B10705 = _read(
    _B10662,
    10705,
    10662,
    "The indexer is never turned off: where a device lacks the op, it runs on the host, with splits around it. RPC"
    " devices ask their server for the size of more ops. Gemma 4's embeddings by layer are read as they are needed"
    " where they are large.",
    reads_large_embeddings_lazily=True,
    indexer_probe=False,
    gated_delta_net_probe=False,
)
_B10760 = _read(
    _B10705,
    10760,
    10705,
    "Gates with limits are one op. CUDA keeps the inputs of the experts' weighted sum until the sum is done. Metal"
    " joins quantised tensors; Vulkan chooses the largest 1024 and more itself.",
    cuda_keeps_moe_sum_inputs=True,
)
_B10798 = _read(
    _B10760,
    10798,
    10760,
    "Layers may use different numbers of experts, and DeepSeek-V4's files may hold a bias for image tokens. On Metal,"
    " flash attention keeps room for the keys that a sparse mask leaves.",
    experts_used_by_layer=True,
)

V0_4_0 = _asked(
    _B10798,
    10852,
    10798,
    "Nothing for buffers, but on ROCm, which chooses the largest 1024 and more itself. At run time, cuBLAS's"
    " workspace is llama.cpp's own on CUDA: 4 MiB a device, 32 from Hopper on. With a sparse mask, CUDA's flash"
    " attention gathers keys at run time.",
    name="v0.4.0",
    others_asked=True,
)

_B10909 = _read(
    V0_4_0,
    10909,
    10852,
    "CUDA's flash attention takes caches of q4_1, q5_0 and q5_1; before, attention over those ran on the host. A split"
    " has as many inputs as there are. Vulkan has the fused hyper-connections, and another order of nodes around norms"
    " and ropes. GLM-4.5's and GLM-4.7-Flash's MTP blocks have no cache.",
    caches_mtp_blocks=False,
    draft_inherits_devices=True,
    projector_follows_devices=True,
    delta_net_rms_norm=True,
    split_inputs=SplitInputs.ANY,
    cuda_fa_mixed_types=True,
)
_B10985 = _read(
    _B10909,
    10985,
    10909,
    "CUDA sums rows with gaps between them, and copies integers.",
    cuda_sums_strided_rows=True,
    cuda_dups_integers=True,
)
_B11063 = _read(
    _B10985,
    11063,
    10985,
    "Metal's products of experts keep room for scaling factors. Gemma 3, gpt-oss and Llama 4 slide in the layers that"
    " an array of the file says.",
    swa_pattern_by_layer=True,
)
_B11149 = _read(
    _B11063,
    11149,
    11063,
    "CUDA keeps the tensors of the experts' top-k gating as well, so a few compute buffers grow. One-token attention"
    " over many or large heads takes another kernel. In Mistral 4, experts are asked for in f32, which the CPU"
    " computes.",
    cuda_keeps_topk_inputs=True,
    cuda_fa_mma_decode=True,
)

V0_5_0 = _asked(
    _B11149,
    11200,
    11149,
    "Nothing for buffers. At run time, CUDA's sorts have room for sorted keys beside the others, and flash"
    " attention over a sparse mask gathers keys tile by tile.",
    name="v0.5.0",
    others_asked=True,
)

_B11258 = _read(
    V0_5_0,
    11258,
    11200,
    "Pipeline parallelism keeps copies of every input of the graph, the embeddings too, which a batch of tokens does"
    " not read: CUDA_Host's compute buffer grows by 12 bytes for each token of the ubatch and each value of its"
    " embedding (24 MiB for DeepSeek-V4-Flash at a ubatch of 512). Vulkan's order of nodes changes around"
    " hyper-connections.",
    copies_unread_inputs=True,
)

B11434 = _asked(
    _B11258,
    11434,
    11349,
    "CUDA computes a shared expert beside routed ones where both are quantised to one type, so compute buffers of"
    " such files change a little. Metal's fused indexer takes any number of heads. With other models than"
    " DeepSeek-V4 a batch may hold tokens and embeddings, for which CUDA_Host's compute buffer has room."
    " Recurrent states are gathered in one go. At run time, CUDA pads products of experts by their tokens.",
    others_asked=False,
    mixed_batches=True,
    reads_states_once=True,
    cuda_joins_shared_experts=True,
)

BUILDS: tuple[Release, ...] = (
    *(B9842, B9924, B9988, B10068),
    *(_B10088, _B10103, _B10159, _B10178, _B10199, _B10216, _B10223, _B10235, _B10240, _B10248, _B10289, _B10355),
    *(B10361, B10549, B10568, _B10605, _B10662, _B10705, _B10760, _B10798),
    *(V0_4_0, _B10909, _B10985, _B11063, _B11149, V0_5_0, _B11258, B11434),
)
"""Every modelled build of llama.cpp itself, oldest first."""

OF_ONE_ARCHITECTURE = frozenset({9924, 9988, 10068, 10088, 10159, 10235, 10289, 10605, 10760, 10798})
"""Builds that turned a switch of one architecture's own, which stands in its folder: DeepSeek-V4's."""

RELEASES = tuple(r for r in BUILDS if r.asked)
"""Those of which a real llama.cpp was asked."""

FORKS: tuple[Release, ...] = (ANTIREZ, LID_CUDA)
"""Modelled forks, found by name alone."""

LATEST = [r for r in RELEASES if r.name.startswith("v")][-1]
"""The newest tag, which is what no ``--llama`` means: a build after it is asked for by number."""

TAGGED: Mapping[str, int] = {"v0.3.0": 10621}
"""Builds of tags that are not modelled themselves."""
