"""What the terminal can show: colour, blocks, a progress bar."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO, TypedDict

from memplan.errors import printable

PATIENCE = 0.7
"""Seconds before a progress bar appears."""


def colour() -> bool:
    """Whether stdout is a terminal that shows colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def width() -> int:
    """Columns of the terminal, 100 where there is none."""
    return shutil.get_terminal_size((100, 24)).columns


def limit() -> int | None:
    """Columns that lines must keep to: the terminal's; None where stdout is none, and a table's lines stay whole."""
    return width() if sys.stdout.isatty() else None


class Look(TypedDict):
    """What tables are made for."""

    colour: bool
    unicode: bool
    width: int | None


def look() -> Look:
    """What stdout can show, for tables whose lines keep to it."""
    return {"colour": colour(), "unicode": unicode(), "width": limit()}


def fitted(text: str, stream: TextIO | None = None, indent: str = "  ") -> str:
    """``text`` with lines that are too long for a terminal broken between words, the later ones after ``indent``.

    ``stream``: where it goes, stdout if that is not said; what goes elsewhere than to a terminal stays as it is.
    """
    if not (sys.stdout if stream is None else stream).isatty():
        return text
    from memplan.output.wrapping import wrap_words

    most = width()
    lines = []
    for line in text.splitlines():
        start = line[: len(line) - len(line.lstrip())]
        lines += [line] if len(line) <= most else wrap_words(line, most, later=start + indent)
    return "".join(f"{line}\n" for line in lines)


def unicode(text: str = "█▓▒░─…") -> bool:
    """Whether stdout's encoding has these characters."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeError, LookupError):
        return False
    return True


MOST = 1000
"""Characters of an error or a warning."""


def one_line(message: str) -> str:
    """``message`` in one line, without its middle where it is longer than ``MOST`` characters."""
    line = " ".join(message.split())
    return line if len(line) <= MOST else f"{line[: MOST * 2 // 3]} ... {line[-MOST // 4 :]}"


def overwrite(stream: TextIO, text: str = "") -> None:
    """Put ``text`` in place of what stands on a terminal's line."""
    write = getattr(stream, "control", stream.write)
    write(f"\r\x1b[K{printable(text)}")
    stream.flush()


class ProgressBar:
    """One line on stderr that is overwritten, and wiped at the end; nothing when stderr is no terminal."""

    def __init__(
        self,
        what: str,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        unit: str = " estimates",
    ) -> None:
        self._what = what
        self._unit = unit
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._started = self._shown = clock()
        self._drawn = False
        self._wanted = self._stream.isatty()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn:
            overwrite(self._stream)

    def __call__(self, done: int, of: int | None = None) -> None:
        """Show how much is done, if it is time to; ``of``: how much there is, if that is known."""
        if not self._wanted:
            return
        now = self._clock()
        if now - self._started < PATIENCE or now - self._shown < 0.1:
            return
        self._shown, self._drawn = now, True
        if of is None:
            text = f"{done}{self._unit}"
        else:
            filled = done * 30 // of
            text = f"[{'#' * filled}{' ' * (30 - filled)}] {done} of {of}"
        overwrite(self._stream, f"{self._what} {text}")
