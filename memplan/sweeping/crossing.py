"""Where along an axis a device becomes too small: the last value that still fits on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from memplan.result import Estimate
from memplan.sweeping.largest import CONTEXT_STEP

HOST = "host"
"""What the host is called where devices are told apart by name."""

MOST_TRIES = 40


def left_on(estimate: Estimate, device: str) -> int | None:
    """Bytes left on a device; None when refused, or when it is not there or its memory is not known."""
    if estimate.refused is not None:
        return None
    if device == HOST:
        return estimate.host.left
    return next((d.left for d in estimate.devices if d.name == device), None)


def crossing(xs: Sequence[int], ask: Callable[[int], Estimate], device: str, step: int = CONTEXT_STEP) -> int | None:
    """The largest value, in steps of ``step``, that fits on ``device`` when larger ones need more than it has.

    None when nothing fits, when the largest does, or when llama.cpp refuses what comes next. ``xs``: values that were
    asked already, rising. Needs rise nearly in proportion, so the place is guessed from both ends of the interval and
    soon found.
    """
    left = [left_on(ask(x), device) for x in xs]
    at = next((i for i in range(len(xs) - 1, -1, -1) if _fits(left[i])), len(xs))
    if at >= len(xs) - 1 or left[at + 1] is None:
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
