"""Primitive reads over any binary file-like object: little-endian numbers, strings, and cheap skipping.

One buffer, refilled in growing chunks, so a small header costs one read and a large vocabulary a few. Every length is
checked before anything is read or allocated for it: against the rest of the file where its size can be known, and
against fixed limits always. A header that lies costs an error, neither time nor memory.
"""

from __future__ import annotations

import struct
from itertools import repeat
from operator import length_hint
from typing import Any, NoReturn, Protocol

from memplan.errors import BadLength, HeaderError, SourceError, TruncatedHeader, shown

MAX_HEADER = 128 << 20
"""Bytes: more than any real header by far (one of 129,280 tokens and their merges has 8 MiB)."""
MAX_STRING = 16 << 20
"""Bytes: more than any real string by far (the longest are chat templates)."""

_FIRST_CHUNK = 256 << 10
_LAST_CHUNK = 2 << 20
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

AGAIN = "download or convert the file again"


class Readable(Protocol):
    """A binary file-like object. ``seek`` and ``tell`` are used where it has them."""

    def read(self, size: int, /) -> bytes | None:
        """At most ``size`` bytes; none at the end."""


class ByteReader:
    """Reads forward from where ``file`` stands; positions count from there.

    ``name`` stands for the file in messages. ``kind`` and ``which`` are what is being read ("key", "general.name"; or
    "tensor number", 7), kept current by the caller, for messages too. Raises HeaderError's leaves for what the bytes
    say, SourceError when they cannot be had.
    """

    __slots__ = ("_at", "_buffer", "_chunk", "_file", "_seekable", "_start", "kind", "name", "size", "which")

    def __init__(self, file: Readable, name: str) -> None:
        self.name = name
        self.kind = "the magic"
        self.which: str | int = ""
        self._file: Any = file
        self._buffer = b""
        self._start = 0  # position of the buffer's first byte
        self._at = 0  # next byte, within the buffer
        self._chunk = _FIRST_CHUNK
        self.size = _size(file)
        self._seekable = self.size is not None

    @property
    def position(self) -> int:
        """Bytes consumed so far."""
        return self._start + self._at

    @property
    def reading(self) -> str:
        """What is being read, for a message; put together only when one is needed."""
        if isinstance(self.which, int):
            return f"{self.kind} {self.which}"
        return f"{self.kind} {shown(self.which)}" if self.which else self.kind

    def fail(self, error: type[HeaderError], what: str, mend: str = AGAIN, at: int | None = None) -> NoReturn:
        """Raise ``error`` with its one line: the file, what is wrong, at which byte, how to fix it."""
        raise error(f"{self.name}: {what} (byte {self.position if at is None else at}); {mend}")

    def require(self, n: int, what: str = "") -> None:
        """Check that ``n`` more bytes can exist, without reading them."""
        end = self._start + self._at + n
        if end > MAX_HEADER:
            self.fail(BadLength, f"{what or f'{self.reading} takes {_bytes(n)}'}, more than a header has")
        if self.size is not None and end > self.size:
            left = self.size - self.position
            are = "is" if left == 1 else "are"
            self.fail(TruncatedHeader, f"{what or f'{self.reading} takes {_bytes(n)}'}, but only {left} {are} left")

    def take(self, n: int) -> bytes:
        """The next ``n`` bytes."""
        at, end = self._at, self._at + n
        if end > len(self._buffer):
            self._fill(n)
            at, end = 0, n
        self._at = end
        return self._buffer[at:end]

    def u32(self) -> int:
        """An unsigned 32-bit number."""
        value: int = _U32.unpack(self.take(4))[0]
        return value

    def u64(self) -> int:
        """An unsigned 64-bit number."""
        value: int = _U64.unpack(self.take(8))[0]
        return value

    def string(self, limit: int = MAX_STRING) -> bytes:
        """A string of at most ``limit`` bytes, as its bytes."""
        return self.take(self.string_length(limit))

    def string_length(self, limit: int = MAX_STRING) -> int:
        """Bytes of the string that follows, at most ``limit``."""
        n = self.u64()
        if n > limit:
            self.fail(BadLength, f"{self.reading} has a string of {n} bytes, more than {limit}", at=self.position - 8)
        return n

    def skip(self, n: int) -> None:
        """Pass over ``n`` bytes; by seeking when they are not in the buffer yet."""
        over = self._at + n - len(self._buffer)
        if over <= 0:
            self._at += n
            return
        self.require(n)
        self._start += self._at + n
        self._buffer, self._at = b"", 0
        try:
            if self._seekable:
                self._file.seek(over, 1)
                return
            while over > 0:
                data = self._file.read(min(over, _LAST_CHUNK))
                if not data:
                    self.fail(TruncatedHeader, f"the file ends inside {self.reading}")
                over -= len(data)
        except (OSError, ValueError) as e:
            raise SourceError(f"{self.name}: cannot be read: {e}") from e

    def skip_strings(self, count: int) -> None:
        """Pass over ``count`` strings, a step of a few dozen nanoseconds each."""
        self.require(8 * count, f"{self.reading} has {count} strings of 8 bytes or more")
        unpack_from = _U64.unpack_from
        todo = count
        while todo:
            buffer, at = self._buffer, self._at
            left = repeat(None, todo)
            try:
                for _ in left:
                    (n,) = unpack_from(buffer, at)
                    at += 8 + n
                todo = 0
            except (struct.error, OverflowError, IndexError):  # the next length is not, or not wholly, in the buffer
                todo = length_hint(left) + 1
            if at - len(buffer) > MAX_STRING:
                self.fail(BadLength, f"{self.reading} has a string of more than {MAX_STRING} bytes")
            self.skip(at - self._at)
            if todo:
                self._fill(8)

    def _fill(self, n: int) -> None:
        """Make the buffer start at the position and hold ``n`` bytes or more."""
        self.require(n)
        parts = [self._buffer[self._at :]]
        have = len(parts[0])
        self._start, self._at, self._buffer = self._start + self._at, 0, b""
        try:
            while have < n:
                data = self._file.read(max(n - have, self._chunk))
                if not data:
                    break
                if not isinstance(data, bytes | bytearray | memoryview):
                    raise SourceError(f"{self.name}: gives text, not bytes; open it in binary mode")
                parts.append(bytes(data))
                have += len(data)
        except (OSError, ValueError) as e:
            raise SourceError(f"{self.name}: cannot be read: {e}") from e
        self._chunk = min(4 * self._chunk, _LAST_CHUNK)
        self._buffer = b"".join(parts) if have > len(parts[-1]) else parts[-1]
        if have < n:
            if not have and not self.position:
                self.fail(TruncatedHeader, "the file is empty")
            self.fail(TruncatedHeader, f"the file ends inside {self.reading}: {_bytes(n)} wanted, {have} there")


def _bytes(n: int) -> str:
    return f"{n} byte" if n == 1 else f"{n} bytes"


def _size(file: Any) -> int | None:
    """Bytes from where ``file`` stands to its end, or None when it cannot seek."""
    try:
        here: int = file.tell()
        end: int = file.seek(0, 2)
        file.seek(here)
    except (AttributeError, OSError, ValueError):
        return None
    return max(end - here, 0)
