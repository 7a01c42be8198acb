"""stdout and stderr as they are: full, closed, or a pipe whose reader has gone; and what may be written to them.

Whatever is printed goes through here, and comes out without control characters and marks of direction, whoever wrote
them: line ends stay, and colours on a terminal.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final, TextIO

from memplan.cli import terminal
from memplan.errors import OutputError, printable

_ODD: Final = re.compile(r"[^\n -~]+")
_ODD_BUT_COLOURS: Final = re.compile(r"(?!\x1b\[(?:(?:[0-4]|[349][0-7]);?){0,4}m)[^\n -~]")


def safe(text: str, colours: bool = False) -> str:
    """``text`` as a terminal may have it; ``colours``: with the escapes that set them."""
    return (_ODD_BUT_COLOURS if colours else _ODD).sub(lambda match: printable(match[0]), text)


class ReaderGone(Exception):
    """Nobody reads the pipe that stdout is. Not an OSError, which click would turn into an exit status of its own."""


class Stdout:
    """stdout, with errors that say so: OutputError, or ReaderGone. ``stream`` is None when stdout is closed."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write ``text``, made safe. Raises OutputError or ReaderGone."""
        if self._stream is None:
            raise OutputError("stdout is closed: the answer cannot be written")
        try:
            self._stream.write(safe(text, terminal.colour()))
            return len(text)
        except (OSError, ValueError) as error:
            raise self._failed(error) from None

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each of ``lines``. Raises OutputError or ReaderGone."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Write what is buffered. Raises OutputError or ReaderGone."""
        if self._stream is None:
            return
        try:
            self._stream.flush()
        except (OSError, ValueError) as error:
            raise self._failed(error) from None

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._stream is not None and self._stream.isatty()

    @property
    def encoding(self) -> str:
        """Its encoding."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def drop(self) -> None:
        """Give it to nobody, so that Python's own flush at exit has nothing to complain about."""
        if self._stream is not None:
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def _failed(self, error: OSError | ValueError) -> Exception:
        if isinstance(error, UnicodeError):  # an answer that the encoding has no characters for
            return OutputError(f"stdout cannot be written as {self.encoding}: {error}; set PYTHONIOENCODING=utf-8")
        self.drop()
        if isinstance(error, BrokenPipeError):
            return ReaderGone()
        return OutputError(f"stdout cannot be written: {getattr(error, 'strerror', None) or error}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Stderr:
    """stderr, where a line that cannot be written is nobody's error. ``stream`` is None when stderr is closed."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write ``text``, made safe, if that can be done."""
        self.control(safe(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each of ``lines`` if that can be done."""
        for line in lines:
            self.write(line)

    def control(self, text: str) -> None:
        """Write what is memplan's own, control characters and all."""
        if self._stream is not None:
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(text)

    def flush(self) -> None:
        """Write what is buffered if that can be done."""
        if self._stream is not None:
            with contextlib.suppress(OSError, ValueError):
                self._stream.flush()

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._stream is not None and self._stream.isatty()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def guarded() -> Iterator[Stdout]:
    """Put both in place of the process's own for the while; gives the Stdout."""
    before = sys.stdout, sys.stderr
    stdout, stderr = Stdout(before[0]), Stderr(before[1])
    sys.stdout, sys.stderr = stdout, stderr
    try:
        yield stdout
    finally:
        sys.stdout, sys.stderr = before
