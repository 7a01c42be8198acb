from __future__ import annotations

import io
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from memplan.errors import BadLength, SourceError, TruncatedHeader
from memplan.gguf.reader import MAX_HEADER, MAX_STRING, ByteReader
from tests.gguf.writer import string


class Pipe(io.RawIOBase):
    """Gives its bytes in small pieces and cannot seek."""

    def __init__(self, data: bytes, piece: int = 1000) -> None:
        self._data = io.BytesIO(data)
        self._piece = piece

    def readable(self) -> bool:
        return True

    def read(self, n: int = -1) -> bytes:
        return self._data.read(min(n, self._piece) if n >= 0 else self._piece)


def test_numbers_strings_and_positions() -> None:
    r = ByteReader(io.BytesIO(struct.pack("<IQ", 7, 2**40) + string("abc") + b"rest"), "x")
    assert (r.u32(), r.u64(), r.string(), r.position, r.take(4)) == (7, 2**40, b"abc", 23, b"rest")


def test_positions_count_from_where_the_file_stands() -> None:
    f = io.BytesIO(b"before" + string("abc"))
    f.seek(6)
    r = ByteReader(f, "x")
    assert r.size == 11
    assert (r.string(), r.position) == (b"abc", 11)


@pytest.mark.parametrize("count", [0, 1, 2, 1000, 100_000])
@pytest.mark.parametrize("pipe", [False, True])
def test_skipping_strings_ends_where_they_end(count: int, pipe: bool) -> None:
    data = b"".join(string("x" * (i % 19)) for i in range(count))
    r = ByteReader(Pipe(data + b"end!", 1 << 16) if pipe else io.BytesIO(data + b"end!"), "x")
    r.skip_strings(count)
    assert (r.position, r.take(4)) == (len(data), b"end!")


@pytest.mark.parametrize("pipe", [False, True])
def test_skipping_strings_longer_than_a_chunk(pipe: bool) -> None:
    data = string("a") + string("b" * (5 << 20)) + string("c")
    r = ByteReader(Pipe(data + b"end!", 1 << 20) if pipe else io.BytesIO(data + b"end!"), "x")
    r.skip_strings(3)
    assert r.take(4) == b"end!"


@pytest.mark.parametrize("pipe", [False, True])
def test_skip(pipe: bool) -> None:
    data = bytes(1 << 20)
    r = ByteReader(Pipe(data + b"end!", 1 << 16) if pipe else io.BytesIO(data + b"end!"), "x")
    r.take(10)
    r.skip(5)
    r.skip(len(data) - 15)
    assert (r.position, r.take(4)) == (len(data), b"end!")


@pytest.mark.parametrize("pipe", [False, True])
def test_every_read_stops_at_the_end(pipe: bool) -> None:
    def reader(data: bytes) -> ByteReader:
        return ByteReader(Pipe(data) if pipe else io.BytesIO(data), "x")

    cases: list[tuple[bytes, Callable[[ByteReader], object]]] = [
        (b"abc", lambda r: r.u32()),
        (b"abc", lambda r: r.u64()),
        (string("abcdef")[:-1], lambda r: r.string()),
        (string("a") + b"\1", lambda r: r.skip_strings(2)),
        (string("a") + string("abc")[:-1], lambda r: r.skip_strings(2)),
        (b"abc", lambda r: r.skip(4)),
    ]
    for data, read in cases:
        with pytest.raises(TruncatedHeader):
            read(reader(data))


@pytest.mark.parametrize("length", [MAX_STRING + 100, MAX_HEADER, 2**40, 2**63, 2**64 - 1])
def test_lengths_beyond_all_sense(length: int) -> None:
    lie = struct.pack("<Q", length)
    with pytest.raises(BadLength):
        ByteReader(Pipe(lie), "x").string()
    with pytest.raises(BadLength):
        ByteReader(Pipe(lie + bytes(8)), "x").skip_strings(2)
    with pytest.raises(BadLength):
        ByteReader(Pipe(lie), "x").skip_strings(length)
    with pytest.raises(BadLength):
        ByteReader(Pipe(lie), "x").require(max(length, MAX_HEADER + 1))


def test_a_hole_of_a_file_is_not_walked_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "hole"
    with path.open("wb") as f:
        f.truncate(10 << 30)
    with path.open("rb") as f, pytest.raises(BadLength):
        ByteReader(f, "x").skip_strings(1 << 30)


def test_files_that_cannot_be_read() -> None:
    class Broken(io.RawIOBase):
        def read(self, n: int = -1) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(SourceError, match="x: cannot be read"):
        ByteReader(Broken(), "x").u32()
    with pytest.raises(SourceError, match="binary"):
        ByteReader(io.StringIO("text"), "x").u32()  # type: ignore[arg-type]
    closed = io.BytesIO(b"abcd")
    closed.close()
    with pytest.raises(SourceError):
        ByteReader(closed, "x").u32()
