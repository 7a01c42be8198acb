"""Files written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from memplan.errors import MemplanError, OutputError, shown

Data = bytes | Sequence[bytes | memoryview]
"""What a file is to hold: all at once, or one part after another."""


def write_atomically(path: Path, data: Data, size: int | None = None, mode: int = 0o600) -> None:
    """Write ``data`` under a temporary name beside ``path``, then rename it; nothing is left when that fails.

    ``size``: grow the file to so many bytes, with a hole after ``data``.  ``mode``: its permissions. Raises OSError.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            if size is not None:
                file.truncate(size)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file that memplan writes.

    ``name``: for messages, as in "is not a rig file".  ``is_own``: whether an open file is one of these as memplan
    writes them, so that another may take its place. It may raise OSError, ValueError and MemplanError.
    """

    name: str
    is_own: Callable[[BinaryIO], bool]


def check_output(path: str, kind: Kind, inputs: Iterable[str] = (), *, force: bool = False) -> None:
    """Whether ``write_output`` can write there, before the work is done; leaves nothing behind.

    What stands there already is replaced if it is empty, or one of ``kind`` itself; with ``force`` whatever it is.
    Refused all the same are each of ``inputs``, by whatever name or link, and a model that is more than a header.
    Raises OutputError, in one line.
    """
    if path == "-":
        raise OutputError("'-': a file is written, not stdout; give its name (./- for one that is called -)")
    try:
        target = Path(os.path.realpath(path))
        if not path or path.endswith(("/", os.sep)) or (target.exists() and not target.is_file()):
            raise OutputError(f"{shown(path)}: is not a regular file; give the name of a file to write")
        if target.exists():
            for name in inputs:
                if os.path.exists(name) and os.path.samefile(name, target):
                    raise OutputError(f"{shown(path)}: is the file that is read; give another name to write to")
            _check_replaceable(target, path, kind, force)
        elif not target.parent.is_dir():
            raise OutputError(f"{shown(path)}: there is no folder {shown(os.path.dirname(path))}; make it first")
        os.rmdir(tempfile.mkdtemp(dir=target.parent, prefix=".memplan."))
    except (OSError, ValueError) as error:
        raise cannot_be_written(path, error) from None


def write_output(
    path: str, data: Data, kind: Kind, size: int | None = None, inputs: Iterable[str] = (), *, force: bool = False
) -> None:
    """Write a file that a user named with ``-o``, if ``check_output`` lets it be. Raises OutputError, in one line."""
    check_output(path, kind, inputs, force=force)
    try:
        write_atomically(Path(os.path.realpath(path)), data, size, 0o666 & ~_umask())
    except (OSError, ValueError) as error:
        raise cannot_be_written(path, error) from None


def cannot_be_written(path: str, error: OSError | ValueError) -> OutputError:
    """The error for a file or folder that cannot be written, and why."""
    reason = getattr(error, "strerror", None) or str(error)
    return OutputError(f"{shown(path)}: cannot be written: {reason}; check folder and permissions")


def _check_replaceable(target: Path, path: str, kind: Kind, force: bool) -> None:
    with open(target, "rb") as file:
        start = file.read(4)
        if not start:
            return
        file.seek(0)
        if _holds(kind, file):
            return
        if start == b"GGUF":
            raise OutputError(
                f"{shown(path)}: a model is there already, and is never replaced; give another name, or remove it"
            )
    if not force:
        raise OutputError(f"{shown(path)}: exists and is not a {kind.name}; give another name, or --force")


def _holds(kind: Kind, file: BinaryIO) -> bool:
    """Whether ``file`` is one of ``kind``; what cannot be read as one is not."""
    try:
        return kind.is_own(file)
    except (OSError, ValueError, MemplanError):
        return False


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
