"""What is no longer needed: Python's search for garbage, put off while graphs are made, and what was remembered.

A graph is thousands of objects that come and go, none of them in a cycle: to look for cycles on the way finds nothing
to free, and takes as long as an estimate.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


@contextmanager
def gc_paused() -> Iterator[None]:
    """No search until the end of the block; what is unused is freed all the same, but for cycles."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


NEW_OBJECTS = 100_000
"""So many make a search worth its time: a few tens of MiB."""


@contextmanager
def seldom() -> Iterator[None]:
    """A search after every 100,000 new objects, in place of Python's 700 or so."""
    young, *older = gc.get_threshold()
    gc.set_threshold(max(young, NEW_OBJECTS) if young else 0, *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)


def make_room(known: dict[Any, Any], most: int) -> None:
    """Forget what was remembered first, where there is no room for one more; other threads may do so meanwhile."""
    while len(known) >= most:
        with suppress(RuntimeError, StopIteration):  # another thread changed it
            known.pop(next(iter(known)), None)
