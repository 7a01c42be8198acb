"""The order in which a graph's tensors are computed.

Follows ``ggml_build_forward_expand`` and ``ggml_visit_parents_graph`` (ggml/src/ggml.c, v0.5.0).
"""

from __future__ import annotations

from memplan.errors import BadHyperParameter
from memplan.ggml.tensor import FLAG_COMPUTE, Tensor

UNLIMITED = 1 << 62
"""Room for any number of nodes."""

MOST_NODES = 80_000
"""Nodes of the longest graph that is followed, some 3 KB each where no layer is like another: DeepSeek-V4-Pro has
50,000 in b9842."""


class GraphTooLargeError(Exception):
    """A graph has more tensors than llama.cpp has room for, which aborts it; the text is llama.cpp's own words."""


def hash_size(n: int) -> int:
    """Slots of a hash set for ``n`` tensors (``ggml_hash_size``): a prime that follows a power of two."""
    return next((p for p in _PRIMES if p >= n), n | 1)


_PRIMES = (
    2, 3, 5, 11, 17, 37, 67, 131, 257, 521, 1031, 2053, 4099, 8209, 16411, 32771, 65537, 131101, 262147, 524309,
    1048583, 2097169, 4194319, 8388617, 16777259, 33554467, 67108879, 134217757, 268435459, 536870923, 1073741827,
)  # fmt: skip


def check_size(max_nodes: int, n_nodes: int, n_leafs: int, n_given: int) -> None:
    """Raises GraphTooLargeError where llama.cpp has no room for a graph.

    ``max_nodes``: what it makes room for (``llama_context::graph_max_nodes``): as many tensors of the graph's own, and
    a hash set for all of them in the scheduler (``ggml_backend_sched_new``).  ``n_given``: leafs that exist without the
    graph, which are in the second alone.
    """
    if n_nodes + n_leafs - n_given > max_nodes:
        raise GraphTooLargeError("GGML_ASSERT(obj_new) failed")
    if n_nodes + n_leafs > hash_size(max_nodes):
        raise GraphTooLargeError("fatal error")


def check_length(max_nodes: int, n_nodes: int) -> None:
    """Raises GraphTooLargeError where llama.cpp has no room for so many nodes, whatever else there is.

    Raises BadHyperParameter where it may have, yet the graph is longer than memplan follows.
    """
    if n_nodes > max_nodes:
        raise GraphTooLargeError("GGML_ASSERT(obj_new) failed")
    if n_nodes > MOST_NODES:
        raise BadHyperParameter(f"a graph of more than {MOST_NODES:,} nodes, which memplan does not follow")


class Graph:
    """Nodes (computed, in order) and leafs (given: inputs, weights, caches).

    ``Tensor.uses`` counts how many sources name a tensor; -1 marks one that is not in the graph yet, so a tensor
    belongs to one graph at most (weights and caches are made anew for each). ``expanded`` lists what ``expand`` was
    called for.
    """

    __slots__ = ("expanded", "leafs", "max_nodes", "nodes")

    def __init__(self, max_nodes: int = UNLIMITED) -> None:
        """``max_nodes``: more raise GraphTooLargeError, so that an absurd graph ends early."""
        self.max_nodes = max_nodes
        self.nodes: list[Tensor] = []
        self.leafs: list[Tensor] = []
        self.expanded: list[Tensor] = []

    def check_room(self, count: int) -> None:
        """As ``check_length``, with ``count`` more tensors, before they are made."""
        check_length(self.max_nodes, len(self.nodes) + count)

    def expand(self, tensor: Tensor) -> None:
        """Append ``tensor`` and all it needs that is not there yet, sources first, left to right."""
        self.expanded.append(tensor)
        if tensor.uses >= 0:
            return
        self.check_room(0)
        nodes, leafs = self.nodes, self.leafs
        tensor.uses = 0
        # the depth of a chain is bounded by the graph, not by Python's stack
        stack = [(tensor, iter(tensor.src))]
        while stack:
            node, sources = stack[-1]
            for src in sources:
                if src.uses < 0:
                    src.uses = 1
                    if src.src:
                        stack.append((src, iter(src.src)))
                        break
                    self._leave(src)
                else:
                    src.uses += 1
            else:
                stack.pop()
                if node.op == "NONE":
                    if not node.name:
                        node.name = f"leaf_{len(leafs)}"
                    leafs.append(node)
                else:
                    node.flags |= FLAG_COMPUTE
                    if not node.name:
                        node.name = f"node_{len(nodes)}"
                    nodes.append(node)

    def _leave(self, leaf: Tensor) -> None:
        if leaf.op == "NONE":
            if not leaf.name:
                leaf.name = f"leaf_{len(self.leafs)}"
            self.leafs.append(leaf)
        else:
            leaf.flags |= FLAG_COMPUTE
            if not leaf.name:
                leaf.name = f"node_{len(self.nodes)}"
            self.nodes.append(leaf)
