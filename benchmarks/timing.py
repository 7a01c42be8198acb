"""Timings that mean something on a busy machine: things are run in turn, and told as medians and ratios."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median


def in_turn(things: Mapping[str, Callable[[int], object]], runs: int) -> dict[str, list[float]]:
    """Seconds of each thing, A B A B ..., after one round that does not count; each is given the number of its run."""
    times: dict[str, list[float]] = {name: [] for name in things}
    for run in range(-1, runs):
        for name, thing in things.items():
            start = time.perf_counter()
            thing(run + 1)
            if run >= 0:
                times[name].append(time.perf_counter() - start)
    return times


def report(times: Mapping[str, Sequence[float]], against: str) -> None:
    """One line a thing: the median in milliseconds, least and most, and the median ratio to ``against``."""
    base = times[against]
    for name, of in times.items():
        ratio = median(a / b for a, b in zip(of, base, strict=True))
        print(f"{name:<44} {median(of) * 1e3:9.1f} ms  ({min(of) * 1e3:.1f} to {max(of) * 1e3:.1f})  x{ratio:.2f}")


def command(*words: str) -> Callable[[int], object]:
    """A whole process, its output thrown away."""
    return lambda run: subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)


def memplan(*words: str) -> Callable[[int], object]:
    """A whole ``memplan`` command."""
    return command(sys.executable, "-m", "memplan", *words)
