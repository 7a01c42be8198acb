"""Packing a graph: when each tensor gets its place, when it gives it back, and whose place it may take over.

Follows ``ggml_gallocr_*`` (ggml/src/ggml-alloc.c, v0.5.0).
"""

from __future__ import annotations

from typing import Protocol

from memplan.ggml.backend import BufferType
from memplan.ggml.tallocr import DynTallocr
from memplan.ggml.tensor import FLAG_INPUT, FLAG_OUTPUT, Tensor

INPLACE_OPS = frozenset(
    {
        *("FILL", "SCALE", "CLAMP", "SQR", "SQRT", "LOG", "UNARY", "ROPE", "ROPE_BACK", "SILU_BACK"),
        *("ADD", "ADD_ID", "ADD1", "SUB", "MUL", "DIV", "RMS_NORM", "RMS_NORM_BACK"),
        *("DIAG_MASK_ZERO", "DIAG_MASK_INF", "SOFT_MAX", "SOFT_MAX_BACK"),
    }
)
"""Ops whose result may take over a source's place (``ggml_op_can_inplace``)."""


class Observer(Protocol):
    """Follows a reservation as it happens. A tensor's ``place`` and ``size`` say what it holds."""

    def step(self, node: Tensor) -> None:
        """``node`` is next to be computed, copied to or, if it is a NONE of other tensors, to keep them."""

    def allocated(self, t: Tensor) -> None:
        """``t`` got a place of its own."""

    def taken_over(self, t: Tensor, parent: Tensor) -> None:
        """``t`` got the place of ``parent``, or as much of it as it needs; the rest is free."""

    def freed(self, t: Tensor) -> None:
        """``t`` gave its place back."""


class Gallocr:
    """Replays one reservation; ``bufts`` is the buffer type of each backend, equal ones sharing one space.

    ``observer`` is told of every place that is given, taken over and given back.
    """

    def __init__(self, bufts: list[BufferType], observer: Observer | None = None) -> None:
        self.bufts = bufts
        self.observer = observer
        self.tallocs: list[DynTallocr] = []
        for i, buft in enumerate(bufts):
            shared = bufts.index(buft)
            self.tallocs.append(self.tallocs[shared] if shared < i else DynTallocr(buft.max_size))

    def reserve(
        self, nodes: list[Tensor], leafs: list[Tensor], node_homes: list[int], leaf_homes: list[int]
    ) -> list[int]:
        """Bytes each backend's buffer needs for this graph (``ggml_gallocr_reserve_n_size``).

        ``node_homes`` and ``leaf_homes`` give each node's and leaf's backend. Backends that share a buffer type all
        report the shared size, as ggml does.
        """
        for t in leafs:
            self._forget(t)
        for t in nodes:
            self._forget(t)
            for s in t.src:
                self._forget(s)
        allocate = self._allocate
        for leaf, home in zip(leafs, leaf_homes, strict=True):
            allocate(leaf, home)
        for node, home in zip(nodes, node_homes, strict=True):
            # NONE nodes only keep their sources alive; they are not views that anything reads
            if node.view_src is not None and node.op != "NONE":
                node.view_src.n_views += 1
            if node.flags & FLAG_INPUT:
                allocate(node, home)
            for src in node.src:
                src.n_children += 1
                if src.flags & FLAG_INPUT:
                    allocate(src, home)
        observer = self.observer
        for node, home in zip(nodes, node_homes, strict=True):
            if observer is not None:
                observer.step(node)
            for src in node.src:
                allocate(src, home)
            allocate(node, home)
            for src in node.src:
                src.n_children -= 1
                if src.n_children == 0 and src.n_views == 0:
                    base = src.view_src
                    if base is None:
                        if src.owned:
                            self._free(src)
                    else:
                        base.n_views -= 1
                        if base.n_views == 0 and base.n_children == 0 and base.owned:
                            self._free(base)
        return [talloc.total for talloc in self.tallocs]

    @staticmethod
    def _forget(t: Tensor) -> None:
        t.owned = False
        t.n_children = t.n_views = 0

    def _allocate(self, t: Tensor, home: int) -> None:
        if t.owned or t.buffer is not None or t.view_src is not None:
            return
        t.owned = True
        if t.op in INPLACE_OPS:
            for parent in t.src:
                # a view never owns its place, so ggml never reuses one (is_own is false for it)
                if (
                    parent.owned
                    and parent.n_children == 1
                    and parent.n_views == 0
                    and parent.ne == t.ne
                    and parent.nb == t.nb
                    and parent.type is t.type
                    and not parent.flags & FLAG_OUTPUT
                ):
                    parent.owned = False
                    self._take_over(t, parent)
                    return
        t.size = size = self._size(t, home)
        t.place = (home, *self.tallocs[home].alloc(size))
        if self.observer is not None:
            self.observer.allocated(t)

    def _take_over(self, t: Tensor, parent: Tensor) -> None:
        """Give ``t`` the place of ``parent``, and back what ``t`` does not need of it."""
        home, chunk, offset = t.place = parent.place
        t.size = self._size(t, home)
        if parent.size > t.size:
            self.tallocs[home].free((chunk, offset + t.size), parent.size - t.size)
        if self.observer is not None:
            self.observer.taken_over(t, parent)

    def _free(self, t: Tensor) -> None:
        if t.flags & FLAG_OUTPUT:
            return
        home, chunk, offset = t.place
        self.tallocs[home].free((chunk, offset), t.size)
        t.owned = False
        if self.observer is not None:
            self.observer.freed(t)

    def _size(self, t: Tensor, home: int) -> int:
        return self.bufts[home].padded_size(t)
