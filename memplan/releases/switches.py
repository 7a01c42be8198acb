"""What a llama.cpp release may do differently, one named switch each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Indexer(Enum):
    """How a release can build the lightning indexer of DeepSeek-V4 (src/models/deepseek4.cpp: build_lid_top_k)."""

    UNFUSED = "unfused"
    """From small ops only, through ``lid_kq`` and its copy."""

    MASK_AFTER = "mask after"
    """In one op that takes no mask; the mask is added to its result."""

    FUSED = "fused"
    """In one op, mask and all (ggml.c: ggml_lightning_indexer)."""


class SplitInputs(Enum):
    """How many inputs a split of the graph can have (ggml-backend.cpp: ggml_backend_sched_split_graph)."""

    AT_MOST_30 = "at most 30"
    """A node that needs one more starts a new split; a single node that brings too many at once aborts."""

    DOUBLED = "doubled"
    """The same while there is room; a single node that brings more doubles the room, and it stays doubled."""

    ANY = "any"
    """As many as there are."""


class QuantizedConcat(Enum):
    """Which quantised tensors CUDA joins (ggml-cuda.cu: ggml_backend_cuda_device_supports_op)."""

    NONE = "none"
    CONTIGUOUS = "contiguous"
    """Those without any gaps."""
    WITHIN_STREAMS = "within streams"
    """Those without gaps in their first three dimensions; along the fourth, without any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One build of llama.cpp; every field but the first six is a switch, by default as in the oldest build, b9842."""

    name: str
    """The tag, ``v0.5.0``, or ``b10068`` for a build that has none; a fork's own name."""

    build: int
    """The build whose source the switches were read in; for a fork, the build that it was made from."""

    after: int
    """The newest build whose source was read and has not yet what this one changed; of those between that is not
    known."""

    asked: bool
    """Whether a real llama.cpp of this build was asked; else its source alone was read."""

    others_asked: bool
    """Whether it was asked about other models than DeepSeek-V4 as well."""

    changed: str
    """What it changed for memory, in a few sentences."""

    # --- the model (src/llama-model.cpp, src/models/deepseek4.cpp) ---

    draft_inherits_devices: bool = False
    """A draft model goes to the devices of -dev where -devd names none, and to one device whole, whatever -sm says
    (common/speculative.cpp: common_base_params_to_speculative). Before, -dev had no say."""

    projector_follows_devices: bool = False
    """A projector goes to the first device of -dev (common/arg.cpp). Before, to the first GPU there is."""

    infers_draft_kind: bool = False
    """Without --spec-type a draft model's file says how it drafts (common/arg.cpp). Before, nothing is drafted."""

    mmap_asks_devices: bool = False
    """Without --load-mode a file is not mapped where a GPU has no memory of its own (llama-model.cpp: load_tensors)."""

    experts_used_by_layer: bool = False
    """Layers may use different numbers of experts, and what is checked is the largest (llama-model.cpp:
    load_hparams)."""

    equal_cache_types: bool = False
    """DeepSeek-V4 and models with latent attention (``is_mla``) refuse K and V caches of different types, and with any
    model a quantised V cache turns flash attention on where it is left to llama.cpp (llama-context.cpp:
    llama_init_from_model)."""

    skips_mtp_blocks: bool = False
    """MTP blocks that used always to be loaded (Qwen3.5 and 3.6, Step-3.5, GLM-5) are skipped unless a context drafts
    with them (llama_model_loader::load_mtp)."""

    reads_large_embeddings_lazily: bool = False
    """Gemma 4's embeddings by layer are read as they are needed where they are large, out of plain memory
    (llama-model-loader.cpp: lazy_read)."""

    swa_pattern_by_layer: bool = False
    """Gemma 3, gpt-oss and Llama 4 slide in the layers that an array of the file says (load_swa_pattern). Before, an
    array was passed over."""

    loads_mtp_biases: bool = True
    """Biases of queries, keys and values are loaded for MTP blocks that are skipped (llama-model.cpp:
    create_tensor_qkv)."""

    caches_mtp_blocks: bool = True
    """Caches of GLM-4.5, and of GLM-4.7-Flash and others of deepseek2, have a layer for each MTP block
    (llama-model.cpp: create_memory)."""

    # --- the graph (src/models/deepseek4.cpp, src/llama-graph.cpp) ---

    indexer: Indexer = Indexer.UNFUSED
    """The indexer's forms."""

    rope_at_offset: bool = False
    """Rotary positions turn the end of each head in place (ggml_rope_set_offset). Before, each head was cut in two
    and joined again."""

    kda_decay_is_factor: bool = False
    """Where Kimi-Linear's decays may lie is asked with a MUL (llama-arch.cpp: LLM_TENSOR_SSM_A_NOSCAN). Before, with an
    SSM_SCAN."""

    qwen3next_hidden_states_of_all: bool = False
    """Qwen3-Next takes the tokens that are asked for out of the last norm's result, which drafts read. Before, out of
    the last layer's attention; and it reshaped its gate (qwen3next.cpp: graph::graph)."""

    nemotron_hidden_states_of_all: bool = False
    """The same for Nemotron-H, gates aside (nemotron-h.cpp: graph::graph)."""

    gpt_oss_hidden_states_of_all: bool = False
    """The same for gpt-oss (openai-moe.cpp: graph::graph)."""

    mamba_projects_rows: bool = False
    """State spaces make their projections of tokens, not of sequences of tokens, and keep snapshots of their state
    (mamba-base.cpp: build_mamba2_layer)."""

    delta_net_rms_norm: bool = False
    """Keys and queries of gated delta nets are made of length one by an RMS norm and a scale (models.h:
    build_gdn_l2_norm). Before, by an L2 norm."""

    mixed_batches: bool = False
    """A batch may hold tokens and embeddings, so a third way in is part of the graph (llama-graph.cpp:
    build_inp_embd); not with DeepSeek-V4."""

    reads_states_once: bool = False
    """Recurrent states are gathered in one go, those that are read and those that only move (llama-graph.cpp:
    build_rs)."""

    hybrid_memory: bool = False
    """DeepSeek-V4's caches are a hybrid memory, one sliding cache and recurrent states, with compressed keys beside it
    (src/llama-memory-hybrid-iswa.cpp of antirez' fork)."""

    # --- the context (src/llama-context.cpp) ---

    graphs_followed: bool = True
    """Whether graphs are built and packed here; else an estimate has weights and caches alone. No switch of
    llama.cpp's."""

    indexer_probe: bool = False
    """The fused lightning indexer is turned off when a device lacks it (resolve_fused_ops). Releases without the probe
    run the op on the host instead."""

    gated_delta_net_probe: bool = True
    """Graphs are split to probe for the gated delta net, whatever the model (resolve_fused_ops)."""

    # --- ggml's ops and scheduler (ggml.c, ggml-backend.cpp) ---

    clamps_inplace: bool = True
    """A clamp is a view of its source, which it overwrites (ggml_clamp). Since, it is a tensor of its own."""

    split_inputs: SplitInputs = SplitInputs.AT_MOST_30
    """How many inputs a split takes."""

    sinks_place_attention: bool = True
    """Flash attention runs where its sinks lie, as other ops run where their weights do
    (ggml_backend_sched_backend_id_from_cur)."""

    copies_unread_inputs: bool = False
    """Pipeline parallelism keeps copies of every input of the graph (ggml_backend_sched_split_graph). Before, of those
    that a computed node reads; so not of the embeddings, which stand in the graph beside the tokens."""

    # --- the CUDA backend (ggml-cuda/) ---

    cuda_indexer: bool = False
    """There is a kernel for the fused lightning indexer (lightning-indexer.cu)."""

    cuda_indexer_keys: frozenset[str] = frozenset({"f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"})
    """Types of the keys that this kernel reads."""

    cuda_indexer_keys_unknown: frozenset[str] = frozenset()
    """Types of which that is not known: they are taken as not read, and the answer as approximate."""

    cuda_keeps_moe_sum_inputs: bool = False
    """The inputs of a MoE weighted sum live until the sum is done (ggml-cuda.cu: ggml_backend_cuda_graph_optimize)."""

    cuda_keeps_topk_inputs: bool = False
    """So do all tensors of a fused top-k gating, until the node after it (same function)."""

    cuda_joins_shared_experts: bool = False
    """Shared experts are computed right behind routed ones of the same quantised type (same function)."""

    cuda_fa_mixed_types: bool = False
    """Flash attention takes K and V of different types, and q4_1, q5_0, q5_1 (fattn.cu:
    ggml_cuda_get_best_fattn_kernel). Before, only builds with GGML_CUDA_FA_ALL_QUANTS did."""

    cuda_fa_mma_decode: bool = False
    """One-token flash attention takes the MMA kernel for the sparse gather and for heads of 256 (fattn.cu)."""

    cuda_sums_strided_rows: bool = False
    """SUM_ROWS and MEAN need f32 rows without gaps only, not a whole contiguous tensor
    (ggml_backend_cuda_device_supports_op)."""

    cuda_dups_integers: bool = False
    """DUP takes i32 and i16 as well (same function)."""

    cuda_multiplies_dense_rows_only: bool = False
    """MUL_MAT wants the elements of each row side by side (same function)."""

    cuda_concat: QuantizedConcat = QuantizedConcat.NONE
    """Which quantised tensors CONCAT takes."""

    cuda_sets_f16_rows: bool = False
    """SET_ROWS writes f16 into f16 (same function)."""

    cuda_gets_k_quant_rows: bool = False
    """GET_ROWS reads k-quants, i-quants and MXFP4 (same function)."""

    cuda_q2_0: bool = False
    """There are kernels for q2_0 (same function)."""

    cuda_splits_rows: bool = True
    """``-sm row`` has buffers that spread a weight over devices (ggml_backend_cuda_split_buffer_type)."""


def turned(since: tuple[tuple[int, Mapping[str, Any]], ...], build: int) -> dict[str, Any]:
    """The switches that differ in a build from the oldest, by what each build turned, oldest first."""
    return {name: value for first, switches in since if first <= build for name, value in switches.items()}
