"""Which tensor of one graph is which of another, and which moment which."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator

from memplan.explaining.names import UNNAMED
from memplan.explaining.result import Explanation, Placed

_OF_DEVICE = re.compile(r"^[^#]+#(.*)$")

Key = tuple[object, ...]


def label(p: Placed) -> str:
    """What a tensor is, on any device and in any layer: its base name; for one without, its type and operation."""
    return f"unnamed {p.type} {p.does}s" if UNNAMED.match(p.base) else p.base


class Counterparts:
    """Pairs up the tensors of two explanations: by name, those without one by what they are made of, in order.

    ``renamed``: names of the first side, and what the same tensors are called on the second.
    """

    def __init__(self, before: Explanation, after: Explanation) -> None:
        self.renamed = _renamed(before, after)
        self._keys: tuple[dict[Key, tuple[str, Placed]], dict[Key, tuple[str, Placed]]] = (
            dict(_keyed(before, self._current)), dict(_keyed(after, self._current)),
        )  # fmt: skip
        self._of: dict[int, Key] = {id(p): key for keys in self._keys for key, (_, p) in keys.items()}
        anchors = _rising(
            (p.first, self._keys[1][key][1].first)
            for key, (_, p) in self._keys[0].items()
            if key in self._keys[1] and p.first >= 0
        )
        self._nodes = ([a for a, _ in anchors], [b for _, b in anchors])
        self.labels = tuple({self.label(p) for _, p in keys.values()} for keys in self._keys)
        """The labels of all tensors of each side."""
        self._ended = tuple(_ends(x) for x in (before, after))
        self._began = tuple(_begins(x) for x in (before, after))

    def label(self, p: Placed) -> str:
        """``label``, by the names of the second side."""
        return self._current(label(p))

    def _current(self, text: str) -> str:
        """``text`` by the names of the second side."""
        for old, new in self.renamed.items():
            if old in text:
                text = re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", new, text)
        return text

    def find(self, p: Placed, side: int) -> tuple[str, Placed] | None:
        """The counterpart of ``p`` on a side (0 before, 1 after), and its device; None if it has none."""
        return self._keys[side].get(self._of[id(p)])

    def pairs(self, device: str) -> Iterator[tuple[Placed, Placed]]:
        """Tensors that are on ``device`` on both sides, in the order of the second."""
        before, after = self._keys
        for key, (where, p) in after.items():
            other = before.get(key)
            if where == device and other is not None and other[0] == device:
                yield other[1], p

    def computed(self, node: int, side: int) -> Placed | None:
        """What gets its place at a node of a side; None for a view."""
        return self._began[side].get(node)

    def predecessor(self, p: Placed, side: int) -> Placed | None:
        """The tensor whose place ``p`` took over."""
        ended = self._ended[side].get((p.in_place_of, p.offset), ())
        return next((q for q in reversed(ended) if q.last <= p.first and q is not p), None)

    def handed_on(self, p: Placed, side: int) -> bool:
        """Whether another tensor took over the place of ``p``."""
        began = self._began[side]
        return any(
            q is not None and q is not p and q.in_place_of == p.name and q.offset == p.offset
            for q in (began.get(p.last + 1), began.get(p.last))
        )

    def moment(self, node: int, side: int) -> tuple[int, int]:
        """The nodes of the other side between which a node of ``side`` falls: the first not after, the last."""
        own, other = self._nodes[side], self._nodes[1 - side]
        at = bisect_right(own, node) - 1
        low = other[at] if at >= 0 else -1
        high = other[at + 1] - 1 if at + 1 < len(other) else 1 << 30
        return low, max(low, high)


def _renamed(before: Explanation, after: Explanation) -> dict[str, str]:
    """Names that one side alone has, and the one name of the other that stands for tensors alike, layer by layer."""
    kinds = (_by_name(before), _by_name(after))
    gone, new = ({name: kinds[i][name] for name in kinds[i].keys() - kinds[1 - i].keys()} for i in (0, 1))
    unique = (Counter(gone.values()), Counter(new.values()))
    called = {kind: name for name, kind in new.items()}
    return {name: called[k] for name, k in sorted(gone.items()) if unique[0][k] == 1 and unique[1][k] == 1}


def _by_name(x: Explanation) -> dict[str, frozenset[object]]:
    """What tensors of each name are: types, lengths of rows and layers. One layer's alone say too little."""
    found: dict[str, set[object]] = {}
    for p in (p for buffer in x.buffers for p in buffer.tensors):
        if p.layer is not None and p.does != "copy" and not UNNAMED.match(p.name):
            found.setdefault(p.base, set()).add((p.type, p.shape[0], p.layer))
    return {name: frozenset(kinds) for name, kinds in found.items() if len(kinds) > 1}


def _keyed(x: Explanation, current: Callable[[str], str]) -> Iterator[tuple[Key, tuple[str, Placed]]]:
    """``current``: puts the second side's names into a text."""
    seen: Counter[Key] = Counter()
    for buffer in x.buffers:
        for p in buffer.tensors:
            if UNNAMED.match(p.name):
                key: Key = (current(p.base), p.op, p.layer) if p.base != p.name else (label(p),)
            else:
                name = current(p.name)
                key = (buffer.device, name) if _OF_DEVICE.match(name) else (name,)
            seen[key] += 1
            yield (*key, seen[key]), (buffer.device, p)


def _ends(x: Explanation) -> dict[tuple[str, int], list[Placed]]:
    """Every stay by its tensor's name and its place."""
    found: dict[tuple[str, int], list[Placed]] = {}
    for buffer in x.buffers:
        for p in buffer.tensors:
            found.setdefault((p.name, p.offset), []).append(p)
    return found


def _begins(x: Explanation) -> dict[int, Placed]:
    """What each node computes."""
    return {p.first: p for buffer in x.buffers for p in buffer.tensors if p.first >= 0 and p.does != "copy"}


def _rising(pairs: Iterator[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest run of pairs that rises on both sides: graphs may compute a few things in another order."""
    ordered = sorted(set(pairs))
    tails: list[int] = []
    at: list[int] = []
    previous: list[int] = []
    for i, (_, y) in enumerate(ordered):
        place = bisect_left(tails, y)
        if place == len(tails):
            tails.append(y)
            at.append(i)
        else:
            tails[place] = y
            at[place] = i
        previous.append(at[place - 1] if place else -1)
    run: list[tuple[int, int]] = []
    i = at[-1] if at else -1
    while i >= 0:
        run.append(ordered[i])
        i = previous[i]
    return _strict(run[::-1])


def _strict(run: list[tuple[int, int]]) -> list[tuple[int, int]]:
    kept: list[tuple[int, int]] = []
    for pair in run:
        if not kept or pair[0] > kept[-1][0]:
            kept.append(pair)
    return kept
