"""A line on stderr while memplan lets its user wait."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from memplan.cli import terminal

PATIENCE = 3.0
"""Seconds before it is said that another program is waited for."""


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Say once that ``what``, another program, is waited for, if it lasts."""

    def say() -> None:
        print(f"memplan: waiting for {what} (Ctrl-C ends it)", file=sys.stderr, flush=True)

    timer = threading.Timer(PATIENCE, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show on a terminal how long memplan has been at work, if it lasts, in a line that is wiped at the end."""
    stream, done = sys.stderr, threading.Event()
    started = time.monotonic()

    def show() -> None:
        if done.wait(terminal.PATIENCE):
            return
        while not done.wait(0.1):
            terminal.overwrite(stream, f"{what}: {time.monotonic() - started:.0f} s")
        terminal.overwrite(stream)

    thread = threading.Thread(target=show, daemon=True)
    if stream.isatty():
        thread.start()
    try:
        yield
    finally:
        done.set()
        if thread.ident is not None:
            thread.join()
