"""Ops whose result is a window into another tensor, or is written into one (ggml/src/ggml.c, v0.5.0)."""

from __future__ import annotations

from memplan.ggml.ops.common import derived, fail, failed, view_of
from memplan.ggml.tensor import Shape, Tensor, packed_strides
from memplan.gguf.types import F16, F32, I32, I64


def view(a: Tensor, ne: Shape, nb: Shape, offset: int = 0) -> Tensor:
    """A window into ``a``; ``offset`` in bytes (``ggml_view_4d``)."""
    return view_of(a, "VIEW", ne, nb, [a], offset)


def view_1d(a: Tensor, ne0: int, offset: int) -> Tensor:
    """``ne0`` elements from ``offset`` bytes on (``ggml_view_1d``)."""
    ne = (ne0, 1, 1, 1)
    return view_of(a, "VIEW", ne, packed_strides(a.type, ne), [a], offset)


def view_2d(a: Tensor, ne0: int, ne1: int, nb1: int, offset: int) -> Tensor:
    """A matrix with rows ``nb1`` bytes apart (``ggml_view_2d``)."""
    nb2 = nb1 * ne1
    return view_of(a, "VIEW", (ne0, ne1, 1, 1), (a.type.type_size, nb1, nb2, nb2), [a], offset)


def view_3d(a: Tensor, ne: tuple[int, int, int], nb1: int, nb2: int, offset: int = 0) -> Tensor:
    """A window of three dimensions, with rows ``nb1`` and matrices ``nb2`` bytes apart (``ggml_view_3d``)."""
    return view_of(a, "VIEW", (*ne, 1), (a.type.type_size, nb1, nb2, nb2 * ne[2]), [a], offset)


def view_4d(a: Tensor, ne: Shape, nb1: int, nb2: int, nb3: int, offset: int = 0) -> Tensor:
    """A window of four dimensions, its elements side by side (``ggml_view_4d``)."""
    return view_of(a, "VIEW", ne, (a.type.type_size, nb1, nb2, nb3), [a], offset)


def reshape(a: Tensor, *dims: int) -> Tensor:
    """The same elements in another shape (``ggml_reshape_4d``)."""
    ne: Shape = (*dims, 1, 1, 1)[:4]  # type: ignore[assignment]
    if not a.is_contiguous:
        failed("ggml_is_contiguous(a)")
    if ne[0] * ne[1] * ne[2] * ne[3] != a.nelements:
        product = "*".join(f"ne{i}" for i in range(len(dims)))
        failed(f"ggml_nelements(a) == {product}")
    return view_of(a, "RESHAPE", ne, packed_strides(a.type, ne), [a], suffix="reshaped")


def permute(a: Tensor, axis0: int, axis1: int, axis2: int, axis3: int) -> Tensor:
    """Dimension ``i`` of ``a`` becomes dimension ``axis_i`` (``ggml_permute``)."""
    ne, nb = [0] * 4, [0] * 4
    for i, axis in enumerate((axis0, axis1, axis2, axis3)):
        ne[axis], nb[axis] = a.ne[i], a.nb[i]
    return view_of(a, "PERMUTE", tuple(ne), tuple(nb), [a], suffix="permuted")  # type: ignore[arg-type]


def transpose(a: Tensor) -> Tensor:
    """The first two dimensions swapped (``ggml_transpose``)."""
    ne, nb = a.ne, a.nb
    return view_of(a, "TRANSPOSE", (ne[1], ne[0], ne[2], ne[3]), (nb[1], nb[0], nb[2], nb[3]), [a], suffix="transposed")


def set_rows(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Rows of ``b`` written into ``a`` at the row numbers ``c``; the result is ``a`` (``ggml_set_rows``)."""
    ane, bne, cne = a.ne, b.ne, c.ne
    if not (ane[0] == bne[0] and ane[2] == bne[2] and ane[3] == bne[3]):
        fail("set_rows", "shapes differ")
    if not (bne[1] == cne[0] and bne[2] % cne[1] == 0 and bne[3] % cne[2] == 0):
        fail("set_rows", "row numbers do not match")
    if not (b.type in (F32, F16) and c.type in (I64, I32)):
        fail("set_rows", "types")
    if not (a.is_contiguous_rows and b.is_contiguous_rows):
        fail("set_rows", "rows with gaps")
    return view_of(a, "SET_ROWS", ane, a.nb, [b, c, a])


def set_inplace(a: Tensor, b: Tensor) -> Tensor:
    """``b`` written somewhere into ``a``; the result is ``a`` (``ggml_set_inplace``)."""
    if a.nelements < b.nelements:
        failed("ggml_nelements(a) >= ggml_nelements(b)")
    return view_of(a, "SET", a.ne, a.nb, [a, b])


def cpy(a: Tensor, b: Tensor) -> Tensor:
    """``a`` written into ``b``; the result is ``b`` (``ggml_cpy``)."""
    if a.nelements != b.nelements:
        failed("ggml_nelements(a) == ggml_nelements(b)")
    t = view_of(b, "CPY", b.ne, b.nb, [a, b])
    t.name = derived(b.name, f"copy of {a.name}") if b.name else derived(a.name, "copy")
    return t
