"""Where along an axis a device becomes too small, or large enough: the last or the first value that fits on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memplan.llama.memory.kv import CELL_PADDING
from memplan.result import Estimate

HOST = "host"
"""What the host is called where devices are told apart by name."""

MOST_TRIES = 40


def left_on(estimate: Estimate, device: str) -> int | None:
    """Bytes left on a device beyond its reserve; None when refused, not there, or its memory is not known."""
    if estimate.refused is not None:
        return None
    if device == HOST:
        return estimate.host.left
    return next((d.spare for d in estimate.devices if d.name == device), None)


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where a device begins or ceases to be large enough: the last value that fits, or the first (``rising`` False)."""

    x: int
    rising: bool = True

    @property
    def words(self) -> str:
        """Fits to, or fits from."""
        return f"fits {'to' if self.rising else 'from'} {self.x:,}"


def crossing(
    xs: Sequence[int], ask: Callable[[int], Estimate], device: str, step: int = CELL_PADDING
) -> Crossing | None:
    """The largest value, in steps of ``step``, that fits on ``device`` when larger ones need more than it has.

    A GPU has what is free there, less its reserve.

    Where less is needed as the value rises, the smallest value that fits with all larger ones. None when all fits,
    nothing does, or llama.cpp refuses what comes next. ``xs``: values that were asked already, rising. Needs change
    nearly in proportion, so the place is guessed from both ends of the interval and soon found.
    """
    left = [left_on(ask(x), device) for x in xs]
    if not left or not any(map(_fits, left)) or all(map(_fits, left)):
        return None
    if not _fits(left[-1]):
        x = _last(xs, left, ask, device, step)
        return None if x is None else Crossing(x)
    mirrored = [-x for x in reversed(xs)]
    x = _last(mirrored, left[::-1], lambda y: ask(-y), device, step, first=True)
    return None if x is None else Crossing(-x, rising=False)


def _last(
    xs: Sequence[int],
    left: Sequence[int | None],
    ask: Callable[[int], Estimate],
    device: str,
    step: int,
    first: bool = False,
) -> int | None:
    """The last value that fits; the values before it may not, or with ``first`` all do."""
    fitting = [i for i, amount in enumerate(left) if _fits(amount)]
    at = next(i for i in range(len(left)) if not _fits(left[i + 1])) if first else fitting[-1]
    if left[at + 1] is None:
        return None
    low, high = xs[at], xs[at + 1]
    low_left, high_left = left[at], left[at + 1]
    for tries in range(MOST_TRIES):
        if high - low <= step:
            break
        guess = _guess(low, high, low_left, high_left, step, halve=tries % 3 == 2)
        guess_left = left_on(ask(guess), device)
        if _fits(guess_left):
            low, low_left = guess, guess_left
        else:
            high, high_left = guess, guess_left
    return low


def _guess(low: int, high: int, low_left: int | None, high_left: int | None, step: int, halve: bool) -> int:
    """A value between the two, on the grid of ``step``: where a straight line crosses, or the middle."""
    share = 0.5
    if not halve and low_left is not None and high_left is not None:
        share = low_left / (low_left - high_left)
        # just beyond the guess lies the other side, most of the time: so both sides close in
        share = share if low_left > -high_left else share + step / (high - low)
    guess = (low + int(share * (high - low))) // step * step
    first = (low // step + 1) * step
    return min(max(guess, first), max(first, (high - 1) // step * step))


def _fits(left: int | None) -> bool:
    return left is not None and left >= 0
