"""What a release does differently in the scratch that CUDA's kernels take at run time, by build.

Kept apart from ``Release``: none of it touches what llama.cpp allocates before the first batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from memplan.releases.switches import turned

if TYPE_CHECKING:
    from memplan.releases.switches import Release


class SparseAttention(Enum):
    """How flash attention gathers the keys that a sparse mask leaves (fattn.cu: ..._shall_use_sparse)."""

    NONE = "none"
    BY_QUERY = "by query"
    """A list of keys for each row of the mask; heads of 512 and 576 alone."""
    BY_TILE = "by tile"
    """A list for each tile of queries, where that beats attention over all keys; heads of 256 too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRules:
    """Switches of CUDA's pools, by default as in the oldest build."""

    converts_both_sides: bool = False
    """A product that goes through cuBLAS converts both sides to the type that it is computed in (ggml-cuda.cu:
    ggml_cuda_mul_mat_cublas). Before, batched products and single ones had ways of their own
    (ggml_cuda_mul_mat_batched_cublas, ggml_cuda_op_mul_mat)."""

    tiles_by_type: bool = False
    """MMQ has a table of tile sizes (mmq-config-*.cuh), and pads activations by what one batch can use. Before, every
    product was padded by the device's largest tile (mmq.cuh: get_mmq_x_max_host)."""

    pads_experts_by_tokens: bool = False
    """The padding of an experts' product follows its tokens, not its second dimension (mmq.cu: ggml_cuda_mul_mat_q)."""

    nvfp4_scales: bool = False
    """Activations for NVFP4 matrices have a scale a row (same function)."""

    old_cards_multiply_experts: bool = False
    """MMQ multiplies experts on Pascal cards without integer dot products, too (ggml_cuda_should_use_mmq)."""

    slow_bf16_as_f32: bool = False
    """Cards without fast bf16 compute products of bf16 matrices in f32 (ggml_cuda_mul_mat_cublas)."""

    vector_on_the_right: bool = False
    """A product with a matrix of one row is computed as the product of its vector (ggml_cuda_mul_mat)."""

    top_k_in_chunks: bool = False
    """TOP_K sorts at most 64 MiB of scores at once (top-k.cu: ggml_cuda_op_top_k)."""

    sorted_keys_apart: bool = False
    """Sorted keys have room of their own beside the unsorted ones (argsort.cu: argsort_f32_i32_cuda_cub)."""

    sparse_attention: SparseAttention = SparseAttention.NONE
    """How flash attention gathers keys."""

    attention_pairs: bool = False
    """Heads over 256 have flash attention for two query heads a key head (fattn.cu:
    ggml_cuda_flash_attn_ext_mma_f16_switch_ncols2)."""

    wide_batches_256: bool = False
    """16 columns of heads of 256 take 64 keys at once, not 32 (fattn-mma-f16.cuh)."""

    wide_batches_512: bool = False
    """8 and 16 columns of heads of 512 take 64 keys at once, not 32 (same file)."""

    chunked_scan: bool = False
    """Mamba-2 prompts are scanned in chunks, through cuBLAS (ssm-scan.cu: ssm_scan_ssd_f32_cuda)."""

    cublas_workspace: bool = False
    """cuBLAS's workspace is llama.cpp's own (common.cuh: cublas_handle). Before, cuBLAS took it by itself."""


SINCE: tuple[tuple[int, Mapping[str, Any]], ...] = (
    (10068, {"converts_both_sides": True, "tiles_by_type": True, "top_k_in_chunks": True, "attention_pairs": True}),
    (10361, {"nvfp4_scales": True, "vector_on_the_right": True, "chunked_scan": True}),
    (10852, {"old_cards_multiply_experts": True, "cublas_workspace": True}),
    (10852, {"sparse_attention": SparseAttention.BY_QUERY}),
    (11200, {"slow_bf16_as_f32": True, "sorted_keys_apart": True, "sparse_attention": SparseAttention.BY_TILE}),
    (11200, {"wide_batches_256": True, "wide_batches_512": True}),
    (11434, {"pads_experts_by_tokens": True}),
)
"""What each build turned, oldest first, by the first modelled build that was read to have it; builds between are taken
as the one before."""


@lru_cache(maxsize=32)
def pool_rules(release: Release) -> PoolRules:
    """The switches of a release."""
    return PoolRules(**turned(SINCE, release.build))
