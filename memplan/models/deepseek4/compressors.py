"""Compressors: blocks of keys pooled into one key each.

Follows ``src/models/deepseek4.cpp`` (``build_hca_compressed_kv_from_state``,
``build_overlap_compressed_kv_from_state``), v0.5.0, and for
older forms b9842.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.models.deepseek4.hparams import CSA_RATIO, HCA_RATIO
from memplan.models.deepseek4.states import States

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.models.deepseek4.inputs import Inputs


class Compressors(States):
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
        return self.cb(self.rope_end(comp, inp.state_write_pos, f"{name}-{il}"), name, il)

    def compress_hca(self, kv_state: Tensor, score_state: Tensor, norm: Tensor, il: int) -> Tensor:
        """``build_hca_compressed_kv_from_state``."""
        inp, name, n = self.hca, "hca_state_compress", self.hp.n_embd_head_k()
        n_blocks = inp.state_write_pos.ne[0]
        kv = ops.reshape(ops.get_rows(kv_state, inp.state_read_idxs), n, HCA_RATIO, n_blocks)
        score = ops.reshape(ops.get_rows(score_state, inp.state_read_idxs), n, HCA_RATIO, n_blocks)
        return self.pool(self.cb(kv, name, il), self.cb(score, name, il), inp, norm, name, il)

    def compress_overlap(
        self, kv_state: Tensor, score_state: Tensor, inp: Inputs, norm: Tensor, n: int, name: str, il: int
    ) -> Tensor:
        """``build_overlap_compressed_kv_from_state``: each block also reads the one before."""
        kv_state = self.append_zero_row(kv_state)
        score_state = self.append_zero_row(score_state)
        halves = self.halves_read_once if self.switches.compressor_reads_once else self.halves_read_apart
        (kv_prev, kv_cur), (score_prev, score_cur) = halves((kv_state, score_state), inp, n)
        self.cb(kv_prev, name, il)
        self.cb(score_prev, name, il)
        values = ops.concat(kv_prev, kv_cur, 1)
        scores = ops.concat(score_prev, score_cur, 1)
        return self.pool(values, scores, inp, norm, name, il)

    @staticmethod
    def halves_read_once(states: tuple[Tensor, ...], inp: Inputs, n: int) -> list[tuple[Tensor, Tensor]]:
        """For each state the blocks before and the blocks themselves, out of rows gathered in one go."""
        blocks = inp.state_write_pos.ne[0]
        n_read = CSA_RATIO * blocks
        found = []
        for rows in [ops.get_rows(state, inp.state_read_idxs) for state in states]:
            current = n_read * rows.nb[1] + rows.type.row_size(n)
            parts = [ops.cont(ops.view_2d(rows, n, n_read, rows.nb[1], offset)) for offset in (0, current)]
            found.append((ops.reshape(parts[0], n, CSA_RATIO, blocks), ops.reshape(parts[1], n, CSA_RATIO, blocks)))
        return found

    @staticmethod
    def halves_read_apart(states: tuple[Tensor, ...], inp: Inputs, n: int) -> list[tuple[Tensor, Tensor]]:
        """The same, each half's rows gathered by themselves."""
        blocks = inp.state_write_pos.ne[0]
        n_read = CSA_RATIO * blocks
        idxs = inp.state_read_idxs
        prev, cur = (ops.view_1d(idxs, n_read, half * n_read * idxs.type.type_size) for half in (0, 1))

        def half(state: Tensor, which: Tensor, first: int) -> Tensor:
            rows = ops.get_rows(state, which)
            part = ops.cont(ops.view_2d(rows, n, n_read, rows.nb[1], rows.type.row_size(first)))
            return ops.reshape(part, n, CSA_RATIO, blocks)

        return [(half(state, prev, 0), half(state, cur, n)) for state in states]

    @staticmethod
    def append_zero_row(t: Tensor) -> Tensor:
        """``dsv4_append_zero_row``: what a block before the first one reads."""
        row = ops.reshape(ops.scale(ops.view_1d(t, t.ne[0], 0)), t.ne[0], 1)
        return ops.concat(t, row, 1)

    def new_state(self, which: str, prefix: str, inp: Inputs, cur: Tensor, il: int) -> tuple[Tensor, Tensor]:
        """The batch's rows for a compressor: keys, and scores with their position's bias."""
        kv = self.cb(ops.mul_mat(self.w(il, f"{prefix}_compressor_kv"), cur), f"{which}_state_kv", il)
        score = self.cb(ops.mul_mat(self.w(il, f"{prefix}_compressor_gate"), cur), f"{which}_state_score", il)
        ape_rows = ops.get_rows(self.w(il, f"{prefix}_compressor_ape"), inp.state_pos)
        return kv, self.cb(ops.add(score, ape_rows), f"{which}_state_score_ape", il)

    def write_compressed(self, which: str, inp: Inputs, comp: Tensor, il: int) -> Tensor:
        """New compressed rows into their cache, rotated if the cache's are."""
        if inp.k_rot is not None:
            comp = self.cb(self.hadamard(comp, inp.k_rot), f"{which}_state_compress_rot", il)
        self.graph.expand(self.cpy_k(f"cache_k@{which}", comp, inp.state_write_idxs, il))
        return comp

    def csa_compressors(self, cur: Tensor, il: int) -> None:
        """A CSA layer's two compressors: the attention's and the indexer's."""
        hp = self.hp
        for which, prefix, inp, n in (
            ("csa", "attn", self.csa, hp.n_embd_head_k()),
            ("lid", "indexer", self.lid, hp.indexer_head_size),
        ):
            new = self.new_state(which, prefix, inp, cur, il)
            carried = self.carried(which, inp, il)
            kv, score = (self.with_new_rows(which, c, rows) for c, rows in zip(carried, new, strict=True))
            norm = self.w(il, f"{prefix}_compressor_norm")
            comp = self.compress_overlap(kv, score, inp, norm, n, f"{which}_state_compress", il)
            comp = self.write_compressed(which, inp, comp, il)
            self.persist(which, inp, carried, new, comp, il)

    def hca_compressor(self, cur: Tensor, il: int) -> None:
        """An HCA layer's compressor."""
        new = self.new_state("hca", "attn", self.hca, cur, il)
        carried = self.carried("hca", self.hca, il)
        kv, score = (self.with_new_rows("hca", c, rows) for c, rows in zip(carried, new, strict=True))
        comp = self.compress_hca(kv, score, self.w(il, "attn_compressor_norm"), il)
        comp = self.write_compressed("hca", self.hca, comp, il)
        self.persist("hca", self.hca, carried, new, comp, il)
