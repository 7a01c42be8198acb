"""A GGUF header: metadata and tensor table. What is accepted and refused follows ggml/src/gguf.cpp, read in v0.5.0.

Nothing after the tensor table is read: the data may be missing. Large arrays (a vocabulary, its merges) are passed over
and stay as a SkippedArray that knows their element type and length.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import wraps
from math import prod
from types import MappingProxyType
from typing import Concatenate, ParamSpec, TypeVar

from memplan.errors import (
    BadLength,
    BadMagic,
    BadValue,
    DuplicateKey,
    DuplicateTensor,
    ModelError,
    TruncatedHeader,
    UnknownTensorType,
    UnknownValueType,
    UnsupportedByteOrder,
    UnsupportedVersion,
    shown,
)
from memplan.gguf.reader import ByteReader, Readable
from memplan.gguf.types import REMOVED, TYPES, GGMLType

MAX_NAME = 64  # GGML_MAX_NAME: a tensor's name has fewer bytes than this
MAX_DIMS = 4  # GGML_MAX_DIMS
DEFAULT_ALIGNMENT = 32  # GGUF_DEFAULT_ALIGNMENT
ARRAY_LIMIT = 4096
"""Arrays of at most this many elements become tuples; longer ones are skipped."""

MAX_TENSORS = 1 << 17
"""The most tensors of a file: more than twice what 512 layers of any architecture have."""

_MAX_KEY = 0xFFFF  # the specification's limit
_MAX_KEYS = 1 << 16
_KEPT = 8 << 20
"""About how many bytes of a header's keys and values are kept: what decides memory is a thousandth of it."""

_MAX_NAMES = 4 << 20
"""Bytes of all keys' names."""

_INT64_MAX = 2**63 - 1
_SIZE_MAX = 2**64 - 1

# GGUF's value types: name (gguf_type_name) and struct code; strings and arrays have none
_VALUE_TYPES: dict[int, tuple[str, str]] = {
    0: ("u8", "B"),
    1: ("i8", "b"),
    2: ("u16", "H"),
    3: ("i16", "h"),
    4: ("u32", "I"),
    5: ("i32", "i"),
    6: ("f32", "f"),
    7: ("bool", "?"),
    8: ("str", ""),
    10: ("u64", "Q"),
    11: ("i64", "q"),
    12: ("f64", "d"),
}
_ARRAY = 9
_SCALARS = {i: struct.Struct("<" + code) for i, (_, code) in _VALUE_TYPES.items() if code}
# the rest of a tensor's entry after n_dims: the dimensions, the type, the offset
_ENTRIES = tuple(struct.Struct(f"<{n}qiQ") for n in range(MAX_DIMS + 1))

_LOOKS_LIKE = {
    b"vers": "a Git LFS pointer; fetch the file it points to",
    b"<!DO": "a web page; download the file itself",
    b"<htm": "a web page; download the file itself",
    b"PK\x03\x04": "a zip archive or a PyTorch checkpoint; convert it to GGUF",
    b"lmgg": "an old GGML file; convert the model to GGUF",
    b"fmgg": "an old GGML file; convert the model to GGUF",
    b"tjgg": "an old GGML file; convert the model to GGUF",
}


@dataclass(frozen=True, slots=True)
class SkippedArray:
    """A metadata array too long to keep: its ``element`` type (gguf_type_name's spelling) and its ``length``.

    A string that is too long is one, too, of ``length`` bytes of type ``str``.
    """

    element: str
    length: int

    def __len__(self) -> int:
        return self.length


Scalar = int | float | bool | str
Value = Scalar | tuple[Scalar, ...] | SkippedArray
"""A metadata value: numbers and strings as Python's, arrays as tuples or, when long, as SkippedArray."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One entry of the tensor table.

    ``shape``: 1 to 4 dimensions in ggml's order, the contiguous one (ne0) first. ``offset``: bytes from the start of
    its file's tensor data. ``shard``: which file of a split model holds it, from 0.
    """

    name: str
    shape: tuple[int, ...]
    type: GGMLType
    offset: int
    shard: int = 0

    @property
    def elements(self) -> int:
        """How many elements it has (ggml_nelements)."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its data, without padding (ggml/src/ggml.c: ggml_nbytes of a contiguous tensor, v0.5.0)."""
        return prod(self.shape) // self.type.block_size * self.type.type_size


@dataclass(frozen=True, slots=True)
class Header:
    """What a GGUF file says before its data.

    ``metadata``: values by key, in file order. ``value_types``: the GGUF type of each, as gguf_type_name spells it
    (``u32``, ``arr[f32]``). ``tensors``: by name, in file order, those of all shards one after another.
    ``alignment``: of tensor data, in bytes. ``shards``: how many files the model has. ``name``: the file, or the
    built-in model.
    """

    version: int
    metadata: Mapping[str, Value]
    tensors: Mapping[str, TensorInfo]
    alignment: int = DEFAULT_ALIGNMENT
    shards: int = 1
    name: str = ""
    value_types: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Nothing of a header changes once it is read: models are remembered by it."""
        for name in ("metadata", "tensors", "value_types"):
            object.__setattr__(self, name, MappingProxyType(getattr(self, name)))

    def __reduce__(self) -> tuple[type[Header], tuple[object, ...]]:
        """Copied and pickled as plain dictionaries."""
        values = [getattr(self, f.name) for f in fields(self)]
        return type(self), tuple([dict(v) if isinstance(v, MappingProxyType) else v for v in values])

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together, without padding."""
        return sum(t.nbytes for t in self.tensors.values())


P = ParamSpec("P")
R = TypeVar("R")


def names_file(function: Callable[Concatenate[Header, P], R]) -> Callable[Concatenate[Header, P], R]:
    """Let every ModelError of a function of a header begin with the header's name, as errors of reading it do."""

    @wraps(function)
    def named(header: Header, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(header, *args, **kwargs)
        except ModelError as error:
            raise type(error)(f"{header.name or 'the model'}: {error}") from None

    return named


def parse_header(file: Readable, name: str) -> Header:
    """Read the header that starts where ``file`` stands; ``name`` stands for it in messages.

    ``file`` needs ``read(n)``; with ``seek`` and ``tell`` too, lengths are checked against its size. Raises a leaf of
    HeaderError, or SourceError when ``file`` cannot be read. (ggml/src/gguf.cpp: gguf_init_from_reader, v0.5.0.)
    """
    return parse_measured(file, name)[0]


def parse_measured(file: Readable, name: str) -> tuple[Header, int]:
    """The same, and how many bytes it has, from the magic to the end of the tensor table."""
    r = ByteReader(file, name)
    version = _start(r)
    n_tensors, n_keys = r.u64(), r.u64()
    r.kind = "the header"
    r.require(24 * n_tensors, f"the header counts {_count(n_tensors, 'tensor')} of 24 bytes or more")
    r.require(13 * n_keys, f"the header counts {_count(n_keys, 'key')} of 13 bytes or more")
    for count, what, most in ((n_tensors, "tensor", MAX_TENSORS), (n_keys, "key", _MAX_KEYS)):
        if count > most:
            r.fail(BadLength, f"the header counts {_count(count, what)}, more than {most} are not read")
    metadata, value_types = _metadata(r, n_keys)
    alignment = _alignment(r, metadata, value_types)
    tensors = _tensors(r, n_tensors, alignment)
    return Header(version, metadata, tensors, alignment, 1, name, value_types), r.position


def _start(r: ByteReader) -> int:
    if r.size == 0:
        r.fail(TruncatedHeader, "the file is empty", at=0)
    magic = r.take(4)
    if magic != b"GGUF":
        hint = _LOOKS_LIKE.get(magic, "give the path of a .gguf file")
        r.fail(
            BadMagic,
            f"not a GGUF file: starts with {shown(magic.decode('latin-1'))}",
            f"it may be {hint}" if magic in _LOOKS_LIKE else hint,
            0,
        )
    r.kind = "the version"
    version = r.u32()
    if version and not version & 0xFFFF:
        r.fail(UnsupportedByteOrder, "a big-endian GGUF file", "convert the model for little-endian machines", 4)
    if version not in (2, 3):
        mend = "convert the model again" if version < 2 else "update memplan, or check the file"
        r.fail(UnsupportedVersion, f"GGUF version {version} is not supported, 2 and 3 are", mend, 4)
    r.kind = "the number of tensors and keys"
    return version


def _metadata(r: ByteReader, count: int) -> tuple[dict[str, Value], dict[str, str]]:
    metadata: dict[str, Value] = {}
    types: dict[str, str] = {}
    names, kept = 0, 0
    for i in range(count):
        at = r.position
        r.kind, r.which = "key number", i
        key = _name(r, r.string(_MAX_KEY), at)
        if not key:
            r.fail(BadValue, f"{r.reading} has no name", at=at)
        if key in metadata:
            r.fail(DuplicateKey, f"key {shown(key)} occurs twice", at=at)
        r.kind, r.which = "key", key
        names += len(key)
        if names > _MAX_NAMES:
            r.fail(BadLength, f"the keys' names take more than {_MAX_NAMES} bytes", at=at)
        before = r.position
        value, types[key] = _value(r, _KEPT - kept)
        metadata[key] = value
        if not isinstance(value, SkippedArray):
            kept += 64 + 8 * (len(value) if isinstance(value, tuple) else 0) + r.position - before
    return metadata, types


def _value(r: ByteReader, room: int) -> tuple[Value, str]:
    """The next value and its type; what has more bytes than there is ``room`` for is passed over."""
    kind = r.u32()
    if kind == _ARRAY:
        element = r.u32()
        return _array(r, element, _type_name(r, element), room)
    name = _type_name(r, kind)
    if name == "str":
        length = r.string_length()
        if length <= room:
            return r.take(length).decode("utf-8", "replace"), name
        r.skip(length)
        return SkippedArray(name, length), name
    scalar = _SCALARS[kind]
    value: Scalar = scalar.unpack(r.take(scalar.size))[0]
    return value, name


def _array(r: ByteReader, element: int, name: str, room: int) -> tuple[Value, str]:
    n = r.u64()
    keep = n <= ARRAY_LIMIT and 16 * n <= room
    if name == "str":
        strings: list[str] = []
        while keep and len(strings) < n:
            length = r.string_length()
            room -= length + 16
            if room < 0:
                r.skip(length)
                r.skip_strings(n - len(strings) - 1)
                return SkippedArray(name, n), "arr[str]"
            strings.append(r.take(length).decode("utf-8", "replace"))
        if keep:
            return tuple(strings), "arr[str]"
        r.skip_strings(n)
    else:
        size = n * _SCALARS[element].size
        r.require(size)
        if keep:
            return struct.unpack(f"<{n}{_VALUE_TYPES[element][1]}", r.take(size)), f"arr[{name}]"
        r.skip(size)
    return SkippedArray(name, n), f"arr[{name}]"


def _type_name(r: ByteReader, kind: int) -> str:
    if kind == _ARRAY:
        r.fail(UnknownValueType, f"{r.reading} is an array of arrays, which GGUF readers do not take")
    if kind not in _VALUE_TYPES:
        r.fail(UnknownValueType, f"{r.reading} has value type {kind}, GGUF has 0 to 12", at=r.position - 4)
    return _VALUE_TYPES[kind][0]


def _alignment(r: ByteReader, metadata: Mapping[str, Value], types: Mapping[str, str]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    kind = types.get("general.alignment", "u32")
    if kind != "u32":
        r.fail(BadValue, f"key 'general.alignment' must be of type u32 but is {kind}")
    if not isinstance(value, int) or value <= 0 or value & (value - 1):
        r.fail(BadValue, f"key 'general.alignment' is {value}, not a power of two")
    return value


def _tensors(r: ByteReader, count: int, alignment: int) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    end = 0  # of the data so far, padded: where the next tensor must start
    for i in range(count):
        at = r.position
        r.kind, r.which = "the name of tensor number", i
        name = _name(r, r.string(MAX_NAME - 1), at)
        if name in tensors:
            r.fail(DuplicateTensor, f"tensor {shown(name)} occurs twice", at=at)
        r.kind, r.which = "tensor", name
        dims = r.u32()
        if dims > MAX_DIMS:
            r.fail(BadValue, f"{r.reading} has {dims} dimensions, ggml has at most {MAX_DIMS}", at=r.position - 4)
        entry = _ENTRIES[dims]
        *shape, type_id, offset = entry.unpack(r.take(entry.size))
        tensor = TensorInfo(name, tuple(shape) or (1,), _tensor_type(r, type_id), offset)
        size = _checked_size(r, tensor)
        if offset != end:
            r.fail(BadValue, f"{r.reading} has offset {offset}, the tensors before it end at {end}", at=r.position - 8)
        end += -(-size // alignment) * alignment
        if end > _SIZE_MAX:
            r.fail(BadValue, f"{r.reading} ends after byte 2**64 of the data")
        tensors[name] = tensor
    return tensors


def _name(r: ByteReader, raw: bytes, at: int) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        r.fail(BadValue, f"{r.reading} is not UTF-8", at=at)


def _tensor_type(r: ByteReader, type_id: int) -> GGMLType:
    type_ = TYPES.get(type_id)
    if type_ is None:
        at = r.position - 12
        if type_id in REMOVED:
            old, new = REMOVED[type_id]
            r.fail(
                UnknownTensorType,
                f"{r.reading} has type {type_id} ({old}), which ggml removed",
                f"quantize the model again, to {new}",
                at,
            )
        known = f"{min(TYPES)} to {max(TYPES)}"
        r.fail(
            UnknownTensorType,
            f"{r.reading} has type {type_id}, known are {known}",
            "update memplan, or check the file",
            at,
        )
    return type_


def _checked_size(r: ByteReader, tensor: TensorInfo) -> int:
    """Bytes of ``tensor``, once its shape is one that ggml can represent."""
    shape, type_ = tensor.shape, tensor.type
    if min(shape) < 0:
        r.fail(BadValue, f"{r.reading} has shape {_list(shape)}: a negative dimension")
    if shape[0] % type_.block_size:
        r.fail(
            BadValue,
            f"{r.reading} of type {type_} has rows of {shape[0]} elements, not a multiple of {type_.block_size}",
        )
    size = tensor.nbytes
    if size >= 2**56:  # far beyond any file: ask as exactly as ggml does
        total = shape[0]
        for d in (*shape[1:], 1, 1, 1)[: MAX_DIMS - 1]:
            if _INT64_MAX // d <= total:
                r.fail(BadValue, f"{r.reading} has shape {_list(shape)}: more elements than 64 bits can count")
            total *= d
        if size > _SIZE_MAX:
            r.fail(BadValue, f"{r.reading} has shape {_list(shape)}: more bytes than 64 bits can count")
    return size


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _list(shape: Iterable[int]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
