"""Follows a reservation: which tensor lay where, from when to when."""

from __future__ import annotations

from memplan.ggml.backend import BufferType
from memplan.ggml.graph import Graph
from memplan.ggml.tensor import Tensor

BEFORE = -1
"""The node index of what is placed before the first node: the graph's inputs and leafs."""


class Life:
    """One tensor's stay at one place.

    ``space``: the first backend that shares the memory.  ``start``, ``end``: moments, counted over all changes; alive
    from ``start`` on and no longer at ``end``.  ``first``, ``last``: the nodes of the graph between which it is alive,
    both included.  ``took``: the tensor whose place it took over.
    """

    __slots__ = ("chunk", "end", "first", "last", "offset", "size", "space", "start", "tensor", "took")

    def __init__(self, tensor: Tensor, space: int, start: int, first: int, took: Tensor | None) -> None:
        self.tensor = tensor
        self.space = space
        self.chunk, self.offset = tensor.place[1:]
        self.size = tensor.size
        self.start = start
        self.first = first
        self.took = took
        self.end = -1
        self.last = -1


class Recorder:
    """The allocator's observer (``memplan.ggml.gallocr.Observer``) for ``graph`` on buffers of these types."""

    def __init__(self, graph: Graph, bufts: list[BufferType]) -> None:
        self.lives: list[Life] = []
        self._spaces = [bufts.index(buft) for buft in bufts]
        self._own = set(graph.nodes)
        self._n_nodes = len(graph.nodes)
        self._alive: dict[Tensor, Life] = {}
        self._moment = 0
        self._node = BEFORE
        self._done = BEFORE

    def step(self, node: Tensor) -> None:
        """Follow the graph's own count of nodes: a copy counts as the node it is made for, a keeper as the one before.

        Both are NONE; a keeper is a view of what it keeps.
        """
        if node in self._own:
            self._done += 1
            self._node = self._done
        else:
            self._node = self._done + (node.view_src is None)

    def allocated(self, t: Tensor) -> None:
        """A tensor begins."""
        self._begin(t, None)

    def taken_over(self, t: Tensor, parent: Tensor) -> None:
        """A tensor begins where another ends."""
        self._end(parent, self._node - 1)
        self._moment -= 1  # one change, not two
        self._begin(t, parent)

    def freed(self, t: Tensor) -> None:
        """A tensor ends."""
        self._end(t, self._node)

    def finish(self) -> list[Life]:
        """Every stay, in order; what was never given back ends with the graph."""
        for t in list(self._alive):
            self._end(t, self._n_nodes - 1)
        return self.lives

    def _begin(self, t: Tensor, took: Tensor | None) -> None:
        self._moment += 1
        life = Life(t, self._spaces[t.place[0]], self._moment, self._node, took)
        self._alive[t] = life
        self.lives.append(life)

    def _end(self, t: Tensor, last: int) -> None:
        self._moment += 1
        life = self._alive.pop(t)
        life.end = self._moment
        life.last = max(last, life.first)
