"""Reading and writing recurrent states.

Follows src/llama-graph.cpp (``build_rs_inp``, ``build_rs``), v0.5.0; releases from b9842 on do the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memplan.ggml import ops
from memplan.ggml.tensor import Tensor
from memplan.gguf.types import I32
from memplan.llama.graph.base import GraphBase, H
from memplan.llama.memory.recurrent import RecurrentStates

Rows = Callable[[Tensor, Tensor], Tensor]
"""What is made of all states and the numbers of those that are read."""


class Recurrent(GraphBase[H]):
    """States of recurrent layers."""

    @property
    def states(self) -> RecurrentStates:
        """The context's recurrent states."""
        states = self.memory.caches["rs"]
        assert isinstance(states, RecurrentStates)
        return states

    @property
    def n_seq_tokens(self) -> int:
        """Tokens of each sequence in the batch."""
        return self.batch.n_tokens // self.batch.n_seqs

    def build_rs_inp(self) -> tuple[Tensor, Tensor]:
        """Which cell each sequence reads, and cells that only move (``build_rs_inp``): views of one input."""
        cells, n_seqs = self.states.cells, self.batch.n_seqs
        s_copy = ops.new_input(I32, cells, name="rs_s_copy")
        return ops.view_1d(s_copy, n_seqs, 0), ops.view_1d(s_copy, cells - n_seqs, n_seqs * s_copy.nb[0])

    def build_rs(self, rs: Sequence[Tensor], s: Tensor, rows: Rows = ops.get_rows) -> Tensor:
        """The states of the batch's sequences; those of others are moved (``build_rs``)."""
        graph, n_seqs, size = self.graph, self.batch.n_seqs, s.ne[0]
        main, extra = rs
        states = ops.reshape(s, size, s.ne[1])
        # a sequence that starts anew reads the one state that is cleared here
        graph.expand(ops.scale_inplace(ops.view_1d(states, size, 0)))
        read = rows(states, main)
        graph.expand(read)
        moved = ops.get_rows(states, extra)
        graph.expand(ops.cpy(moved, ops.view_2d(s, size, self.states.cells - n_seqs, s.nb[1], n_seqs * s.nb[1])))
        return read
