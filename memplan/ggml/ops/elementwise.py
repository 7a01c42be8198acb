"""Ops whose result has the shape of their first source (ggml/src/ggml.c, v0.5.0)."""

from __future__ import annotations

from memplan.ggml.ops.common import fail, failed, like, view_of
from memplan.ggml.tensor import Tensor, contiguous_above, packed_strides
from memplan.gguf.types import F16, F32, I32


def _binary(op: str, a: Tensor, b: Tensor) -> Tensor:
    ane, bne = a.ne, b.ne
    if ane != bne:
        repeats = 0 in ane if 0 in bne else all(x % y == 0 for x, y in zip(ane, bne, strict=True))
        if not repeats:
            failed("ggml_can_repeat(b, a)")
    return Tensor(op, a.type, ane, packed_strides(a.type, ane), [a, b])


def add(a: Tensor, b: Tensor) -> Tensor:
    """``a + b``, ``b`` repeated as needed (``ggml_add``)."""
    return _binary("ADD", a, b)


def add_inplace(a: Tensor, b: Tensor) -> Tensor:
    """The same where ``a`` lies (``ggml_add_inplace``)."""
    _binary("ADD", a, b)
    return view_of(a, "ADD", a.ne, a.nb, [a, b])


def sub(a: Tensor, b: Tensor) -> Tensor:
    """``a - b`` (``ggml_sub``)."""
    return _binary("SUB", a, b)


def mul(a: Tensor, b: Tensor) -> Tensor:
    """``a * b`` (``ggml_mul``)."""
    return _binary("MUL", a, b)


def div(a: Tensor, b: Tensor) -> Tensor:
    """``a / b`` (``ggml_div``)."""
    return _binary("DIV", a, b)


def dup(a: Tensor) -> Tensor:
    """A copy of ``a`` (``ggml_dup``)."""
    return like("DUP", a, [a])


def scale(a: Tensor) -> Tensor:
    """``a`` times a constant, perhaps plus another (``ggml_scale``, ``ggml_scale_bias``)."""
    if not (a.nb[0] == a.type.type_size and contiguous_above(a, 1)):
        failed("ggml_is_padded_1d(a)")
    return like("SCALE", a, [a])


def scale_inplace(a: Tensor) -> Tensor:
    """The same where ``a`` lies (``ggml_scale_inplace``)."""
    return view_of(a, "SCALE", a.ne, a.nb, [a])


def clamp(a: Tensor) -> Tensor:
    """``a`` held between two limits (``ggml_clamp``)."""
    return like("CLAMP", a, [a])


def clamp_inplace(a: Tensor) -> Tensor:
    """The same where ``a`` lies (``ggml_clamp_inplace``; before v0.4.0, ``ggml_clamp`` itself)."""
    return view_of(a, "CLAMP", a.ne, a.nb, [a])


def fill(a: Tensor) -> Tensor:
    """A tensor like ``a`` of one value (``ggml_fill``)."""
    if not (a.type in (F32, F16) and a.is_contiguous):
        fail("fill", "type or gaps")
    return like("FILL", a, [a])


def sqrt(a: Tensor) -> Tensor:
    """Square roots (``ggml_sqrt``)."""
    return like("SQRT", a, [a])


def sqr(a: Tensor) -> Tensor:
    """Squares (``ggml_sqr``)."""
    return like("SQR", a, [a])


def cumsum(a: Tensor) -> Tensor:
    """Sums of each row so far (``ggml_cumsum``)."""
    if a.type is not F32:
        failed("a->type == GGML_TYPE_F32")
    return like("CUMSUM", a, [a])


def tri(a: Tensor) -> Tensor:
    """A triangle of square matrices, the rest zero (``ggml_tri``)."""
    if not (a.type is F32 and a.is_contiguous and a.ne[0] == a.ne[1]):
        fail("tri", "type, gaps or shape")
    return like("TRI", a, [a])


def add_id(a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    """``a`` plus the row of ``b`` that ``ids`` names, a row an expert used (``ggml_add_id``)."""
    if not (a.ne[0] == b.ne[0] and a.ne[1] == ids.ne[0] and a.ne[2] == ids.ne[1] and ids.type is I32):
        fail("add_id", f"{a.ne} by {b.ne} by {ids.ne}")
    return like("ADD_ID", a, [a, b, ids])


def unary(a: Tensor, kind: str) -> Tensor:
    """A function of one element: SIGMOID, RELU, SOFTPLUS, ... (``ggml_unary``)."""
    if not a.is_contiguous_rows:
        failed("ggml_is_contiguous_rows(a)")
    return like("UNARY", a, [a], kind=kind)


def glu(a: Tensor, b: Tensor | None, kind: str, limit: float = 0.0) -> Tensor:
    """A gated unit: SWIGLU, SWIGLU_CLAMP, ... of two tensors, or of the halves of one's rows (``ggml_glu_impl``).

    ``limit``: of those that have one.
    """
    if not (contiguous_above(a, 1) and (b is None or contiguous_above(b, 1))):
        fail(kind.lower(), "the sources have gaps")
    if b is None:
        ne = (a.ne[0] // 2, *a.ne[1:])
        return Tensor("GLU", a.type, ne, packed_strides(a.type, ne), [a], kind=kind)
    if not (a.ne == b.ne and a.type is b.type):
        failed("a->type == b->type" if a.ne == b.ne else "ggml_are_same_shape(a, b)")
    return like("GLU", a, [a, b], {"limit": limit}, kind)


def norm(a: Tensor) -> Tensor:
    """Rows less their mean, divided by their deviation (``ggml_norm``)."""
    return like("NORM", a, [a])


def rms_norm(a: Tensor) -> Tensor:
    """Rows divided by their root mean square (``ggml_rms_norm``)."""
    return like("RMS_NORM", a, [a])


def l2_norm(a: Tensor) -> Tensor:
    """Rows divided by their length (``ggml_l2_norm``)."""
    return like("L2_NORM", a, [a])


def soft_max(a: Tensor, mask: Tensor | None = None, sinks: Tensor | None = None) -> Tensor:
    """Soft maximum over rows (``ggml_soft_max_ext``, ``ggml_soft_max_add_sinks``)."""
    if not a.is_contiguous:
        failed("ggml_is_contiguous(a)")
    src = [a]
    if mask is not None:
        if not (mask.type in (F16, F32) and mask.is_contiguous):
            fail("soft_max", "mask type or gaps")
        if not (mask.ne[0] == a.ne[0] and mask.ne[1] >= a.ne[1]):
            fail("soft_max", "mask shape")
        if a.ne[2] % mask.ne[2] or a.ne[3] % mask.ne[3]:
            failed("a->ne[2]%mask->ne[2] == 0" if a.ne[2] % mask.ne[2] else "a->ne[3]%mask->ne[3] == 0")
        src.append(mask)
    if sinks is not None:
        if not (a.ne[2] == sinks.ne[0] and sinks.type is F32):
            fail("soft_max", "sinks")
        src.append(sinks)
    return like("SOFT_MAX", a, src, {"mask": mask is not None, "sinks": sinks is not None})
