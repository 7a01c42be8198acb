"""Plans for variants of a problem: smaller and larger ones, and how much of the setting they keep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from memplan.estimator import model_of
from memplan.halving import last_before
from memplan.llama.flags import Flags
from memplan.llama.memory.kv import CELL_PADDING
from memplan.planning.attempt import Effort
from memplan.planning.layout import Layout
from memplan.planning.problem import Candidate, Problem, leaves_margins
from memplan.planning.search import Search
from memplan.result import Estimate

LEAST_CONTEXT: Final = 4096
"""The smallest context that is proposed, as llama.cpp's ``--fit-ctx``."""

LEAST_UBATCH: Final = 32
"""The smallest ubatch that is proposed: below it the GPUs take no op from the host
(``ggml_backend_cuda_device_offload_op``)."""

UBATCH_STEP: Final = 256
"""Tokens between the ubatches that are tried; below that, powers of two are."""

HINTS: Final = 2
"""Layouts that are kept for the next variants."""

CACHES = ("f16", "q8_0", "q4_0")
BITS = {"f32": 32, "f16": 16, "bf16": 16, "q8_0": 8, "q5_1": 6, "q5_0": 6, "q4_1": 5, "q4_0": 4, "iq4_nl": 4}
Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A change with which a plan fits.

    ``words``: the changed flags.  ``args``: those and all placement flags, to add to the user's own.  ``drop``: flags
    of the user's that must go.  ``kept``: about how much of the setting is left, 1 for all.  ``estimate``: exact.
    ``host_layers``: how many layers are on the host.  ``value``: the number that a flag was changed to, if it is one.
    """

    words: Words
    args: Words
    estimate: Estimate
    kept: float
    drop: Words = ()
    host_layers: int = 0
    value: int = 0

    @property
    def change(self) -> str:
        """What to change, as it is written on a command line."""
        return f"without {' '.join(self.drop)}" if self.drop else " ".join(self.words)


MOST_ESTIMATES = 150
"""Estimates after which no further variants are tried: what is known to fit by then is proposed. Most take some 20."""


class Prober:
    """Finds plans for variants of a problem, and counts their estimates.

    ``partial``: with whole layers on the host if need be.  ``copies``: as ``Search.find`` takes it.  ``hints``: layouts
    that fitted, the last first: one that fits a variant proves it with a single estimate.
    """

    def __init__(self, problem: Problem, partial: bool = False) -> None:
        self.problem = problem
        self.partial = partial
        self.copies: bool | None = None
        self.flags = problem.flags
        self.estimates = 0
        self.hints: tuple[Layout, ...] = ()

    def fits(self, words: Sequence[str]) -> bool:
        """Whether any placement fits with these flags added; not said to once that has been asked at length."""
        return self.estimates < MOST_ESTIMATES and self._find(words, "any") is not None

    def plan(self, words: Sequence[str]) -> Candidate | None:
        """The best placement with these flags added."""
        return self._find(words, "best")

    def change(self, words: Words, kept: float) -> Change | None:
        """The same as a change; None when nothing fits."""
        found = self._find(words, "good")
        if found is None:
            return None
        return Change(words, (*words, *found.args), found.estimate, kept, host_layers=found.layout.first)

    def _find(self, words: Sequence[str], effort: Effort) -> Candidate | None:
        search = Search(self.problem.with_words(*words), self.hints)
        found = search.find(self.partial, effort, self.copies)
        self.estimates += search.estimates
        if found is None and search.costs() is None and search.refused is None:  # no GPU is in use
            on_host = search.estimate(())
            if leaves_margins(on_host, self.problem.margins):
                found = Candidate(Layout(0, ()), (), on_host, 0.0)
        if found is not None and found.layout not in self.hints:
            self.hints = (found.layout, *self.hints)[:HINTS]
        return found

    @property
    def n_ctx(self) -> int:
        """Tokens of context that the flags ask for."""
        return self.flags.n_ctx or self.trained

    @property
    def trained(self) -> int:
        """The model's training context."""
        return model_of(self.problem.question).hparams.n_ctx_train

    def context(self, step: int = CELL_PADDING, least: int = 0) -> Change | None:
        """The largest context with which a plan fits, in whole steps, below what was asked for and from ``least``."""
        n_ctx = self.n_ctx
        low = -(-max(LEAST_CONTEXT, CELL_PADDING * self.flags.n_parallel, least) // step)
        steps = largest_number((n_ctx - 1) // step, lambda n: self.fits(("-c", str(n * step))), low)
        while steps is not None:
            change = self.change(("-c", str(steps * step)), steps * step / n_ctx)
            if change is not None:
                return replace(change, value=steps * step)
            steps = steps - 1 if steps > low else None
        return None

    def ubatch(self, step: int = UBATCH_STEP, least: int = 0) -> Change | None:
        """The largest ubatch with which a plan fits, in whole steps, below what was asked for and from ``least``."""
        asked = asked_ubatch(self.flags)
        sizes = [2**n for n in range(5, 8)] + list(range(step, asked, step))
        sizes = [ub for ub in sizes if least <= ub < asked]
        last = largest_number(len(sizes) - 1, lambda n: self.fits(("-ub", str(sizes[n]))), 0)
        change = None if last is None else self.change(("-ub", str(sizes[last])), sizes[last] / asked)
        return None if last is None or change is None else replace(change, value=sizes[last])

    def first_of(self, options: Options, more_than: float = 0.0) -> Change | None:
        """The first that fits of options that keep more of the setting than ``more_than``."""
        options = [(words, kept) for words, kept in options if kept > more_than]
        return next((c for words, kept in options if self.fits(words) and (c := self.change(words, kept))), None)


def largest_number(high: int, fits: Callable[[int], bool], low: int) -> int | None:
    """The largest number up to ``high`` that fits, by bisection; None when ``low`` does not."""
    if high < low or not fits(low):
        return None
    if fits(high):
        return high
    return last_before(low, high, fits)


Options = list[tuple[Words, float]]
"""Flags, and about how much of the setting they leave, 1 for all."""


def asked_ubatch(flags: Flags) -> int:
    """Tokens that are computed at once, as far as flags say."""
    return min(flags.n_ubatch, flags.n_batch)


def ubatches(flags: Flags) -> Options:
    """Smaller ubatches, the largest first, each with its share of what was asked for."""
    ubatch = asked_ubatch(flags)
    lower = [2**n for n in range(ubatch.bit_length(), 4, -1) if LEAST_UBATCH <= 2**n < ubatch]
    return [(("-ub", str(ub)), ub / ubatch) for ub in lower]


def slots(flags: Flags) -> Options:
    """Fewer slots, the most first."""
    count = flags.n_parallel
    unified = ("-kvu",) if flags.kv_unified and "-kvu" not in flags.given else ()
    fewer = [n for n in range(count - 1, 0, -1) if n < 4 or n in (count - 1, count // 2, count // 4)]
    return [(("-np", str(n), *(unified if n > 1 else ())), n / count) for n in fewer]


def cache_types(flags: Flags) -> Options:
    """Cache types of fewer bits, the most first."""
    bits = BITS[flags.type_k]
    lower = [kind for kind in CACHES if BITS[kind] < bits]
    return [(("-ctk", kind, "-ctv", kind), BITS[kind] / bits) for kind in lower]
