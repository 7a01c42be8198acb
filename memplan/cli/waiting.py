"""A line on stderr while another program lets memplan wait."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 3.0
"""Seconds before it is said."""


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Say once that ``what`` is waited for, if it lasts."""

    def say() -> None:
        print(f"memplan: waiting for {what} (Ctrl-C ends it)", file=sys.stderr, flush=True)

    timer = threading.Timer(PATIENCE, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
