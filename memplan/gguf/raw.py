"""The bytes of a header: recorded while it is read, taken apart key by key, written again.

What is written keeps every key's and tensor's own bytes; only what was asked to change is another.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO, FileIO
from typing import BinaryIO, Final

from memplan.errors import SourceError
from memplan.gguf.header import Header, SkippedArray, TensorInfo, Value, parse_header, parse_measured
from memplan.gguf.reader import Readable
from memplan.outfile import Kind

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_IDS = {"u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7, "str": 8, "u64": 10}
_IDS |= {"i64": 11, "f64": 12}
_CODES = dict(zip(_IDS, "BbHhIif?sQqd", strict=True))
_STR, _ARRAY = 8, 9
_MAX_ALIGNMENT: Final = 1 << 16
_SLACK: Final = 1 << 16
"""Bytes after a header that are looked at one by one; a hole starts at the file system's next block."""


class Recorder:
    """A file that remembers what was read from it. It cannot seek, so nothing is passed over."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self._data = bytearray()

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes; none at the end."""
        data = bytes(self._file.read(size) or b"")
        self._data += data
        return data

    @property
    def data(self) -> bytes:
        """Everything read so far."""
        return bytes(self._data)


@dataclass(frozen=True, slots=True)
class RawHeader:
    """A header's bytes. ``keys``: each key's whole entry, in file order.  ``tensors``: the tensor table's bytes."""

    header: Header
    data: bytes
    """All of it, from the magic to the end of the tensor table, without padding."""
    keys: Mapping[str, bytes | memoryview]
    tensors: bytes


def read_raw(file: Readable, name: str) -> RawHeader:
    """Read a header with its bytes. Raises what ``parse_header`` raises."""
    if isinstance(file, FileIO | BytesIO) and file.seekable():
        start = file.tell()
        header, length = parse_measured(file, name)
        file.seek(start)
        data = file.read(length)
        if len(data) < length:
            raise SourceError(f"{name}: its header changed while it was read; try again")
        return take_apart(header, data)
    recorder = Recorder(file)
    return take_apart(parse_header(recorder, name), recorder.data)


def take_apart(header: Header, data: bytes) -> RawHeader:
    """Find where the entries of a header that was parsed begin and end in ``data``, its bytes and perhaps more."""
    n_tensors, n_keys = struct.unpack_from("<QQ", data, 8)
    at = 24
    view = memoryview(data)  # a vocabulary is not copied
    keys: dict[str, bytes | memoryview] = {}
    for _ in range(n_keys):
        start = at
        (length,) = _U64.unpack_from(data, at)
        name = data[at + 8 : at + 8 + length].decode()
        at = _after_value(data, at + 8 + length)
        keys[name] = view[start:at]
    table = at
    for _ in range(n_tensors):
        (length,) = _U64.unpack_from(data, at)
        at += 8 + length
        at += 4 + 8 * _U32.unpack_from(data, at)[0] + 12
    if at > len(data):
        raise SourceError(f"{header.name}: its header changed while it was read; try again")
    return RawHeader(header, data[:at], keys, data[table:at])


def _after_value(data: bytes, at: int) -> int:
    (kind,) = _U32.unpack_from(data, at)
    at += 4
    if kind == _STR:
        return at + 8 + int(_U64.unpack_from(data, at)[0])
    if kind != _ARRAY:
        return at + _SIZES[kind]
    element, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if element != _STR:
        return at + int(count) * _SIZES[element]
    for _ in range(count):
        at += 8 + _U64.unpack_from(data, at)[0]
    return at


Parts = tuple[bytes | memoryview, ...]
"""A file's bytes, one part after another: those of a large header are there once."""


def assemble(version: int, keys: Sequence[bytes | memoryview], tensors: Sequence[bytes], alignment: int) -> Parts:
    """A header-only file: the entries, padded to where the tensor data would start. Raises SourceError."""
    start = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    return padded((start, *keys, *tensors), alignment)


def padded(parts: Sequence[bytes | memoryview], alignment: int) -> Parts:
    """A header's parts, and zeros up to where tensor data would start. Raises SourceError for a senseless alignment."""
    if alignment > _MAX_ALIGNMENT:
        raise SourceError(
            f"general.alignment is {alignment}: a header of that size is not written, of {_MAX_ALIGNMENT} at most"
        )
    return (*parts, b"\0" * (-sum(map(len, parts)) % alignment))


def key_entry(name: str, kind: str, value: Value) -> bytes:
    """A key's entry; ``kind`` as gguf_type_name spells it (``arr[f32]``). Raises SourceError for a skipped array."""
    if isinstance(value, SkippedArray):
        raise SourceError(f"key {name!r} was passed over when it was read; give the file itself")
    if isinstance(value, tuple):
        element = kind[4:-1]
        head = struct.pack("<IIQ", _ARRAY, _IDS[element], len(value))
        return _string(name) + head + b"".join(_scalar(element, v) for v in value)
    return _string(name) + _U32.pack(_IDS[kind]) + _scalar(kind, value)


def tensor_entries(tensors: Sequence[TensorInfo], alignment: int) -> tuple[list[bytes], int]:
    """The table's entries, with data laid out one after another; and where the data ends, in bytes from its start."""
    entries, end = [], 0
    for tensor in tensors:
        n = len(tensor.shape)
        entries.append(_string(tensor.name) + struct.pack(f"<I{n}qiQ", n, *tensor.shape, tensor.type.id, end))
        end += -(-tensor.nbytes // alignment) * alignment
    return entries, end


def _scalar(kind: str, value: object) -> bytes:
    if isinstance(value, str):
        return _string(value)
    return struct.pack("<" + _CODES[kind], value)


def _string(text: str) -> bytes:
    raw = text.encode("utf-8")
    return _U64.pack(len(raw)) + raw


def is_header_only(file: BinaryIO) -> bool:
    """Whether an open GGUF file names tensors, yet has nothing after its header but padding, or a hole.

    Raises what ``read_raw`` raises.
    """
    header, end = parse_measured(file, "")
    file.seek(end)
    if not header.tensors or file.read(_SLACK).strip(b"\0"):
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


HEADER: Final = Kind("header-only GGUF file", is_header_only)
"""What ``memplan header`` writes."""
