"""The order in which a graph's tensors are computed.

Follows ``ggml_build_forward_expand`` and ``ggml_visit_parents_graph`` (ggml/src/ggml.c, v0.5.0).
"""

from __future__ import annotations

from memplan.ggml.tensor import FLAG_COMPUTE, Tensor


class Graph:
    """Nodes (computed, in order) and leafs (given: inputs, weights, caches).

    ``Tensor.uses`` counts how many sources name a tensor; -1 marks one that is not in the graph yet, so a tensor
    belongs to one graph at most (weights and caches are made anew for each).
    """

    __slots__ = ("leafs", "nodes")

    def __init__(self) -> None:
        self.nodes: list[Tensor] = []
        self.leafs: list[Tensor] = []

    def expand(self, tensor: Tensor) -> None:
        """Append ``tensor`` and all it needs that is not there yet, sources first, left to right."""
        if tensor.uses >= 0:
            return
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
