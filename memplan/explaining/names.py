"""What to call a tensor of the graph: its layer, and the name it shares with those of other layers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

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


def purposes(nodes: Sequence[Tensor]) -> dict[Tensor, tuple[str, int | None]]:
    """What inputs without a name are for, from what reads them: ``input of FILL for kq_plus_kq_b``, and its layer."""
    reader: dict[Tensor, Tensor] = {}
    often: set[Tensor] = set()
    for node in nodes:
        for source in node.src:
            if reader.setdefault(source, node) is not node:
                often.add(source)
    found: dict[Tensor, tuple[str, int | None]] = {}
    for leaf, first in reader.items():
        if leaf.src or leaf.view_src is not None or _has_name(leaf):
            continue
        last = first
        for _ in range(_DEPTH):
            if _called(last) or last not in reader:
                break
            last = reader[last]
        name, op = _called(last), first.kind or first.op
        layer = None if leaf in often else own_layer(last.name)
        found[leaf] = f"input of {op} for {name}" if name else f"input of {op}", layer
    return found


def base_name(t: Tensor, inputs: Mapping[Tensor, tuple[str, int | None]] = MappingProxyType({})) -> str:
    """The name without its layer: ``lid_kq``; ``MUL_MAT of attn_norm`` for what has none; a view's is its owner's.

    ``inputs``: what ``purposes`` says of inputs without a name.
    """
    if t.view_src is not None:
        t = t.view_src
    if _has_name(t):
        return _stripped(t.name)
    if t in inputs:
        return inputs[t][0]
    if not t.src:
        return t.name
    source = t.src[0]
    for _ in range(_DEPTH):
        if source.view_src is not None:
            source = source.view_src
        if _has_name(source) or not source.src:
            break
        source = source.src[0]
    if source in inputs:
        return f"{t.kind or t.op} of {inputs[source][0]}"
    if not _called(source):
        return f"unnamed {t.kind or t.op}"
    return f"{t.kind or t.op} of {_stripped(source.name)}"


def source_name(name: str) -> str:
    """What a copy is of, by its name: ``leaf_14`` of ``CPU#leaf_14#1``; empty for what is no copy."""
    copy = _COPY.match(name)
    return copy[1] if copy else ""


def _has_name(t: Tensor) -> bool:
    return bool(t.name) and not UNNAMED.match(t.name)


def _called(t: Tensor) -> str:
    """Its name without its layer; empty for one without, and for a view of one without."""
    return _stripped(t.name) if _has_name(t) else ""


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


def ranges(numbers: Sequence[int]) -> str:
    """0-2,5 for 0, 1, 2, 5."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    if len(runs) > 4:
        return f"{numbers[0]}-{numbers[-1]}, {len(numbers)} of them"
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
