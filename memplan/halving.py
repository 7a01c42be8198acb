"""The last number that fits, by halving: what searches for settings and for placements have in common."""

from __future__ import annotations

from collections.abc import Callable


def last_before(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The largest number from ``low``, which fits, up to below ``high``, which does not; none of both is tried."""
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
