"""What backends ask before one kernel computes several nodes (ggml/src/ggml.c, v0.5.0)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from memplan.ggml.tensor import FLAG_COMPUTE, FLAG_OUTPUT

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor


def can_fuse_subgraph(group: Sequence[Tensor], outputs: Collection[Tensor]) -> bool:
    """Whether only ``outputs`` of a group are needed elsewhere (``ggml_can_fuse_subgraph_ext``)."""
    inside = Counter(s for node in group for s in node.src)
    for node in group:
        if not node.flags & FLAG_COMPUTE:
            return False
        if node in outputs:
            continue
        if node.flags & FLAG_OUTPUT or inside[node] != node.uses:
            return False
        base = node.view_src
        if base is not None and base not in group and not (base.buffer is not None and base.buffer.weights):
            return False
    return True
