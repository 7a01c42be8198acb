"""The host's memory."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path


def host_memory(root: Path = Path("/")) -> tuple[int | None, int | None]:
    """Bytes of the host's memory, and how many of them can be had; None for what the system does not tell.

    In a container with a limit, that limit. ``root``: where ``proc`` and ``sys`` are.
    """
    if sys.platform == "win32":
        return _windows()
    total, free = _meminfo(root)
    if total is None:
        try:
            total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, ValueError, OSError):
            return None, None
    limit = _number(root / "sys/fs/cgroup/memory.max")
    if limit is not None and 0 < limit < total:
        used = _number(root / "sys/fs/cgroup/memory.current") or 0
        left = max(0, limit - used)
        return limit, left if free is None else min(free, left)
    return total, free


def _meminfo(root: Path) -> tuple[int | None, int | None]:
    try:
        text = (root / "proc/meminfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None, None
    kib = {name: int(number) for name, number in re.findall(r"^(\w+):\s+(\d{1,15}) kB", text, re.MULTILINE)}
    total, free = kib.get("MemTotal"), kib.get("MemAvailable")
    return total and total * 1024, free and free * 1024


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _windows() -> tuple[int | None, int | None]:
    import ctypes

    class Status(ctypes.Structure):
        _fields_ = [
            ("length", ctypes.c_ulong),
            ("load", ctypes.c_ulong),
            *((name, ctypes.c_ulonglong) for name in ("total", "free", "a", "b", "c", "d", "e")),
        ]

    status = Status(length=ctypes.sizeof(Status))
    if not ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):  # type: ignore[attr-defined,unused-ignore]
        return None, None
    return status.total, status.free
