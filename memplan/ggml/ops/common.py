"""What all op constructors share: results, views, and ggml's assertions (ggml/src/ggml.c, v0.5.0)."""

from __future__ import annotations

from typing import NoReturn

from memplan.ggml.tensor import FLAG_INPUT, Shape, Tensor, new_tensor, packed_strides
from memplan.gguf.types import GGMLType

Params = dict[str, object]


class GGMLAssertError(Exception):
    """An op whose sources ggml would assert against: llama.cpp aborts while it builds the graph."""


def fail(op: str, rule: str) -> NoReturn:
    """Refuse an op's sources by a rule in memplan's words."""
    raise GGMLAssertError(f"{op}: {rule}")


def failed(condition: str) -> NoReturn:
    """With ggml's own words, where one condition alone can be at fault."""
    raise GGMLAssertError(f"GGML_ASSERT({condition}) failed")


def derived(name: str, suffix: str) -> str:
    """The name that ggml makes of a source's (``ggml_format_name``)."""
    return f"{name} ({suffix})"[:63]  # GGML_MAX_NAME


def new(type: GGMLType, *dims: int, name: str = "", flags: int = 0) -> Tensor:
    """A leaf without gaps (``ggml_new_tensor``)."""
    t = new_tensor(type, *dims, name=name)
    t.flags = flags
    return t


def new_input(type: GGMLType, *dims: int, name: str = "") -> Tensor:
    """A leaf that llama.cpp fills before each run (``ggml_set_input``)."""
    return new(type, *dims, name=name, flags=FLAG_INPUT)


def result(op: str, type: GGMLType, ne: Shape, src: list[Tensor], params: Params | None = None) -> Tensor:
    """A result without gaps (``ggml_new_tensor``)."""
    return Tensor(op, type, ne, packed_strides(type, ne), src, params=params)


def like(op: str, a: Tensor, src: list[Tensor], params: Params | None = None, kind: str = "") -> Tensor:
    """A result with the shape and type of ``a`` and no gaps (``ggml_dup_tensor``)."""
    ne = a.ne
    return Tensor(op, a.type, ne, packed_strides(a.type, ne), src, params=params, kind=kind)


def view_of(
    a: Tensor, op: str, ne: Shape, nb: Shape, src: list[Tensor], offset: int = 0, suffix: str = "view"
) -> Tensor:
    """A result that lies in ``a``, ``offset`` bytes from its start (``ggml_view_impl``)."""
    base = a.view_src
    if base is None:
        return Tensor(op, a.type, ne, nb, src, a, offset, name=derived(a.name, suffix))
    return Tensor(op, a.type, ne, nb, src, base, a.view_offs + offset, name=derived(a.name, suffix))
