"""A tensor of the graph: shape, strides, type and sources, but no data.

Follows ``struct ggml_tensor`` (ggml/include/ggml.h, v0.5.0) as far as memory planning needs it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memplan.ggml.backend import Buffer
    from memplan.gguf.types import GGMLType

Shape = tuple[int, int, int, int]
"""Four extents (``ne``, elements) or four strides (``nb``, bytes), innermost first."""

FLAG_INPUT = 1
FLAG_OUTPUT = 2
FLAG_COMPUTE = 16

VIEW_OPS = frozenset({"NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE"})
"""Ops that compute nothing (``ggml_is_view_op``); NONE among them as in the scheduler's own test."""


class Tensor:
    """One tensor; mutable, since the scheduler rewires sources as llama.cpp does.

    Attributes:
        name: as llama.cpp's callback gives it, e.g. ``lid_kq-2``.
        op: ggml's op without ``GGML_OP_``, e.g. ``MUL_MAT``; unary and GLU ops carry their kind in ``kind``.
        kind: the unary or GLU operator (``SILU``, ``SWIGLU``, ...), else "".
        type: element type.
        ne: extents in elements.  nb: strides in bytes.
        src: the sources that are set, in order (ggml's gaps are left out; ``params`` says which of the optional
            ones are there).
        view_src: the tensor that owns the data, never itself a view.  view_offs: bytes into it.
        flags: FLAG_INPUT, FLAG_OUTPUT, FLAG_COMPUTE.
        params: the op's parameters that decide placement (see ``memplan.ggml.ops``).
        buffer: where a weight or cache already lies; None for what the graph allocator places.
        uses: how many sources of the whole graph name this tensor (``use_counts``), set by ``Graph.expand``.
        backend: index of the backend the scheduler gave it, -1 for none yet.
        n_children, n_views, owned, size, place: the allocator's notes (``struct hash_node`` of ggml-alloc.c); ``place``
            is (backend, chunk, offset).
    """

    # set by the allocator alone, so not on every new tensor
    owned: bool
    n_children: int
    n_views: int
    size: int
    place: tuple[int, int, int]

    __slots__ = (
        "backend",
        "buffer",
        "flags",
        "kind",
        "n_children",
        "n_views",
        "name",
        "nb",
        "ne",
        "op",
        "owned",
        "params",
        "place",
        "size",
        "src",
        "type",
        "uses",
        "view_offs",
        "view_src",
    )

    def __init__(
        self,
        op: str,
        type: GGMLType,
        ne: Shape,
        nb: Shape,
        src: list[Tensor],
        view_src: Tensor | None = None,
        view_offs: int = 0,
        kind: str = "",
        params: dict[str, object] | None = None,
        name: str = "",
    ) -> None:
        self.op = op
        self.type = type
        self.ne = ne
        self.nb = nb
        self.src = src
        self.view_src = view_src
        self.view_offs = view_offs
        self.kind = kind
        self.params = params
        self.name = name
        self.flags = 0
        self.buffer: Buffer | None = None
        self.backend = -1
        self.uses = -1

    def __repr__(self) -> str:
        return f"<{self.op} {self.name!r} {self.type.name} {list(self.ne)}>"

    @property
    def nelements(self) -> int:
        """Number of elements (``ggml_nelements``)."""
        a, b, c, d = self.ne
        return a * b * c * d

    @property
    def nrows(self) -> int:
        """Number of rows (``ggml_nrows``)."""
        return self.ne[1] * self.ne[2] * self.ne[3]

    @property
    def nbytes(self) -> int:
        """Bytes from the first to the last element, strides counted (``ggml_nbytes``)."""
        ne, nb = self.ne, self.nb
        if 0 in ne:
            return 0
        tail = (ne[1] - 1) * nb[1] + (ne[2] - 1) * nb[2] + (ne[3] - 1) * nb[3]
        if self.type.block_size == 1:
            return self.type.type_size + (ne[0] - 1) * nb[0] + tail
        return ne[0] * nb[0] // self.type.block_size + tail

    @property
    def is_contiguous(self) -> bool:
        """No gaps and no permutation (``ggml_is_contiguous``)."""
        return self.nb == packed_strides(self.type, self.ne) or contiguous_above(self, 0)

    @property
    def is_contiguous_rows(self) -> bool:
        """Elements of a row lie side by side (``ggml_is_contiguous_rows``)."""
        return self.ne[0] == self.type.block_size or self.nb[0] == self.type.type_size

    @property
    def is_transposed(self) -> bool:
        """The first two dimensions are swapped (``ggml_is_transposed``)."""
        return self.nb[0] > self.nb[1]


def contiguous_above(t: Tensor, n: int) -> bool:
    """Whether dimensions above ``n`` have no gaps (``ggml_is_contiguous_n``)."""
    ne, nb = t.ne, t.nb
    next_nb = t.type.type_size
    if ne[0] != t.type.block_size and nb[0] != next_nb:
        return False
    next_nb *= ne[0] // t.type.block_size
    for i in (1, 2, 3):
        if i > n:
            if ne[i] != 1 and nb[i] != next_nb:
                return False
            next_nb *= ne[i]
        else:
            next_nb = ne[i] * nb[i]
    return True


@lru_cache(maxsize=8192)
def packed_strides(type: GGMLType, ne: Shape) -> Shape:
    """Strides in bytes of a tensor without gaps (``ggml_new_tensor_impl``); one object for all that are alike."""
    nb0 = type.type_size
    nb1 = nb0 * (ne[0] // type.block_size)
    nb2 = nb1 * ne[1]
    return (nb0, nb1, nb2, nb2 * ne[2])


def new_tensor(type: GGMLType, *dims: int, name: str = "") -> Tensor:
    """A leaf of up to four dimensions, without gaps."""
    ne: Shape = (*dims, *(1,) * (4 - len(dims)))  # type: ignore[assignment]
    return Tensor("NONE", type, ne, packed_strides(type, ne), [], name=name)


def same_layout(t: Tensor, name: str = "") -> Tensor:
    """A leaf laid out like ``t``, as copies of splits' inputs are (``ggml_dup_tensor_layout``, ggml-backend.cpp)."""
    return Tensor("NONE", t.type, t.ne, t.nb, [], name=name)
