"""Files written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from memplan.errors import OutputError, shown


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


def write_output(path: str, data: bytes, size: int | None = None) -> None:
    """The same for a file that a user named with ``-o``. Raises OutputError, in one line."""
    try:
        target = Path(os.path.realpath(path))
        if not path or (target.exists() and not target.is_file()):
            raise OutputError(f"{shown(path)}: is no regular file; give the name of a file to write")
        write_atomically(target, data, size, 0o666 & ~_umask())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OutputError(f"{shown(path)}: cannot be written: {reason}; check folder and permissions") from None


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
