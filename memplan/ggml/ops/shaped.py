"""Ops whose result has a shape of its own: products, rows, copies, sums, orders (ggml/src/ggml.c, v0.5.0)."""

from __future__ import annotations

from memplan.ggml.ops.common import Params, derived, fail, failed, result
from memplan.ggml.ops.views import view
from memplan.ggml.tensor import Shape, Tensor
from memplan.gguf.types import F32, I32, GGMLType


def mul_mat(a: Tensor, b: Tensor, *, f32: bool = False, hadamard: bool = False) -> Tensor:
    """``b`` times the transpose of ``a``: ne = (a1, b1, b2, b3) (``ggml_mul_mat``).

    ``f32``: computed in f32 (``ggml_mul_mat_set_prec``).  ``hadamard``: ``a`` is a Hadamard matrix
    (``ggml_mul_mat_set_hint``). Both decide nothing but which kernel is taken.
    """
    ane, bne = a.ne, b.ne
    if not (ane[0] == bne[0] and bne[2] % ane[2] == 0 and bne[3] % ane[3] == 0):
        failed("ggml_can_mul_mat(a, b)")
    if not (a.nb[0] <= a.nb[1]):
        failed("!ggml_is_transposed(a)")
    params: Params | None = {"f32": f32, "hadamard": hadamard} if f32 or hadamard else None
    return result("MUL_MAT", F32, (ane[1], bne[1], bne[2], bne[3]), [a, b], params)


def mul_mat_id(a: Tensor, b: Tensor, ids: Tensor, f32_source: bool = False) -> Tensor:
    """One matrix an expert: ne = (rows, experts used, tokens, 1) (``ggml_mul_mat_id``).

    ``f32_source``: source 1 is not to be rounded (``ggml_prec_set_src(.., GGML_PREC_F32, 1)``, since v0.5.0).
    """
    ane, bne, ine = a.ne, b.ne, ids.ne
    if not (a.nb[0] <= a.nb[1]):
        failed("!ggml_is_transposed(as)")
    if not (ids.type is I32 and ane[3] == bne[3] == ine[2] == ine[3] == 1):
        fail("mul_mat_id", "dimensions")
    if not (ine[1] == bne[2] and ane[0] == bne[0] and ine[0] % bne[1] == 0):
        fail("mul_mat_id", f"{ane} by {bne} by {ine}")
    params: Params | None = {"f32_source": True} if f32_source else None
    return result("MUL_MAT_ID", F32, (ane[1], ine[0], bne[2], 1), [a, b, ids], params)


def get_rows(a: Tensor, b: Tensor) -> Tensor:
    """The rows of ``a`` that ``b`` numbers, as f32 (i32 stays i32) (``ggml_get_rows``)."""
    if not (a.ne[2] == b.ne[1] and a.ne[3] == b.ne[2] and b.type is I32):
        fail("get_rows", "row numbers do not match")
    return result("GET_ROWS", I32 if a.type is I32 else F32, (a.ne[0], b.ne[0], b.ne[1], b.ne[2]), [a, b])


def cont(a: Tensor, *dims: int) -> Tensor:
    """A copy without gaps, perhaps in another shape (``ggml_cont``, ``ggml_cont_4d``)."""
    ne: Shape = (*dims, 1, 1, 1)[:4] if dims else a.ne  # type: ignore[assignment]
    if ne[0] * ne[1] * ne[2] * ne[3] != a.nelements:
        failed("ggml_nelements(a) == (ne0*ne1*ne2*ne3)")
    t = result("CONT", a.type, ne, [a])
    t.name = derived(a.name, "cont")
    return t


def cast(a: Tensor, type: GGMLType) -> Tensor:
    """A copy in another type; it is its own second source, as in ggml (``ggml_cast``)."""
    t = result("CPY", type, a.ne, [a])
    t.src.append(t)
    t.name = derived(a.name, "copy")
    return t


def concat(a: Tensor, b: Tensor, dim: int) -> Tensor:
    """``a`` and ``b`` side by side along ``dim`` (``ggml_concat``)."""
    if a.type is not b.type:
        failed("a->type == b->type")
    ne = list(a.ne)
    ne[dim] += b.ne[dim]
    if not (all(i == dim or a.ne[i] == b.ne[i] for i in range(4))):
        failed("a->ne[d] == b->ne[d]")
    return result("CONCAT", a.type, tuple(ne), [a, b], {"dim": dim})  # type: ignore[arg-type]


def repeat_4d(a: Tensor, ne: Shape) -> Tensor:
    """``a`` repeated to ``ne`` (``ggml_repeat_4d``)."""
    if 0 not in a.ne and not all(x % y == 0 for x, y in zip(ne, a.ne, strict=True)):
        failed("can_repeat")
    return result("REPEAT", a.type, ne, [a])


def sum_rows(a: Tensor) -> Tensor:
    """One sum a row (``ggml_sum_rows``)."""
    return result("SUM_ROWS", a.type, (1, *a.ne[1:]), [a])


def sum_all(a: Tensor) -> Tensor:
    """The sum of all elements (``ggml_sum``)."""
    return result("SUM", a.type, (1, 1, 1, 1), [a])


def argsort(a: Tensor) -> Tensor:
    """Row numbers in order of value, i32 (``ggml_argsort``)."""
    return result("ARGSORT", I32, a.ne, [a])


def argmax(a: Tensor) -> Tensor:
    """The number of the largest element of each row, i32 (``ggml_argmax``)."""
    if a.ne[2] != 1 or a.ne[3] != 1:
        failed("ggml_is_matrix(a)")
    return result("ARGMAX", I32, (a.ne[1], 1, 1, 1), [a])


def argsort_top_k(a: Tensor, k: int) -> Tensor:
    """The first ``k`` of a full sort: a view of ``argsort`` (``ggml_argsort_top_k``)."""
    if not (a.ne[0] >= k):
        failed("a->ne[0] >= k")
    s = argsort(a)
    return view(s, (k, *s.ne[1:]), s.nb)


def top_k(a: Tensor, k: int) -> Tensor:
    """The numbers of the ``k`` largest elements a row, i32 (``ggml_top_k``)."""
    if not (a.ne[0] >= k):
        failed("a->ne[0] >= k")
    return result("TOP_K", I32, (k, *a.ne[1:]), [a])


def pad(a: Tensor, *right: int) -> Tensor:
    """``a`` with zeros behind each dimension (``ggml_pad``)."""
    ne: Shape = tuple(n + p for n, p in zip(a.ne, (*right, 0, 0, 0, 0), strict=False))  # type: ignore[assignment]
    return result("PAD", a.type, ne, [a])


def arange(steps: int) -> Tensor:
    """Numbers with equal steps between, made anew at each run: a node without sources (``ggml_arange``)."""
    if steps <= 0:
        failed("stop > start")
    return result("ARANGE", F32, (steps, 1, 1, 1), [])


def pool_2d(a: Tensor, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]) -> Tensor:
    """Windows of the first two dimensions, each as one number (``ggml_pool_2d``)."""
    n0, n1 = ((n + 2 * p - k) // s + 1 for n, k, s, p in zip(a.ne[:2], kernel, stride, padding, strict=True))
    if n0 <= 0 or n1 <= 0:
        failed("ne[0] > 0" if n0 <= 0 else "ne[1] > 0")
    return result("POOL_2D", F32, (n0, n1, *a.ne[2:]), [a])


def diag(a: Tensor) -> Tensor:
    """Rows as the diagonals of square matrices (``ggml_diag``)."""
    if a.ne[1] != 1:
        failed("a->ne[1] == 1")
    return result("DIAG", a.type, (a.ne[0], a.ne[0], a.ne[2], a.ne[3]), [a])


def solve_tri(a: Tensor, b: Tensor) -> Tensor:
    """``x`` of ``a x = b`` for lower triangles ``a``: the shape of ``b`` (``ggml_solve_tri``)."""
    if not (a.type is F32 and b.type is F32 and a.is_contiguous and b.is_contiguous):
        fail("solve_tri", "types or gaps")
    if not (a.ne[0] == a.ne[1] == b.ne[1] and a.ne[2:] == b.ne[2:]):
        fail("solve_tri", f"{a.ne} by {b.ne}")
    return result("SOLVE_TRI", F32, b.ne, [a, b])
