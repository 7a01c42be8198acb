"""A graph put together from parts, as flat lists of numbers: all that packing needs but sizes and homes.

Tensor ids run over the whole graph: first its inputs, then each part's nodes and leafs in turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from memplan.ggml.parts import INPUT, NO_BASE, Part


class Topology:
    """The structure of a sequence of parts.

    Attributes:
        n_inputs: the graph's inputs, ids 0 and up.  first: the first id of each part.
        order: node ids as they are computed.  position: their places in it.
        leafs: leafs that the allocator places, in ggml's order.
        srcs: sources by id.  base: the tensor that owns a view's data, -1 for what is no view.
        owns: whether the allocator places a tensor.  takes: which sources' places a node may take over.
        n_children, n_views: how many nodes read a tensor, and how many are views of it; for what matters alone.
        matters: whether a tensor's data are the allocator's to place, its own or its base's.
        walk: the nodes in order that the allocator has something to do for.  walked: how many of them come before each
            place in ``order``.  visited: the same as a set.  needs: by id, the sources that matter.
        where: part and number in it, by id.
    """

    __slots__ = (
        "base",
        "first",
        "leafs",
        "matters",
        "n_children",
        "n_inputs",
        "n_views",
        "needs",
        "order",
        "owns",
        "position",
        "srcs",
        "takes",
        "visited",
        "walk",
        "walked",
        "where",
    )

    def __init__(self, parts: Sequence[Part], n_inputs: int) -> None:
        self.n_inputs = n_inputs
        self.first: list[int] = []
        self.srcs: list[tuple[int, ...]] = [()] * n_inputs
        self.base: list[int] = [-1] * n_inputs
        self.owns: list[bool] = [True] * n_inputs
        self.takes: list[tuple[int, ...]] = [()] * n_inputs
        self.where: list[tuple[int, int]] = [(-1, i) for i in range(n_inputs)]
        given = -1
        for at, part in enumerate(parts):
            first = len(self.srcs)
            self.first.append(first)
            ids = _Ids(first, given)
            n, leafs = len(part.nodes), part.leafs
            self.srcs += [tuple([ids[r] for r in s]) for s in part.srcs]
            self.base += [-1 if b == NO_BASE else ids[b] for b in part.bases]
            self.owns += [b == NO_BASE for b in part.bases]
            self.takes += part.takes
            self.srcs += [()] * len(leafs)
            self.base += [-1] * len(leafs)
            self.owns += [t.buffer is None for t in leafs]
            self.takes += [()] * len(leafs)
            self.where += [(at, i) for i in range(n + len(leafs))]
            given = first + part.out
        self.order = self._in_order(parts)
        self.position = {i: at for at, i in enumerate(self.order)}
        self.leafs = self._leafs_in_order(parts)
        owns, base = self.owns, self.base
        self.matters = [owns[b] if b >= 0 else own for own, b in zip(owns, base, strict=True)]
        matters = self.matters
        self.needs = [tuple([i for i in srcs if matters[i]]) if srcs else () for srcs in self.srcs]
        self.n_children = [0] * len(self.srcs)
        self.n_views = [0] * len(self.srcs)
        self.walk: list[int] = []
        self.walked: list[int] = []
        for i in self.order:
            self.walked.append(len(self.walk))
            if base[i] >= 0 and matters[i]:
                self.n_views[base[i]] += 1
            for s in self.needs[i]:
                self.n_children[s] += 1
            if owns[i] or self.needs[i]:
                self.walk.append(i)
        self.walked.append(len(self.walk))
        self.visited = frozenset(self.walk)

    def _in_order(self, parts: Sequence[Part]) -> list[int]:
        """What a part computes before it looks at its input, then the rest of the part before, then its body."""
        order: list[int] = []
        for at, part in enumerate(parts):
            first = self.first[at]
            order += range(first, first + part.n_pre)
            if at:
                before = parts[at - 1]
                order += range(self.first[at - 1] + before.n_body, self.first[at - 1] + len(before.nodes))
            order += range(first + part.n_pre, first + part.n_body)
        return order

    def _leafs_in_order(self, parts: Sequence[Part]) -> list[int]:
        leafs: list[int] = []
        seen: set[int] = set()

        def visit(at: int, start: int, end: int) -> None:
            for r in parts[at].leaf_order[start:end]:
                i = self.first[at] + r if r >= 0 else -2 - r
                if i not in seen and self.owns[i]:
                    seen.add(i)
                    leafs.append(i)

        for at, part in enumerate(parts):
            visit(at, 0, part.pre_leafs)
            if at:
                visit(at - 1, parts[at - 1].body_leafs, len(parts[at - 1].leaf_order))
            visit(at, part.pre_leafs, part.body_leafs)
        return leafs


class _Ids(dict[int, int]):
    """Ids of a part's references: its own from ``first`` on, ``given`` for its input, the graph's inputs."""

    def __init__(self, first: int, given: int) -> None:
        super().__init__({INPUT: given})
        self.first = first

    def __missing__(self, r: int) -> int:
        i = self[r] = self.first + r if r >= 0 else -2 - r
        return i
