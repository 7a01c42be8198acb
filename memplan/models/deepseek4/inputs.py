"""The graph's inputs: what llama.cpp fills in before each run.

Follows ``src/llama-graph.cpp`` (``build_inp_dsv4``, ``dsv4_build_comp_inputs``, ``dsv4_build_raw_kq_mask``) and
``src/llama-kv-cache-dsv4.cpp`` (``dsv4_build_reserve_comp_plan``), v0.5.0, and for older forms b9842.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.gguf.types import F16, F32, I32, I64, GGMLType
from memplan.llama.memory.kv import cells_read
from memplan.models.deepseek4.hparams import CSA_RATIO
from memplan.models.deepseek4.switches import switches
from memplan.releases import Indexer, Release

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.llama.batch import Batch
    from memplan.llama.context import Fused
    from memplan.llama.memory.kv import KVCache
    from memplan.models.deepseek4.memory import CompState


@dataclass(frozen=True, slots=True)
class MaskTypes:
    """Element types of the masks: over the raw window, over compressed keys, of the indexer.

    ``flash``: whether attention is flash attention.
    """

    flash: bool
    raw: GGMLType
    compressed: GGMLType
    indexer: GGMLType


def mask_types(release: Release, fused: Fused, kv_unified: bool, n_seqs: int) -> MaskTypes:
    """The masks of one graph (``dsv4_build_raw_kq_mask``, ``dsv4_build_comp_inputs``)."""
    if switches(release).masks_follow_attention:
        both = F16 if "FLASH_ATTN" in fused else F32
        masked = "LIGHTNING_INDEXER" in fused and release.indexer is Indexer.FUSED
        return MaskTypes("FLASH_ATTN" in fused, both, both, F16 if masked else F32)
    flash = "FLASH_ATTN" in fused and not (kv_unified and n_seqs > 1)
    return MaskTypes(flash, F16 if flash else F32, F32, F32)


def n_blocks(release: Release, batch: Batch, ratio: int) -> int:
    """Blocks that a batch closes (``dsv4_build_reserve_comp_plan``; of a batch that is known ``..._comp_plan``)."""
    if switches(release).blocks_over_all_slots and batch.filled is None:
        # every sequence may end within a block of its own
        return batch.n_tokens // ratio + max(1, batch.n_seqs)
    each = batch.n_tokens // batch.n_seqs
    return batch.n_seqs * -(-each // ratio)


class Inputs:
    """The inputs of one compressed cache (``dsv4_build_comp_inputs``), sized for the worst case of a batch."""

    __slots__ = (
        "k_rot",
        "kq_mask",
        "state_persist_dst_idxs",
        "state_persist_src_idxs",
        "state_pos",
        "state_read_idxs",
        "state_restore",
        "state_snapshot",
        "state_write_idxs",
        "state_write_pos",
    )

    def __init__(
        self, cache: KVCache, state: CompState, batch: Batch, blocks: int, mask_type: GGMLType, rotated: bool
    ) -> None:
        n_stream, n_rows = batch.n_seqs, state.state_size * state.n_stream
        n_kv = cells_read(cache.size, None if batch.filled is None else batch.filled // state.ratio)
        n_persist = min(batch.n_tokens, n_rows)
        # a CSA block also reads the block before
        n_read = (2 if state.ratio == CSA_RATIO else 1) * state.ratio * blocks
        prefix = f"dsv4_{cache.name}_"
        self.state_pos = ops.new_input(I32, batch.n_tokens, name=prefix + "state_pos")
        self.state_persist_src_idxs = ops.new_input(I32, n_persist, name=prefix + "state_persist_src_idxs")
        self.state_persist_dst_idxs = ops.new_input(I32, n_persist, name=prefix + "state_persist_dst_idxs")
        self.state_restore = self._idxs(prefix + "state_restore", n_rows * min(state.n_rs_seq, 1))
        self.state_snapshot = self._idxs(prefix + "state_snapshot", n_rows * state.n_rs_seq)
        self.state_read_idxs = ops.new_input(I32, n_read, name=prefix + "state_read_idxs")
        self.state_write_idxs = ops.new_input(I64, blocks, name=prefix + "state_write_idxs")
        self.state_write_pos = ops.new_input(I32, blocks, name=prefix + "state_write_pos")
        self.kq_mask = ops.new_input(mask_type, n_kv, batch.n_tokens // n_stream, 1, n_stream, name=prefix + "kq_mask")
        self.k_rot = k_rot(cache) if rotated else None

    @staticmethod
    def _idxs(name: str, n: int) -> tuple[Tensor, Tensor] | None:
        """Row numbers to copy from and to; none when there is nothing to copy."""
        if n == 0:
            return None
        return ops.new_input(I32, n, name=f"{name}_src_idxs"), ops.new_input(I32, n, name=f"{name}_dst_idxs")


def k_rot(cache: KVCache) -> Tensor | None:
    """The matrix that turns a cache's keys, if they are turned (``llama_kv_cache::build_input_k_rot``)."""
    return ops.new_input(F32, cache.k_rot, cache.k_rot, name="attn_inp_k_rot") if cache.k_rot else None
