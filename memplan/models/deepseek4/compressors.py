"""Compressors: blocks of keys pooled into one key each, and the states they carry from batch to batch.

Follows ``src/models/deepseek4.cpp`` (``build_hca_compressed_kv_from_state``, ``dsv4_build_state_restore`` and their
neighbours) and ``src/llama-kv-cache.cpp`` (``cpy_k``, ``get_k``), v0.5.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.llama.hparams import CSA_RATIO, HCA_RATIO
from memplan.models.deepseek4.pieces import Pieces, hadamard

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.models.deepseek4.inputs import Inputs


class Compressors(Pieces):
    """Compressed keys into their caches."""

    csa: Inputs
    hca: Inputs
    lid: Inputs

    def pool(self, values: Tensor, scores: Tensor, inp: Inputs, norm: Tensor, name: str, il: int) -> Tensor:
        """Blocks of rows weighted into one row each, normed and turned to their position."""
        values = ops.cont(ops.permute(values, 1, 0, 2, 3))
        scores = ops.cont(ops.permute(scores, 1, 0, 2, 3))
        comp = ops.sum_rows(ops.mul(values, ops.soft_max(scores)))
        comp = self.cb(ops.cont(ops.permute(comp, 1, 0, 2, 3)), name, il)
        comp = self.cb(self.norm(comp, norm, il), name, il)
        return self.cb(self.rope(comp, inp.state_write_pos), name, il)

    def compress_hca(self, kv_state: Tensor, score_state: Tensor, norm: Tensor, il: int) -> Tensor:
        """``build_hca_compressed_kv_from_state``."""
        inp, name, n = self.hca, "hca_state_compress", self.hp.n_embd_head_k
        n_blocks = inp.state_write_pos.ne[0]
        kv = ops.reshape(ops.get_rows(kv_state, inp.state_read_idxs), n, HCA_RATIO, n_blocks)
        score = ops.reshape(ops.get_rows(score_state, inp.state_read_idxs), n, HCA_RATIO, n_blocks)
        return self.pool(self.cb(kv, name, il), self.cb(score, name, il), inp, norm, name, il)

    def compress_overlap(
        self, kv_state: Tensor, score_state: Tensor, inp: Inputs, norm: Tensor, n: int, name: str, il: int
    ) -> Tensor:
        """``build_overlap_compressed_kv_from_state``: each block also reads the one before."""
        n_blocks = inp.state_write_pos.ne[0]
        n_read = CSA_RATIO * n_blocks
        kv_state = self.append_zero_row(kv_state)
        score_state = self.append_zero_row(score_state)
        kv_rows = ops.get_rows(kv_state, inp.state_read_idxs)
        score_rows = ops.get_rows(score_state, inp.state_read_idxs)

        def half(rows: Tensor, offset: int) -> Tensor:
            part = ops.cont(ops.view_2d(rows, n, n_read, rows.nb[1], offset))
            return ops.reshape(part, n, CSA_RATIO, n_blocks)

        current = n_read * kv_rows.nb[1] + kv_rows.type.row_size(n)
        kv_prev = self.cb(half(kv_rows, 0), name, il)
        score_prev = self.cb(half(score_rows, 0), name, il)
        kv_cur = half(kv_rows, current)
        score_cur = half(score_rows, current)
        values = ops.concat(kv_prev, kv_cur, 1)
        scores = ops.concat(score_prev, score_cur, 1)
        return self.pool(values, scores, inp, norm, name, il)

    @staticmethod
    def append_zero_row(t: Tensor) -> Tensor:
        """``dsv4_append_zero_row``: what a block before the first one reads."""
        row = ops.reshape(ops.scale(ops.view_1d(t, t.ne[0], 0)), t.ne[0], 1)
        return ops.concat(t, row, 1)

    def state(self, which: str, part: str, il: int) -> Tensor:
        """The compressor state's rows of all streams and snapshots (``get_kv_all``, ``get_score_all``)."""
        t = self.leaf(f"dsv4_{which}_state_{part}", il)
        return ops.view_2d(t, t.ne[0], t.ne[1] * t.ne[2], t.nb[1], 0)

    def copy_state(self, which: str, part: str, source: Tensor, idxs: tuple[Tensor, Tensor], il: int) -> Tensor:
        """Rows of ``source`` copied into the state."""
        rows = ops.get_rows(source, idxs[0])
        return ops.set_rows(self.state(which, part, il), rows, idxs[1])

    def restored_state(self, which: str, inp: Inputs, il: int) -> tuple[Tensor, Tensor]:
        """The state as the batch finds it: keys and scores (``dsv4_build_state_restore``)."""
        kv, score = self.state(which, "kv", il), self.state(which, "score", il)
        if inp.state_restore is not None:
            kv = self.copy_state(which, "kv", kv, inp.state_restore, il)
            score = self.copy_state(which, "score", score, inp.state_restore, il)
        return kv, score

    def with_new_rows(self, which: str, restored: Tensor, new: Tensor) -> Tensor:
        """The state's current rows, snapshots left out, with the batch's new ones behind them."""
        state = self.memory.hca_state if which == "hca" else self.memory.csa_state
        n_rows = state.state_size * state.n_stream
        return ops.concat(ops.view_2d(restored, restored.ne[0], n_rows, restored.nb[1], 0), new, 1)

    def persist(
        self, which: str, inp: Inputs, restored: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor], il: int
    ) -> None:
        """What the next batch needs goes into the state, snapshots first (``dsv4_build_state_snapshot``)."""
        parts = ("kv", "score")
        if inp.state_snapshot is not None:
            for part, old, cur in zip(parts, restored, new, strict=True):
                self.graph.expand(self.copy_state(which, part, ops.concat(old, cur, 1), inp.state_snapshot, il))
        idxs = (inp.state_persist_src_idxs, inp.state_persist_dst_idxs)
        for part, cur in zip(parts, new, strict=True):
            self.graph.expand(self.copy_state(which, part, cur, idxs, il))

    def new_state(self, which: str, prefix: str, inp: Inputs, cur: Tensor, il: int) -> tuple[Tensor, Tensor]:
        """The batch's rows for a compressor: keys, and scores with their position's bias."""
        kv = self.cb(ops.mul_mat(self.w(il, f"{prefix}_compressor_kv"), cur), f"{which}_state_kv", il)
        score = self.cb(ops.mul_mat(self.w(il, f"{prefix}_compressor_gate"), cur), f"{which}_state_score", il)
        ape_rows = ops.get_rows(self.w(il, f"{prefix}_compressor_ape"), inp.state_pos)
        return kv, self.cb(ops.add(score, ape_rows), f"{which}_state_score_ape", il)

    def write_compressed(self, which: str, inp: Inputs, comp: Tensor, il: int) -> None:
        """New compressed rows into their cache."""
        if inp.k_rot is not None:
            comp = self.cb(hadamard(comp, inp.k_rot), f"{which}_state_compress_rot", il)
        self.graph.expand(self.cpy_k(f"cache_k@{which}", comp, inp.state_write_idxs, il))

    def csa_compressors(self, cur: Tensor, il: int) -> None:
        """A CSA layer's two compressors: the attention's and the indexer's."""
        hp = self.hp
        for which, prefix, inp, n in (
            ("csa", "attn", self.csa, hp.n_embd_head_k),
            ("lid", "indexer", self.lid, hp.indexer_head_size),
        ):
            new = self.new_state(which, prefix, inp, cur, il)
            restored = self.restored_state(which, inp, il)
            kv, score = (self.with_new_rows(which, r, c) for r, c in zip(restored, new, strict=True))
            norm = self.w(il, f"{prefix}_compressor_norm")
            comp = self.compress_overlap(kv, score, inp, norm, n, f"{which}_state_compress", il)
            self.write_compressed(which, inp, comp, il)
            self.persist(which, inp, restored, new, il)

    def hca_compressor(self, cur: Tensor, il: int) -> None:
        """An HCA layer's compressor."""
        new = self.new_state("hca", "attn", self.hca, cur, il)
        restored = self.restored_state("hca", self.hca, il)
        kv, score = (self.with_new_rows("hca", r, c) for r, c in zip(restored, new, strict=True))
        comp = self.compress_hca(kv, score, self.w(il, "attn_compressor_norm"), il)
        self.write_compressed("hca", self.hca, comp, il)
        self.persist("hca", self.hca, restored, new, il)

    def cpy_k(self, cache: str, k_cur: Tensor, k_idxs: Tensor, il: int) -> Tensor:
        """Rows written into a cache (``llama_kv_cache::cpy_k``)."""
        k = self.leaf(cache, il)
        n = k_cur.ne[0] * k_cur.ne[1]
        k_cur = ops.view_2d(k_cur, n, k_cur.ne[2], k_cur.nb[2], 0)
        if k.ne[2] > 1:
            k = ops.reshape(k, n, k.ne[1] * k.ne[2])
        return ops.set_rows(k, k_cur, k_idxs)

    def get_k(self, cache: str, n_embd_head: int, il: int) -> Tensor:
        """A cache as attention reads it: (head size, 1, cells, streams) (``llama_kv_cache::get_k``)."""
        k = self.leaf(cache, il)
        row, size = k.type.row_size, k.ne[1]
        ne = (n_embd_head, 1, size, k.ne[2])
        return ops.view(k, ne, (k.type.type_size, row(n_embd_head), row(k.ne[0]), row(k.ne[0] * size)))
