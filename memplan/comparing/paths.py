"""A part of the graph fused and unfused: what each takes, which tensors make the difference, how far each goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from memplan.comparing.compare import compare
from memplan.comparing.matching import label
from memplan.comparing.result import Comparison
from memplan.errors import FlagError
from memplan.estimator import answer
from memplan.explaining.explain import explained
from memplan.explaining.result import Explanation, Placed
from memplan.llama.context import Path, Paths
from memplan.models.paths import check_paths, path_taken, path_ways
from memplan.models.registry import architecture
from memplan.question import Question
from memplan.releases import Release
from memplan.result import Estimate
from memplan.sweeping.largest import Largest, candidates, largest
from memplan.sweeping.sweep import Sweeper

SMALL = 1 << 16
"""Tensors of fewer bytes are left out of what makes the difference."""


@dataclass(frozen=True, slots=True)
class PathTensor:
    """Tensors of one kind that one path's graph has on a device and the other's has not.

    ``tensor``: one of them.  ``copy``: whether it is a permuted copy of another of the same name.  ``at_peak``: how
    many are alive when the buffer is fullest.
    """

    path: Path
    device: str
    tensor: Placed
    count: int
    layers: tuple[int, ...]
    copy: bool
    at_peak: int


@dataclass(frozen=True, slots=True)
class PathSide:
    """One path: what lies where with the settings asked for, and the largest context that fits."""

    path: Path
    explanation: Explanation
    largest: Largest


@dataclass(frozen=True, slots=True)
class BothPaths:
    """Both ways of the path ``name``, fused first; only the unfused one where the release has no other.

    ``usual``: which one the release takes on these devices.  ``comparison``: from fused to unfused; None without both.
    """

    release: Release
    name: str
    usual: Path
    sides: tuple[PathSide, ...]
    tensors: tuple[PathTensor, ...]
    comparison: Comparison | None


def both_paths(question: Question, name: str = "", progress: Callable[[int], None] | None = None) -> BothPaths:
    """The fused and the unfused way of a path side by side, whichever the question asks for.

    ``name``: the path, by default the model's first.  ``progress`` is told how many estimates there were. Raises
    MemplanError, also for a model that has no such path.
    """
    arch, release, paths = architecture(question.header), question.release, question.paths
    name = name or next(iter(arch.paths), "")
    if not name:
        raise FlagError(f"nothing of {arch.name} is fused in some releases and not in others: it has no paths")
    check_paths(arch, release, Paths(((name, "unfused"),)))
    asked = 0

    def ask(question: Question) -> Estimate:
        nonlocal asked
        if progress is not None:
            progress(asked)
        asked += 1
        return answer(question).estimate

    _, values = candidates(Sweeper(question, []), "ctx")
    sides = []
    for path in path_ways(arch, name, release):
        forced = question.with_(paths=paths.with_(name, path))

        def along(n_ctx: int, forced: Question = forced) -> Estimate:
            return ask(forced.with_(n_ctx=n_ctx))

        sides.append(PathSide(path, explained(forced), largest(values, along)))
    auto = question.with_(paths=paths.with_(name, "auto"))
    usual = path_taken(arch, name, release, auto.paths, ask(auto).disabled)
    comparison = compare(sides[0].explanation, sides[1].explanation) if len(sides) > 1 else None
    tensors = _differing(sides) if comparison is not None else ()
    return BothPaths(release, name, usual, tuple(sides), tensors, comparison)


# --- tensors ----------------------------------------------------------------------------------------------------------

_Kind = tuple[str, str, str, str, tuple[int, ...], int]


def _differing(sides: Iterable[PathSide]) -> tuple[PathTensor, ...]:
    """What one graph has on a device and the other has not, largest first, computed in place left out."""
    by_side = [(side, _kinds(side.explanation)) for side in sides]
    found = []
    for at, (side, kinds) in enumerate(by_side):
        others = by_side[1 - at][1]
        for kind, members in kinds.items():
            if kind not in others and members[0][0].bytes >= SMALL:
                layers = tuple(sorted({p.layer for p, _ in members if p.layer is not None}))
                first = members[0][0]
                alive = sum(at_peak for _, at_peak in members)
                is_copy = first.op in ("CONT", "CPY", "DUP") and any(
                    other[1] == kind[1] and other[4] != kind[4] and sorted(other[4]) == sorted(kind[4])
                    for other in kinds
                )
                found.append(PathTensor(side.path, kind[0], first, len(members), layers, is_copy, alive))
    return tuple(sorted(found, key=lambda t: (-t.tensor.bytes, t.device)))


def _kinds(x: Explanation) -> dict[_Kind, list[tuple[Placed, bool]]]:
    kinds: dict[_Kind, list[tuple[Placed, bool]]] = {}
    for buffer in x.buffers:
        alive = {id(p) for peak in buffer.peaks for p in peak.live}
        for p in buffer.tensors:
            if not p.in_place_of:
                kind = (buffer.device, label(p), p.op, p.type, p.shape, p.bytes)
                kinds.setdefault(kind, []).append((p, id(p) in alive))
    return kinds
