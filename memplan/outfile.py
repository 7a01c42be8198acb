"""Files written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Final

from memplan.errors import MemplanError, OutputError, shown

_SLACK: Final = 1 << 16
"""Bytes after a header that are looked at one by one; a hole starts at the file system's next block."""


def write_atomically(path: Path, data: bytes, size: int | None = None, mode: int = 0o600) -> None:
    """Write ``data`` under a temporary name beside ``path``, then rename it; nothing is left when that fails.

    ``size``: grow the file to so many bytes, with a hole after ``data``.  ``mode``: its permissions. Raises OSError.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
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


def check_output(path: str, inputs: Iterable[str] = (), *, header: bool = False) -> None:
    """Whether ``write_output`` can write there, before the work is done; leaves nothing behind.

    Refused are each of ``inputs``, by whatever name or link, and a model that stands there already, unless a ``header``
    is written and there is nothing but one. Raises OutputError, in one line.
    """
    try:
        target = Path(os.path.realpath(path))
        if not path or path.endswith(("/", os.sep)) or (target.exists() and not target.is_file()):
            raise OutputError(f"{shown(path)}: is no regular file; give the name of a file to write")
        if target.exists():
            for name in inputs:
                if os.path.exists(name) and os.path.samefile(name, target):
                    raise OutputError(f"{shown(path)}: is the file that is read; give another name to write to")
            _check_no_model(target, path, header)
        os.rmdir(tempfile.mkdtemp(dir=target.parent, prefix=".memplan."))
    except (OSError, ValueError) as error:
        raise _cannot(path, error) from None


def write_output(
    path: str, data: bytes, size: int | None = None, inputs: Iterable[str] = (), *, header: bool = False
) -> None:
    """Write a file that a user named with ``-o``, if ``check_output`` lets it be. Raises OutputError, in one line."""
    check_output(path, inputs, header=header)
    try:
        write_atomically(Path(os.path.realpath(path)), data, size, 0o666 & ~_umask())
    except (OSError, ValueError) as error:
        raise _cannot(path, error) from None


def _cannot(path: str, error: OSError | ValueError) -> OutputError:
    reason = getattr(error, "strerror", None) or str(error)
    return OutputError(f"{shown(path)}: cannot be written: {reason}; check folder and permissions")


def _check_no_model(target: Path, path: str, header: bool) -> None:
    with open(target, "rb") as file:
        if file.read(4) != b"GGUF" or (header and _header_only(file)):
            return
    raise OutputError(f"{shown(path)}: a model stands there, which is not replaced; give another name, or remove it")


def _header_only(file: BinaryIO) -> bool:
    """Whether an open GGUF file has nothing after its header but padding, or a hole."""
    from memplan.gguf.raw import read_raw

    file.seek(0)
    try:
        end = len(read_raw(file, "").data)
    except MemplanError:
        return False
    file.seek(end)
    if file.read(_SLACK).strip(b"\0"):
        return False
    size = file.seek(0, os.SEEK_END)
    if size <= end + _SLACK:
        return True
    try:
        os.lseek(file.fileno(), end + _SLACK, os.SEEK_DATA)
    except AttributeError:  # a system that does not say where holes are
        return False
    except OSError as error:
        return error.errno == errno.ENXIO  # a hole to the end
    return False


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
