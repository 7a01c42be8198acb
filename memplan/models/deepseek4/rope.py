"""Rotary positions on the end of each head, in the two forms that releases have.

Follows ``src/models/deepseek4.cpp`` (``build_attention_impl`` and its neighbours): b10549 for the first form, v0.5.0
for the second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.ggml import ops

if TYPE_CHECKING:
    from memplan.ggml.tensor import Tensor

NORMAL = 0
"""LLAMA_ROPE_TYPE_NORM."""


def rope_and_join(cur: Tensor, pos: Tensor, n_rot: int, back: bool, name: str) -> Tensor:
    """The last ``n_rot`` elements of each head cut off, turned and joined again; ``name`` is for what is turned."""
    n_still = cur.ne[0] - n_rot
    still = ops.view_3d(cur, (n_still, cur.ne[1], cur.ne[2]), cur.nb[1], cur.nb[2])
    turned = ops.view_3d(cur, (n_rot, cur.ne[1], cur.ne[2]), cur.nb[1], cur.nb[2], offset=cur.type.row_size(n_still))
    turned = ops.rope(turned, pos, n_rot, NORMAL, back=back)
    if name:
        turned.name = name
    return ops.concat(still, turned, 0)


def rope_at_offset(cur: Tensor, pos: Tensor, n_rot: int, back: bool) -> Tensor:
    """The last ``n_rot`` elements of each head turned where they are (``ggml_rope_set_offset``)."""
    return ops.rope(cur, pos, n_rot, NORMAL, offset=cur.ne[0] - n_rot, back=back)
