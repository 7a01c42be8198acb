"""Reading and writing recurrent states.

Follows src/llama-graph.cpp (``build_rs_inp``, ``build_rs``), v0.5.0 and b11434; releases from b9842 on do as v0.5.0.
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

    def build_rs_inp(self) -> tuple[Tensor, Tensor, Tensor]:
        """Which cells are read: of all sequences, of the batch's, and of those that only move (``build_rs_inp``).

        The last are, where states are read once, all but the first. All are views of the first, an input.
        """
        cells, n_seqs = self.states.cells, self.batch.n_seqs
        s_copy = ops.new_input(I32, cells, name="rs_s_copy")
        moved = 1 if self.release.reads_states_once else n_seqs
        return s_copy, ops.view_1d(s_copy, n_seqs, 0), ops.view_1d(s_copy, cells - moved, moved * s_copy.nb[0])

    def build_rs(self, rs: Sequence[Tensor], s: Tensor, rows: Rows | None = None) -> Tensor:
        """The states of the batch's sequences, by ``rows`` if given; those of others are moved (``build_rs``)."""
        graph, n_seqs, size, cells = self.graph, self.batch.n_seqs, s.ne[0], self.states.cells
        every, main, extra = rs
        states = ops.reshape(s, size, s.ne[1])
        # a sequence that starts anew reads the one state that is cleared here
        graph.expand(ops.scale_inplace(ops.view_1d(states, size, 0)))
        if self.release.reads_states_once:
            copied = every if rows is None else extra
            gathered = ops.get_rows(states, copied)
            row = gathered.nb[1]
            read = ops.view_2d(gathered, size, n_seqs, row, 0) if rows is None else rows(states, main)
            graph.expand(read)
            first = n_seqs - (cells - copied.ne[0])
            moved = ops.view_2d(gathered, size, cells - n_seqs, row, first * row)
        else:
            read = (rows or ops.get_rows)(states, main)
            graph.expand(read)
            moved = ops.get_rows(states, extra)
        graph.expand(ops.cpy(moved, ops.view_2d(s, size, cells - n_seqs, s.nb[1], n_seqs * s.nb[1])))
        return read
