"""Files opened to be read: none that would be waited for without end."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from io import FileIO
from typing import Final

PATIENCE: Final = 2.0
"""Seconds a named pipe may take to find somebody who writes to it."""


def open_input(path: str | os.PathLike[str]) -> FileIO:
    """Open a file, unbuffered; a named pipe only if somebody opens it to write, too. Raises OSError and ValueError.

    The pipes of ``/dev/stdin`` and of a shell's ``<(...)`` have had their writer, so they open at once.
    """
    if not stat.S_ISFIFO(os.stat(path).st_mode):
        return open(path, "rb", buffering=0)
    import threading

    opened: list[int | OSError] = []
    given_up = threading.Event()

    def wait() -> None:
        try:
            handle = os.open(path, os.O_RDONLY)
        except OSError as error:
            opened.append(error)
            return
        if given_up.is_set():
            os.close(handle)
        else:
            opened.append(handle)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(PATIENCE)
    if not opened:
        given_up.set()
        with contextlib.suppress(OSError):  # a writer, which lets the thread go on
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        raise OSError(errno.ENXIO, "a named pipe that nobody writes to")
    if isinstance(opened[0], OSError):
        raise opened[0]
    file = FileIO(opened[0], "rb")
    file.name = os.fspath(path)
    return file


def read_input(path: str | os.PathLike[str], most: int) -> bytes:
    """What a file or a pipe holds; where that is more than ``most`` bytes, some more than those. Raises as above."""
    data = b""
    with open_input(path) as file:
        while len(data) <= most and (more := file.read(most)):  # a pipe gives it in parts
            data += more
    return data
