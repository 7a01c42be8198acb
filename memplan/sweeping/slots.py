"""How many slots fit: every count, each slot with a context of its own or all sharing one, on each of a path's ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from memplan.estimator import answer
from memplan.llama.context import Path
from memplan.models.paths import path_taken, path_ways
from memplan.models.registry import architecture
from memplan.question import Question
from memplan.releases import Release
from memplan.result import Estimate
from memplan.sweeping.axes import Axis

COUNTS = (1, 2, 4, 8)
"""Slots that are tried when none are named."""

SLOTS = Axis("slots", ("-np", "-kvu"), ())
"""What decides slots, and how they share the context."""


@dataclass(frozen=True, slots=True)
class SlotRow:
    """One count of slots on one ``path``: a way of ``SlotTable.path``.

    ``unified``: whether the slots share one context (``-kvu``); False too for one slot, where both are the same.
    ``default``: what the program does without ``-np`` and ``-kvu``.  ``given``: what the flags ask for.
    """

    slots: int
    unified: bool
    path: Path
    estimate: Estimate
    default: bool
    given: bool

    @property
    def words(self) -> tuple[str, ...]:
        """The flags for it."""
        return slot_words(self.slots, self.unified)


@dataclass(frozen=True, slots=True)
class SlotAdvice:
    """What fits where the default does not: ``fewer`` slots, each with as much context as one has by default.

    ``shorter``: as many slots as may be, up to the default's, with a part of the context each.
    """

    default: SlotRow
    fewer: SlotRow | None
    shorter: SlotRow | None


@dataclass(frozen=True, slots=True)
class SlotTable:
    """All rows, by path, then by slots; ``usual``: the path that the release takes on these devices.

    ``path``: what can be fused or not, the model's first such thing; empty for a model without any, whose one path is
    auto.
    """

    rows: tuple[SlotRow, ...]
    usual: Path
    release: Release
    advice: SlotAdvice | None
    path: str


def slot_words(slots: int, unified: bool) -> tuple[str, ...]:
    """llama-server's flags for so many slots."""
    return ("-np", str(slots), *(("-kvu",) if unified else ()))


def slot_table(
    question: Question,
    counts: Sequence[int] = COUNTS,
    progress: Callable[[int, int], None] | None = None,
) -> SlotTable:
    """Every count of slots, per slot and unified, on each path; the default is always among them.

    The question's own path says which path's advice is wanted, auto the release's own.  ``progress`` is told
    how many estimates there were, and of how many. Raises MemplanError.
    """
    arch, release, paths, flags = architecture(question.header), question.release, question.paths, question.flags
    name = next(iter(arch.paths), "")
    ways: tuple[Path, ...] = path_ways(arch, name, release) if name else ("auto",)
    asker = _Asker(question, name, progress)
    unset = asker.question.flags
    default = (unset.n_parallel, unset.kv_unified and unset.n_parallel > 1)
    given = (flags.n_parallel, flags.kv_unified and flags.n_parallel > 1)
    wanted = {(n, unified) for n in counts for unified in (False, n > 1)} | {default, given}
    asker.expected = 1 + len(wanted) * len(ways)
    as_released = asker(*default, paths[name])
    usual = path_taken(arch, name, release, paths, as_released.disabled) if name else "auto"

    def row(slots: int, unified: bool, path: Path) -> SlotRow:
        key = (slots, unified)
        return SlotRow(slots, unified, path, asker(slots, unified, path), key == default, key == given != default)

    rows = [row(*key, path) for path in ways for key in sorted(wanted)]
    advice = _advise(next(r for r in rows if r.default and r.path == usual), row)
    return SlotTable(tuple(rows), usual, release, advice, name)


def _advise(default: SlotRow, row: Callable[[int, bool, Path], SlotRow]) -> SlotAdvice | None:
    if default.estimate.fits:
        return None

    def fitting(options: Iterator[tuple[int, bool]]) -> SlotRow | None:
        return next((r for r in (row(*option, default.path) for option in options) if r.estimate.fits), None)

    fewer = fitting((n, n > 1 and default.unified) for n in range(default.slots - 1, 0, -1))
    shorter = fitting((n, False) for n in range(default.slots, 1, -1)) if default.unified else None
    return None if fewer is None and shorter is None else SlotAdvice(default, fewer, shorter)


class _Asker:
    """Estimates by slots, sharing and path, each asked once."""

    def __init__(self, question: Question, path: str, progress: Callable[[int, int], None] | None) -> None:
        self.question = question.without(SLOTS.replaced)
        self.path = path
        self.expected = 0
        """Estimates of the table; what advice asks for comes on top of it."""
        self._progress = progress
        self._known: dict[tuple[int, bool, Path], Estimate] = {}

    def __call__(self, slots: int, unified: bool, path: Path) -> Estimate:
        key = (slots, unified, path)
        if key not in self._known:
            if self._progress is not None:
                done = len(self._known)
                self._progress(done, max(self.expected, done + 1))
            asked = self.question.with_words(*slot_words(slots, unified))
            if self.path:
                asked = asked.with_(paths=asked.paths.with_(self.path, path))
            self._known[key] = answer(asked).estimate
        return self._known[key]
