"""How many slots fit: every count, each slot with a context of its own or all sharing one, on both indexer paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from memplan.estimator import answer
from memplan.llama.context import AS_RELEASED, LIGHTNING_INDEXER, Path, Paths
from memplan.question import Question
from memplan.releases import Indexer, Release
from memplan.result import Estimate
from memplan.sweeping.axes import Axis

COUNTS = (1, 2, 4, 8)
"""Slots that are tried when none are named."""

SLOTS = Axis("slots", ("-np", "-kvu"), ())
"""What decides slots, and how they share the context."""


@dataclass(frozen=True, slots=True)
class SlotRow:
    """One count of slots on one indexer path.

    ``unified``: whether the slots share one context (``-kvu``); False too for one slot, where both are the same.
    ``default``: what the program does without ``-np`` and ``-kvu``.  ``given``: what the flags ask for.
    """

    slots: int
    unified: bool
    indexer: Path
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
    """All rows, by path, then by slots; ``usual``: the path that the release takes on these devices."""

    rows: tuple[SlotRow, ...]
    usual: Path
    release: Release
    advice: SlotAdvice | None


def slot_words(slots: int, unified: bool) -> tuple[str, ...]:
    """llama-server's flags for so many slots."""
    return ("-np", str(slots), *(("-kvu",) if unified else ()))


def indexer_path(estimate: Estimate, release: Release, paths: Paths = AS_RELEASED) -> Path:
    """Whether the indexer of an estimate is computed in one op (``fused``) or from small ones (``unfused``)."""
    if release.indexer is Indexer.UNFUSED or paths.indexer == "unfused":
        return "unfused"
    return "unfused" if LIGHTNING_INDEXER.said in estimate.disabled else "fused"


def indexer_paths(release: Release) -> tuple[Path, ...]:
    """The paths that a release can take."""
    return ("unfused",) if release.indexer is Indexer.UNFUSED else ("fused", "unfused")


def slot_table(
    question: Question,
    counts: Sequence[int] = COUNTS,
    progress: Callable[[int, int], None] | None = None,
) -> SlotTable:
    """Every count of slots, per slot and unified, fused and unfused; the default is always among them.

    The question's path of the indexer says which path's advice is wanted, auto the release's own.  ``progress`` is told
    how many estimates there were, and of how many. Raises MemplanError.
    """
    asker = _Asker(question, progress)
    release, paths, flags = question.release, question.paths, question.flags
    unset = asker.question.flags
    default = (unset.n_parallel, unset.kv_unified and unset.n_parallel > 1)
    given = (flags.n_parallel, flags.kv_unified and flags.n_parallel > 1)
    wanted = {(n, unified) for n in counts for unified in (False, n > 1)} | {default, given}
    asker.expected = 1 + len(wanted) * len(indexer_paths(release))
    as_released = asker(*default, paths.indexer)
    usual = indexer_path(as_released, release, paths)

    def row(slots: int, unified: bool, path: Path) -> SlotRow:
        key = (slots, unified)
        return SlotRow(slots, unified, path, asker(slots, unified, path), key == default, key == given != default)

    rows = [row(*key, path) for path in indexer_paths(release) for key in sorted(wanted)]
    advice = _advise(next(r for r in rows if r.default and r.indexer == usual), row)
    return SlotTable(tuple(rows), usual, release, advice)


def _advise(default: SlotRow, row: Callable[[int, bool, Path], SlotRow]) -> SlotAdvice | None:
    if default.estimate.fits:
        return None

    def fitting(options: Iterator[tuple[int, bool]]) -> SlotRow | None:
        return next((r for r in (row(*option, default.indexer) for option in options) if r.estimate.fits), None)

    fewer = fitting((n, n > 1 and default.unified) for n in range(default.slots - 1, 0, -1))
    shorter = fitting((n, False) for n in range(default.slots, 1, -1)) if default.unified else None
    return None if fewer is None and shorter is None else SlotAdvice(default, fewer, shorter)


class _Asker:
    """Estimates by slots, sharing and path, each asked once."""

    def __init__(self, question: Question, progress: Callable[[int, int], None] | None) -> None:
        self.question = question.without(SLOTS.replaced)
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
            paths = replace(self.question.paths, indexer=path)
            asked = self.question.with_words(*slot_words(slots, unified)).with_(paths=paths)
            self._known[key] = answer(asked).estimate
        return self._known[key]
