"""What to call a tensor of the graph: its layer, and the name it shares with those of other layers."""

from __future__ import annotations

import re

from memplan.ggml.tensor import Tensor

_BLOCK = re.compile(r"\bblk\.([0-9]+)\.")
_NAMED = re.compile(r"-([0-9]+)$")
_CACHE = re.compile(r"_l([0-9]+)$")
_COPY = re.compile(r"^[^#]+#(.*)#[0-9]+$")
UNNAMED = re.compile(r"^(node|leaf)_[0-9]+$")
_VIEW = re.compile(r"( \([a-z ]+\))+$")
_DEPTH = 8
"""Sources that are looked through for a name."""


def own_layer(name: str) -> int | None:
    """The layer in a name: 2 in ``lid_kq-2``, ``blk.2.attn_q_b.weight``, ``cache_k_l2`` and ``CUDA1#l_last-2#0``."""
    inner = _COPY.match(name)
    if inner:
        name = inner[1]
    name = _VIEW.sub("", name)
    for pattern in (_NAMED, _BLOCK, _CACHE):
        found = pattern.search(name)
        if found:
            return int(found[1])
    return None


def base_name(t: Tensor) -> str:
    """The name without its layer: ``lid_kq``; ``MUL_MAT of attn_norm`` for what has none; a view's is its owner's."""
    if t.view_src is not None:
        t = t.view_src
    if _has_name(t):
        return _stripped(t.name)
    if not t.src:
        return t.name
    source = t.src[0]
    for _ in range(_DEPTH):
        if source.view_src is not None:
            source = source.view_src
        if _has_name(source) or not source.src:
            break
        source = source.src[0]
    return f"{t.kind or t.op} of {_stripped(source.name)}"


def _has_name(t: Tensor) -> bool:
    return bool(t.name) and not UNNAMED.match(t.name)


def _stripped(name: str) -> str:
    copy = _COPY.match(name)
    if copy:
        return f"copy of {_stripped(copy[1])}"
    name = _VIEW.sub("", name)
    for pattern in (_NAMED, _CACHE):
        name = pattern.sub("", name)
    return _BLOCK.sub("", name)


def layers(nodes: list[Tensor]) -> dict[Tensor, int | None]:
    """The layer of each node: the one in its name, or the latest among its sources."""
    found: dict[Tensor, int | None] = {}

    def of(t: Tensor) -> int | None:
        return found[t] if t in found else own_layer(t.name)

    for t in nodes:
        own = own_layer(t.name)
        if own is None:
            own = max((il for il in map(of, t.src) if il is not None), default=None)
        found[t] = own
    return found
