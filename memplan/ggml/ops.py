"""ggml's op constructors: what shape, strides and type an op's result has, and what ggml asserts of its sources.

Follows the functions of the same name in ggml/src/ggml.c (v0.5.0). Names that ggml itself derives
(``... (view)``, ``... (cont)``) are kept.
"""

from __future__ import annotations

from typing import NoReturn

from memplan.ggml.tensor import FLAG_INPUT, Shape, Tensor, contiguous_above, new_tensor, packed_strides
from memplan.gguf.types import F16, F32, I32, I64, GGMLType

Params = dict[str, object]


class GGMLAssertError(Exception):
    """An op whose sources ggml would assert against: llama.cpp aborts while it builds the graph."""


def _fail(op: str, rule: str) -> NoReturn:
    raise GGMLAssertError(f"{op}: {rule}")


def _failed(condition: str) -> NoReturn:
    """With ggml's own words, where one condition alone can be at fault."""
    raise GGMLAssertError(f"GGML_ASSERT({condition}) failed")


def _derived(name: str, suffix: str) -> str:
    return f"{name} ({suffix})"[:63]  # GGML_MAX_NAME


def new(type: GGMLType, *dims: int, name: str = "", flags: int = 0) -> Tensor:
    """A leaf without gaps (``ggml_new_tensor``)."""
    t = new_tensor(type, *dims, name=name)
    t.flags = flags
    return t


def new_input(type: GGMLType, *dims: int, name: str = "") -> Tensor:
    """A leaf that llama.cpp fills before each run (``ggml_set_input``)."""
    return new(type, *dims, name=name, flags=FLAG_INPUT)


def _result(op: str, type: GGMLType, ne: Shape, src: list[Tensor], params: Params | None = None) -> Tensor:
    return Tensor(op, type, ne, packed_strides(type, ne), src, params=params)


def _like(op: str, a: Tensor, src: list[Tensor], params: Params | None = None, kind: str = "") -> Tensor:
    """A result with the shape and type of ``a`` and no gaps (``ggml_dup_tensor``)."""
    ne = a.ne
    return Tensor(op, a.type, ne, packed_strides(a.type, ne), src, params=params, kind=kind)


def _view_of(
    a: Tensor, op: str, ne: Shape, nb: Shape, src: list[Tensor], offset: int = 0, suffix: str = "view"
) -> Tensor:
    base = a.view_src
    if base is None:
        return Tensor(op, a.type, ne, nb, src, a, offset, name=_derived(a.name, suffix))
    return Tensor(op, a.type, ne, nb, src, base, a.view_offs + offset, name=_derived(a.name, suffix))


# --- views: no data of their own -------------------------------------------------------------------------------------


def view(a: Tensor, ne: Shape, nb: Shape, offset: int = 0) -> Tensor:
    """A window into ``a``; ``offset`` in bytes (``ggml_view_4d``)."""
    return _view_of(a, "VIEW", ne, nb, [a], offset)


def view_1d(a: Tensor, ne0: int, offset: int) -> Tensor:
    """``ne0`` elements from ``offset`` bytes on (``ggml_view_1d``)."""
    ne = (ne0, 1, 1, 1)
    return _view_of(a, "VIEW", ne, packed_strides(a.type, ne), [a], offset)


def view_2d(a: Tensor, ne0: int, ne1: int, nb1: int, offset: int) -> Tensor:
    """A matrix with rows ``nb1`` bytes apart (``ggml_view_2d``)."""
    nb2 = nb1 * ne1
    return _view_of(a, "VIEW", (ne0, ne1, 1, 1), (a.type.type_size, nb1, nb2, nb2), [a], offset)


def view_3d(a: Tensor, ne: tuple[int, int, int], nb1: int, nb2: int, offset: int = 0) -> Tensor:
    """A window of three dimensions, with rows ``nb1`` and matrices ``nb2`` bytes apart (``ggml_view_3d``)."""
    return _view_of(a, "VIEW", (*ne, 1), (a.type.type_size, nb1, nb2, nb2 * ne[2]), [a], offset)


def reshape(a: Tensor, *dims: int) -> Tensor:
    """The same elements in another shape (``ggml_reshape_4d``)."""
    ne: Shape = (*dims, 1, 1, 1)[:4]  # type: ignore[assignment]
    if not a.is_contiguous:
        _failed("ggml_is_contiguous(a)")
    if ne[0] * ne[1] * ne[2] * ne[3] != a.nelements:
        product = "*".join(f"ne{i}" for i in range(len(dims)))
        _failed(f"ggml_nelements(a) == {product}")
    return _view_of(a, "RESHAPE", ne, packed_strides(a.type, ne), [a], suffix="reshaped")


def permute(a: Tensor, axis0: int, axis1: int, axis2: int, axis3: int) -> Tensor:
    """Dimension ``i`` of ``a`` becomes dimension ``axis_i`` (``ggml_permute``)."""
    ne, nb = [0] * 4, [0] * 4
    for i, axis in enumerate((axis0, axis1, axis2, axis3)):
        ne[axis], nb[axis] = a.ne[i], a.nb[i]
    return _view_of(a, "PERMUTE", tuple(ne), tuple(nb), [a], suffix="permuted")  # type: ignore[arg-type]


def transpose(a: Tensor) -> Tensor:
    """The first two dimensions swapped (``ggml_transpose``)."""
    ne, nb = a.ne, a.nb
    return _view_of(
        a, "TRANSPOSE", (ne[1], ne[0], ne[2], ne[3]), (nb[1], nb[0], nb[2], nb[3]), [a], suffix="transposed"
    )


def set_rows(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Rows of ``b`` written into ``a`` at the row numbers ``c``; the result is ``a`` (``ggml_set_rows``)."""
    ane, bne, cne = a.ne, b.ne, c.ne
    if not (ane[0] == bne[0] and ane[2] == bne[2] and ane[3] == bne[3]):
        _fail("set_rows", "shapes differ")
    if not (bne[1] == cne[0] and bne[2] % cne[1] == 0 and bne[3] % cne[2] == 0):
        _fail("set_rows", "row numbers do not match")
    if not (b.type in (F32, F16) and c.type in (I64, I32)):
        _fail("set_rows", "types")
    if not (a.is_contiguous_rows and b.is_contiguous_rows):
        _fail("set_rows", "rows with gaps")
    return _view_of(a, "SET_ROWS", ane, a.nb, [b, c, a])


# --- elementwise ------------------------------------------------------------------------------------------------------


def _binary(op: str, a: Tensor, b: Tensor) -> Tensor:
    ane, bne = a.ne, b.ne
    if ane != bne:
        repeats = all(y and x % y == 0 for x, y in zip(ane, bne, strict=True))
        if not repeats:
            _failed("ggml_can_repeat(b, a)")
    return Tensor(op, a.type, ane, packed_strides(a.type, ane), [a, b])


def add(a: Tensor, b: Tensor) -> Tensor:
    """``a + b``, ``b`` repeated as needed (``ggml_add``)."""
    return _binary("ADD", a, b)


def sub(a: Tensor, b: Tensor) -> Tensor:
    """``a - b`` (``ggml_sub``)."""
    return _binary("SUB", a, b)


def mul(a: Tensor, b: Tensor) -> Tensor:
    """``a * b`` (``ggml_mul``)."""
    return _binary("MUL", a, b)


def div(a: Tensor, b: Tensor) -> Tensor:
    """``a / b`` (``ggml_div``)."""
    return _binary("DIV", a, b)


def scale(a: Tensor) -> Tensor:
    """``a`` times a constant, perhaps plus another (``ggml_scale``, ``ggml_scale_bias``)."""
    if not (a.nb[0] == a.type.type_size and contiguous_above(a, 1)):
        _failed("ggml_is_padded_1d(a)")
    return _like("SCALE", a, [a])


def clamp(a: Tensor) -> Tensor:
    """``a`` held between two limits (``ggml_clamp``)."""
    return _like("CLAMP", a, [a])


def clamp_inplace(a: Tensor) -> Tensor:
    """The same where ``a`` lies (``ggml_clamp_inplace``; before v0.4.0, ``ggml_clamp`` itself)."""
    return _view_of(a, "CLAMP", a.ne, a.nb, [a])


def fill(a: Tensor) -> Tensor:
    """A tensor like ``a`` of one value (``ggml_fill``)."""
    if not (a.type in (F32, F16) and a.is_contiguous):
        _fail("fill", "type or gaps")
    return _like("FILL", a, [a])


def sqrt(a: Tensor) -> Tensor:
    """Square roots (``ggml_sqrt``)."""
    return _like("SQRT", a, [a])


def unary(a: Tensor, kind: str) -> Tensor:
    """A function of one element: SIGMOID, RELU, SOFTPLUS, ... (``ggml_unary``)."""
    if not a.is_contiguous_rows:
        _failed("ggml_is_contiguous_rows(a)")
    return _like("UNARY", a, [a], kind=kind)


def glu(a: Tensor, b: Tensor, kind: str) -> Tensor:
    """A gated unit of two tensors: SWIGLU, SWIGLU_CLAMP, ... (``ggml_glu_split``)."""
    if not (contiguous_above(a, 1) and contiguous_above(b, 1)):
        _fail(kind.lower(), "the sources have gaps")
    if not (a.ne == b.ne and a.type is b.type):
        _failed("a->type == b->type" if a.ne == b.ne else "ggml_are_same_shape(a, b)")
    return _like("GLU", a, [a, b], kind=kind)


def rms_norm(a: Tensor) -> Tensor:
    """Rows divided by their root mean square (``ggml_rms_norm``)."""
    return _like("RMS_NORM", a, [a])


def soft_max(a: Tensor, mask: Tensor | None = None, sinks: Tensor | None = None) -> Tensor:
    """Soft maximum over rows (``ggml_soft_max_ext``, ``ggml_soft_max_add_sinks``)."""
    if not a.is_contiguous:
        _failed("ggml_is_contiguous(a)")
    src = [a]
    if mask is not None:
        if not (mask.type in (F16, F32) and mask.is_contiguous):
            _fail("soft_max", "mask type or gaps")
        if not (mask.ne[0] == a.ne[0] and mask.ne[1] >= a.ne[1]):
            _fail("soft_max", "mask shape")
        src.append(mask)
    if sinks is not None:
        src.append(sinks)
    return _like("SOFT_MAX", a, src, {"mask": mask is not None, "sinks": sinks is not None})


def rope(a: Tensor, pos: Tensor, n_dims: int, mode: int, offset: int = 0, back: bool = False) -> Tensor:
    """Rotary positions over ``n_dims`` elements from ``offset`` (``ggml_rope_ext``, ``ggml_rope_set_offset``)."""
    if not (pos.type is I32 and a.ne[2] == pos.ne[0]):
        _failed("a->ne[2] == b->ne[0]" if pos.type is I32 else "b->type == GGML_TYPE_I32")
    params: Params = {"mode": mode, "n_dims": n_dims, "offset": offset, "freq_factors": False}
    return _like("ROPE_BACK" if back else "ROPE", a, [a, pos], params)


# --- other shapes -----------------------------------------------------------------------------------------------------


def mul_mat(a: Tensor, b: Tensor) -> Tensor:
    """``b`` times the transpose of ``a``: ne = (a1, b1, b2, b3) (``ggml_mul_mat``)."""
    ane, bne = a.ne, b.ne
    if not (ane[0] == bne[0] and bne[2] % ane[2] == 0 and bne[3] % ane[3] == 0):
        _failed("ggml_can_mul_mat(a, b)")
    if not (a.nb[0] <= a.nb[1]):
        _failed("!ggml_is_transposed(a)")
    return _result("MUL_MAT", F32, (ane[1], bne[1], bne[2], bne[3]), [a, b])


def mul_mat_id(a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
    """One matrix an expert: ne = (rows, experts used, tokens, 1) (``ggml_mul_mat_id``)."""
    ane, bne, ine = a.ne, b.ne, ids.ne
    if not (a.nb[0] <= a.nb[1]):
        _failed("!ggml_is_transposed(as)")
    if not (ids.type is I32 and ane[3] == 1 and bne[3] == 1):
        _fail("mul_mat_id", "dimensions")
    if not (ine[1] == bne[2] and ane[0] == bne[0] and ine[0] % bne[1] == 0):
        _fail("mul_mat_id", f"{ane} by {bne} by {ine}")
    return _result("MUL_MAT_ID", F32, (ane[1], ine[0], bne[2], 1), [a, b, ids])


def get_rows(a: Tensor, b: Tensor) -> Tensor:
    """The rows of ``a`` that ``b`` numbers, as f32 (i32 stays i32) (``ggml_get_rows``)."""
    if not (a.ne[2] == b.ne[1] and a.ne[3] == b.ne[2] and b.type is I32):
        _fail("get_rows", "row numbers do not match")
    return _result("GET_ROWS", I32 if a.type is I32 else F32, (a.ne[0], b.ne[0], b.ne[1], b.ne[2]), [a, b])


def cont(a: Tensor, *dims: int) -> Tensor:
    """A copy without gaps, perhaps in another shape (``ggml_cont``, ``ggml_cont_4d``)."""
    ne: Shape = (*dims, 1, 1, 1)[:4] if dims else a.ne  # type: ignore[assignment]
    if ne[0] * ne[1] * ne[2] * ne[3] != a.nelements:
        _failed("ggml_nelements(a) == (ne0*ne1*ne2*ne3)")
    t = _result("CONT", a.type, ne, [a])
    t.name = _derived(a.name, "cont")
    return t


def cast(a: Tensor, type: GGMLType) -> Tensor:
    """A copy in another type; it is its own second source, as in ggml (``ggml_cast``)."""
    t = _result("CPY", type, a.ne, [a])
    t.src.append(t)
    t.name = _derived(a.name, "copy")
    return t


def concat(a: Tensor, b: Tensor, dim: int) -> Tensor:
    """``a`` and ``b`` side by side along ``dim`` (``ggml_concat``)."""
    if a.type is not b.type:
        _failed("a->type == b->type")
    ne = list(a.ne)
    ne[dim] += b.ne[dim]
    if not (all(i == dim or a.ne[i] == b.ne[i] for i in range(4))):
        _failed("a->ne[d] == b->ne[d]")
    return _result("CONCAT", a.type, tuple(ne), [a, b], {"dim": dim})  # type: ignore[arg-type]


def repeat_4d(a: Tensor, ne: Shape) -> Tensor:
    """``a`` repeated to ``ne`` (``ggml_repeat_4d``)."""
    if not (all(x % y == 0 for x, y in zip(ne, a.ne, strict=True))):
        _failed("can_repeat")
    return _result("REPEAT", a.type, ne, [a])


def sum_rows(a: Tensor) -> Tensor:
    """One sum a row (``ggml_sum_rows``)."""
    return _result("SUM_ROWS", a.type, (1, *a.ne[1:]), [a])


def sum_all(a: Tensor) -> Tensor:
    """The sum of all elements (``ggml_sum``)."""
    return _result("SUM", a.type, (1, 1, 1, 1), [a])


def argsort(a: Tensor) -> Tensor:
    """Row numbers in order of value, i32 (``ggml_argsort``)."""
    return _result("ARGSORT", I32, a.ne, [a])


def argsort_top_k(a: Tensor, k: int) -> Tensor:
    """The first ``k`` of a full sort: a view of ``argsort`` (``ggml_argsort_top_k``)."""
    if not (a.ne[0] >= k):
        _failed("a->ne[0] >= k")
    s = argsort(a)
    return view(s, (k, *s.ne[1:]), s.nb)


def top_k(a: Tensor, k: int) -> Tensor:
    """The numbers of the ``k`` largest elements a row, i32 (``ggml_top_k``)."""
    if not (a.ne[0] >= k):
        _failed("a->ne[0] >= k")
    return _result("TOP_K", I32, (k, *a.ne[1:]), [a])


def flash_attn_ext(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sinks: Tensor | None, n_kv_max: int) -> Tensor:
    """Attention in one op: ne = (head size, heads, tokens, streams) (``ggml_flash_attn_ext``)."""
    if not (k.ne[0] == q.ne[0] and q.ne[2] % k.ne[2] == 0 and q.ne[3] % k.ne[3] == 0):
        _failed("ggml_can_mul_mat(k, q)")
    if not (q.ne[3] == k.ne[3] == v.ne[3]):
        _fail("flash_attn_ext", "streams differ")
    src = [q, k, v]
    if mask is not None:
        if not (mask.type is F16 and mask.is_contiguous):
            _fail("flash_attn_ext", "mask type or gaps")
        if not (q.ne[2] % mask.ne[2] == 0 and q.ne[3] % mask.ne[3] == 0):
            _fail("flash_attn_ext", "mask shape")
        src.append(mask)
    if sinks is not None:
        if not (q.ne[2] == sinks.ne[0] and sinks.type is F32):
            _fail("flash_attn_ext", "sinks")
        src.append(sinks)
    params: Params = {
        "mask": mask is not None,
        "sinks": sinks is not None,
        "max_bias": 0.0,
        "logit_softcap": 0.0,
        "n_kv_max": n_kv_max,
    }
    return _result("FLASH_ATTN_EXT", F32, (v.ne[0], q.ne[2], q.ne[1], q.ne[3]), src, params)


# --- DeepSeek-V4's own ------------------------------------------------------------------------------------------------


def lightning_indexer(q: Tensor, k: Tensor, weights: Tensor, mask: Tensor) -> Tensor:
    """Masked indexer scores: ne = (keys, tokens, 1, streams) (``ggml_lightning_indexer``)."""
    ok = q.type is F32 and weights.type is F32 and mask.type is F16 and q.ne[0] == k.ne[0] and mask.ne[0] == k.ne[2]
    ok = ok and q.ne[1] == weights.ne[0] and k.ne[1] == 1 and mask.ne[1] == q.ne[2] == weights.ne[1]
    ok = ok and q.ne[3] == k.ne[3] == weights.ne[3] and weights.ne[3] % mask.ne[3] == 0
    if not ok:
        _fail("lightning_indexer", "shapes or types")
    return _result("LIGHTNING_INDEXER", F32, (k.ne[2], q.ne[2], 1, q.ne[3]), [q, k, weights, mask])


def lightning_indexer_unmasked(q: Tensor, k: Tensor, weights: Tensor) -> Tensor:
    """Indexer scores before the mask: ne = (keys, tokens, 1, streams), as the fork lid-cuda has them."""
    ok = q.type is F32 and weights.type is F32 and q.ne[0] == k.ne[0] and k.ne[1] == 1
    ok = ok and q.ne[1] == weights.ne[0] and q.ne[2] == weights.ne[1] and q.ne[3] == k.ne[3] == weights.ne[3]
    if not ok:
        _fail("lightning_indexer", "shapes or types")
    return _result("LIGHTNING_INDEXER", F32, (k.ne[2], q.ne[2], 1, q.ne[3]), [q, k, weights])


def dsv4_hc_comb(mixes: Tensor, scale: Tensor, base: Tensor, hc: int) -> Tensor:
    """Mixing matrices of the hyper-connections: ne = (hc, hc, tokens) (``ggml_dsv4_hc_comb``)."""
    if not (hc == 4 and mixes.ne[0] == (2 + hc) * hc == base.ne[0] and scale.ne[0] >= 3):
        _fail("dsv4_hc_comb", "shapes")
    return _result("DSV4_HC_COMB", F32, (hc, hc, mixes.ne[1], 1), [mixes, scale, base])


def dsv4_hc_pre(x: Tensor, weights: Tensor) -> Tensor:
    """Streams summed with weights: ne = (n_embd, tokens) (``ggml_dsv4_hc_pre``)."""
    if not (weights.ne[0] == x.ne[1] and weights.ne[1] == x.ne[2]):
        _fail("dsv4_hc_pre", "shapes")
    return _result("DSV4_HC_PRE", F32, (x.ne[0], x.ne[2], 1, 1), [x, weights])


def dsv4_hc_post(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """Streams after a block: ne = (n_embd, hc, tokens) (``ggml_dsv4_hc_post``)."""
    hc = residual.ne[1]
    if not (residual.ne[0] == x.ne[0] and residual.ne[2] == x.ne[1] and post.ne[0] == hc):
        _fail("dsv4_hc_post", "shapes")
    return _result("DSV4_HC_POST", F32, (x.ne[0], hc, x.ne[1], 1), [x, residual, post, comb])
