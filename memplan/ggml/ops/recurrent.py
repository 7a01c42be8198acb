"""Recurrent layers: short convolutions, state spaces, gated delta nets (ggml/src/ggml.c, v0.5.0)."""

from __future__ import annotations

from memplan.ggml.ops.common import Params, fail, failed, result
from memplan.ggml.tensor import Tensor
from memplan.gguf.types import F32, I32


def ssm_conv(x: Tensor, kernel: Tensor) -> Tensor:
    """A convolution along tokens: ne = (channels, tokens, sequences) (``ggml_ssm_conv``).

    ``x``: (kernel - 1 + tokens, channels, sequences).
    """
    if x.ne[3] != 1 or kernel.ne[2] != 1 or kernel.ne[3] != 1:
        failed("ggml_is_3d(sx)" if x.ne[3] != 1 else "ggml_is_matrix(c)")
    tokens = x.ne[0] - kernel.ne[0] + 1
    if x.ne[1] != kernel.ne[1] or tokens < 0:
        failed("n_t >= 0" if tokens < 0 else "sx->ne[1] == d_inner")
    return result("SSM_CONV", F32, (kernel.ne[1], tokens, x.ne[2], 1), [x, kernel])


def ssm_scan(
    state: Tensor, x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, ids: Tensor, snapshots: int = 1
) -> Tensor:
    """A selective scan; the result is its output and then ``snapshots`` states, in one row (``ggml_ssm_scan``).

    ``state``: (d_state, head size, heads, cells). ``x``: (head size, heads, tokens, sequences). ``dt``: (heads, tokens,
    sequences). ``a``: (1 or d_state, heads). ``b``, ``c``: (d_state, groups, tokens, sequences). ``ids``: the
    sequences' cells. Before v0.4.0 there was one state only.
    """
    if not (state.is_contiguous and dt.is_contiguous and a.is_contiguous):
        fail("ssm_scan", "the state, dt or A has gaps")
    for t in (x, b, c):
        if t.nb[0] != t.type.type_size or t.nb[1] != t.ne[0] * t.nb[0]:
            fail("ssm_scan", "x, B or C has gaps")
    d_state, (head, heads, tokens, seqs) = state.ne[0], x.ne
    ok = dt.ne == (heads, tokens, seqs, 1) and state.ne[1:3] == (head, heads)
    ok = ok and b.ne == c.ne and (b.ne[0], b.ne[2], b.ne[3]) == (d_state, tokens, seqs)
    ok = ok and ids.type is I32 and ids.ne == (seqs, 1, 1, 1) and a.ne[1:] == (heads, 1, 1)
    ok = ok and (a.ne[0] == 1 or (a.ne[0] == d_state and snapshots == 1)) and snapshots >= 1
    if not ok:
        fail("ssm_scan", "shapes or types")
    size = x.nelements + snapshots * d_state * head * heads * seqs
    params: Params = {"snapshots": snapshots}
    return result("SSM_SCAN", F32, (size, 1, 1, 1), [state, x, dt, a, b, c, ids], params)


def gated_delta_net(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, snapshots: int = 1
) -> Tensor:
    """A gated delta rule; the result is its output and then ``snapshots`` states, in rows of all heads of ``v``.

    ``v``: (head size, heads, tokens, sequences). ``g``: the same, or 1 in place of the head size. ``beta``: (1, heads,
    ...). ``state``: (head size, head size, heads, sequences). Follows ``ggml_gated_delta_net``.
    """
    if not all(t.is_contiguous_rows for t in (q, k, v)):
        fail("gated_delta_net", "q, k or v has gaps in its rows")
    if not all(t.is_contiguous for t in (g, beta, state)):
        fail("gated_delta_net", "g, beta or the state has gaps")
    if not all(t.type is F32 for t in (q, k, v, g, beta, state)):
        fail("gated_delta_net", "types")
    head, heads, tokens, seqs = v.ne
    ok = g.ne[0] in (1, head) and beta.ne[0] == 1 and state.ne == (head, head, heads, seqs) and snapshots >= 1
    if not ok:
        fail("gated_delta_net", "shapes")
    rows = tokens * seqs + snapshots * head * seqs
    return result("GATED_DELTA_NET", F32, (head * heads, rows, 1, 1), [q, k, v, g, beta, state])
