"""What compressors carry from batch to batch: how it is read, and how what the next batch needs is written.

Follows ``src/models/deepseek4.cpp`` (``dsv4_build_state_restore``, ``dsv4_build_state_snapshot``,
``dsv4_with_zero_dep``) and ``src/llama-kv-cache-dsv4.cpp`` (``llama_dsv4_comp_state``), v0.5.0 and b10068.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.models.deepseek4.pieces import Pieces

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor
    from memplan.models.deepseek4.inputs import Inputs

PARTS = ("kv", "score")
"""A state's two tensors."""


class States(Pieces):
    """Compressor states in the two forms that releases have: with snapshots, and before."""

    def state(self, which: str, part: str, il: int) -> Tensor:
        """The state's rows: of all streams and snapshots (``get_kv_all``); before snapshots, reshaped (``get_kv``)."""
        t = self.leaf(f"dsv4_{which}_state_{part}", il)
        if self.switches.compressor_snapshots:
            return ops.view_2d(t, t.ne[0], t.ne[1] * t.ne[2], t.nb[1], 0)
        return ops.reshape(t, t.ne[0], t.ne[1] * t.ne[2])

    def copy_state(self, which: str, part: str, source: Tensor, idxs: tuple[Tensor, Tensor], il: int) -> Tensor:
        """Rows of ``source`` copied into the state."""
        rows = ops.get_rows(source, idxs[0])
        return ops.set_rows(self.state(which, part, il), rows, idxs[1])

    def carried(self, which: str, inp: Inputs, il: int) -> tuple[Tensor, Tensor]:
        """The state as the batch finds it: keys and scores (``dsv4_build_state_restore``)."""
        kv, score = self.state(which, "kv", il), self.state(which, "score", il)
        if inp.state_restore is not None:
            kv = self.copy_state(which, "kv", kv, inp.state_restore, il)
            score = self.copy_state(which, "score", score, inp.state_restore, il)
        return kv, score

    def with_new_rows(self, which: str, carried: Tensor, new: Tensor) -> Tensor:
        """The state's current rows, snapshots left out, with the batch's new ones behind them."""
        if not self.switches.compressor_snapshots:
            return ops.concat(carried, new, 1)
        state = self.memory.state("hca") if which == "hca" else self.memory.state("csa")
        n_rows = state.state_size * state.n_stream
        return ops.concat(ops.view_2d(carried, carried.ne[0], n_rows, carried.nb[1], 0), new, 1)

    def persist(
        self,
        which: str,
        inp: Inputs,
        carried: tuple[Tensor, Tensor],
        new: tuple[Tensor, Tensor],
        comp: Tensor,
        il: int,
    ) -> None:
        """What the next batch needs goes into the state: the rows ``new``, once ``comp`` is computed."""
        if not self.switches.compressor_snapshots:
            new = self.held_back(new[0], comp), self.held_back(new[1], comp)
        elif inp.state_snapshot is not None:
            for part, old, cur in zip(PARTS, carried, new, strict=True):
                self.graph.expand(self.copy_state(which, part, ops.concat(old, cur, 1), inp.state_snapshot, il))
        idxs = (inp.state_persist_src_idxs, inp.state_persist_dst_idxs)
        for part, cur in zip(PARTS, new, strict=True):
            self.graph.expand(self.copy_state(which, part, cur, idxs, il))

    @staticmethod
    def held_back(t: Tensor, until: Tensor) -> Tensor:
        """``t`` plus nothing, but not before ``until`` (``dsv4_with_zero_dep``)."""
        return ops.add(t, ops.scale(ops.sum_all(until)))
