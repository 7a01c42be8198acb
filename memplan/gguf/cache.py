"""What was read from the network, kept in the user's cache folder with a checksum.

One file an address: a line of JSON (address without its query, ETag, when, SHA-256), then the bytes. Written under a
temporary name and renamed, so a reader never sees half of one. A damaged file is as good as none.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from memplan.gguf.address import shown_address
from memplan.outfile import write_atomically

FRESH: Final = 3600.0
"""Seconds for which an entry is used without asking the server again."""

KEPT: Final = 64
"""Entries that are kept; the oldest go first."""

_LARGEST: Final = 160 << 20
_SUFFIX: Final = ".memplan"


@dataclass(frozen=True, slots=True)
class Entry:
    """What an address held. ``etag``: the server's name for that version.  ``age``: seconds since it was asked."""

    data: bytes
    etag: str
    age: float


def cache_folder() -> Path:
    """The folder of this user's cached headers: under XDG_CACHE_HOME, or where the platform keeps caches."""
    home = os.environ.get("XDG_CACHE_HOME")
    if home and os.path.isabs(home):
        return Path(home) / "memplan"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "memplan" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "memplan"
    return Path.home() / ".cache" / "memplan"


def load(address: str) -> Entry | None:
    """The entry of an address, None when there is none that is whole."""
    try:
        path = _path(address)
        with path.open("rb") as file:
            stat = os.fstat(file.fileno())
            if stat.st_size > _LARGEST:
                return None
            about = json.loads(file.readline(8192))
            data = file.read()
        if hashlib.sha256(data).hexdigest() != about["sha256"] or about["version"] != 1:
            return None
        return Entry(data, str(about["etag"]), max(0.0, time.time() - stat.st_mtime))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, RecursionError):
        return None


def store(address: str, data: bytes, etag: str) -> None:
    """Keep ``data`` as what ``address`` holds. A cache that cannot be written is no error."""
    about = {"version": 1, "address": shown_address(address), "etag": etag, "sha256": hashlib.sha256(data).hexdigest()}
    try:
        path = _path(address)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, json.dumps(about).encode() + b"\n" + data)
        _prune(path.parent)
    except (OSError, RuntimeError):
        return


def drop(address: str) -> None:
    """Keep nothing of an address."""
    try:
        _path(address).unlink(missing_ok=True)
    except (OSError, RuntimeError):
        return


def renew(address: str) -> None:
    """The entry was found to be current: count its age from now."""
    try:
        os.utime(_path(address))
    except (OSError, RuntimeError):
        return


def _path(address: str) -> Path:
    return cache_folder() / (hashlib.sha256(address.encode("utf-8", "surrogatepass")).hexdigest() + _SUFFIX)


def _prune(folder: Path) -> None:
    entries = sorted(folder.glob("*" + _SUFFIX), key=lambda path: path.stat().st_mtime)
    # what a process that was killed has left half written
    left = [path for path in folder.glob(".*.tmp") if time.time() - path.stat().st_mtime > FRESH]
    for path in (*entries[:-KEPT], *left):
        path.unlink(missing_ok=True)
