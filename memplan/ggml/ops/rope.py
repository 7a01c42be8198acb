"""Rotary positions (ggml/src/ggml.c, ggml/include/ggml.h, v0.5.0)."""

from __future__ import annotations

from memplan.ggml.ops.common import Params, failed, like
from memplan.ggml.tensor import Tensor
from memplan.gguf.types import F32, I32

ROPE_NORMAL, ROPE_NEOX, ROPE_MROPE, ROPE_IMROPE = 0, 2, 8, 40
"""Modes (``GGML_ROPE_TYPE_*``); of those with the bit of MROPE each token has four positions, one a section."""


def rope(
    a: Tensor,
    pos: Tensor,
    n_dims: int,
    mode: int,
    offset: int = 0,
    back: bool = False,
    freq_factors: Tensor | None = None,
) -> Tensor:
    """Rotary positions over ``n_dims`` elements from ``offset``.

    Follows ``ggml_rope_ext``, ``ggml_rope_multi`` and ``ggml_rope_set_offset``. ``freq_factors``: one a pair of
    elements, the op's third source.
    """
    if pos.type is not I32:
        failed("b->type == GGML_TYPE_I32")
    sections = mode & ROPE_MROPE
    if pos.ne[0] != (4 * a.ne[2] if sections else a.ne[2]):
        failed("a->ne[2] * 4 == b->ne[0]" if sections else "a->ne[2] == b->ne[0]")
    src = [a, pos]
    if freq_factors is not None:
        if not (freq_factors.type is F32 and freq_factors.ne[0] >= n_dims // 2):
            failed("c->ne[0] >= n_dims / 2" if freq_factors.type is F32 else "c->type == GGML_TYPE_F32")
        src.append(freq_factors)
    params: Params = {"mode": mode, "n_dims": n_dims, "offset": offset, "freq_factors": freq_factors is not None}
    return like("ROPE_BACK" if back else "ROPE", a, src, params)
