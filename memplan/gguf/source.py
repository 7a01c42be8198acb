"""From a path, an open file or bytes to a Header; the shards of a split model put together.

A split model's files are named ``NAME-00001-of-00005.gguf`` and carry ``split.no`` (from 0), ``split.count`` and
``split.tensors.count``. Metadata come from the first, tensors from all in order. (src/llama-model-loader.cpp:
llama_model_loader's constructor, llama_get_list_splits; src/llama.cpp: llama_split_path, v0.5.0.)
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from io import BytesIO, FileIO
from pathlib import Path
from typing import Final, TypeVar, Union

from memplan.errors import DuplicateTensor, MissingShard, ShardMismatch, SourceError, shown
from memplan.gguf.header import MAX_TENSORS, Header, TensorInfo, parse_header
from memplan.gguf.reader import Readable
from memplan.infile import open_input

Source = Union[str, "os.PathLike[str]", bytes, bytearray, memoryview, Readable]
"""Where a header can come from: a path, the file's first bytes, or a binary file-like object."""

T = TypeVar("T")

_SHARD_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
_SPLIT: Final = ("split.no", "split.count")


def read_header(source: Source, name: str | None = None) -> Header:
    """Read a GGUF header from a path, an open binary file (from where it stands) or bytes.

    Any shard of a split model given as a path finds the others beside it. The data after the header may be missing.
    ``name`` stands for the source in messages (default: the path, or the file's own name).

    Raises SourceError when it cannot be read, a leaf of HeaderError when the header is wrong, MissingShard or
    ShardMismatch when a split model is incomplete or mixed up.
    """
    if isinstance(source, str | os.PathLike):
        return _read_model(os.fsdecode(source), name)
    if isinstance(source, bytes | bytearray | memoryview):
        source = BytesIO(source)
    elif not hasattr(source, "read"):
        raise SourceError(f"a model cannot be read from {type(source).__name__}; give a path, a binary file or bytes")
    own = getattr(source, "name", None)
    header = parse_header(source, name or (own if isinstance(own, str) else "<bytes>"))
    count = _split_count(header)
    if count > 1:
        raise MissingShard(
            f"{header.name}: one of {count} shards, without the others; give its path, so that they are found beside it"
        )
    return header


def merge_shards(headers: Iterable[Header]) -> Header:
    """Put the headers of all shards of one model, in order, into one Header; the first gives name and metadata.

    Raises ShardMismatch when ``split.no``, ``split.count`` or ``split.tensors.count`` say that they do not belong
    together, DuplicateTensor when two shards hold the same tensor.
    """
    first: Header | None = None
    tensors: dict[str, TensorInfo] = {}
    names: list[str] = []
    for i, header in enumerate(headers):
        first = first or header
        count = _split_count(first)
        names.append(header.name)
        for key, wanted in zip(_SPLIT, (i, count), strict=True):
            got = header.metadata.get(key)
            if got != wanted or isinstance(got, bool | float):
                said = "is missing" if got is None else f"is {got}"
                raise ShardMismatch(f"{header.name}: {key} {said}, {wanted} expected; all shards must be of one split")
        for name, tensor in header.tensors.items():
            if name in tensors:
                other = names[tensors[name].shard]
                raise DuplicateTensor(
                    f"{header.name}: tensor {shown(name)} is in {other} too; download the shards again"
                )
            tensors[name] = replace(tensor, shard=i) if i else tensor
        if len(tensors) > MAX_TENSORS:
            raise ShardMismatch(f"{first.name}: its shards hold more than {MAX_TENSORS} tensors, which are not read")
    if first is None or len(names) != count:
        raise ShardMismatch(f"{len(names)} shards given, of a model that has another number; give all of one split")
    total = first.metadata.get("split.tensors.count")
    if total != len(tensors):
        raise ShardMismatch(
            f"{first.name}: split.tensors.count is {total}, the {count} shards hold {len(tensors)} tensors; "
            "download the shards again"
        )
    return replace(first, tensors=tensors, shards=count)


def as_shard(header: Header) -> Header:
    """What a split model needs of a shard other than its first: tensors, and which shard it is."""
    return replace(header, metadata={k: v for k, v in header.metadata.items() if k in _SPLIT}, value_types={})


def _read_model(path: str, name: str | None) -> Header:
    header = _read_file(path, name)
    count = _split_count(header)
    if count < 2:
        return header
    paths = shard_paths(path, count, header.name)
    missing = [Path(p).name for p in paths if not os.path.exists(p)]
    if missing:
        some = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise MissingShard(f"{header.name}: {some} missing in the same folder; download all {count} shards")
    return merge_shards(header if p == path else _read_file(p, None) for p in paths)


def shard_paths(path: str, count: int, name: str = "") -> list[str]:
    """The paths of all ``count`` shards, from that of any one. Raises ShardMismatch when it is not named as a shard."""
    match = _SHARD_NAME.fullmatch(path)
    if not match or int(match[3]) != count:
        raise ShardMismatch(
            f"{name or path}: its split.count is {count}, so its name must end in -NNNNN-of-{count:05d}.gguf; "
            "rename the shards back"
        )
    return [f"{match[1]}-{i + 1:05d}-of-{count:05d}.gguf" for i in range(count)]


def _read_file(path: str, name: str | None) -> Header:
    return read_file(path, name or (path if path.isprintable() else repr(path)), parse_header)


def other_shards(path: str) -> list[str]:
    """The paths that a split model's other shards have by the name of one; none for a name that no shard has."""
    match = _SHARD_NAME.fullmatch(path)
    return [p for p in shard_paths(path, int(match[3])) if p != path] if match else []


def read_file(path: str, name: str, read: Callable[[FileIO, str], T]) -> T:
    """What ``read`` makes of the file at ``path``, called ``name`` in messages. Raises SourceError, or as ``read``."""
    try:
        with open_input(path) as file:
            return read(file, name)
    except FileNotFoundError:
        is_repository = re.fullmatch(r"[\w.-]+/[\w.-]+(:[\w.-]+)?", name, re.ASCII) and not name.endswith(".gguf")
        hint = f", or write hf:{name} for a hub's" if is_repository else ""
        raise SourceError(f"{name}: no such file; check the path{hint}") from None
    except IsADirectoryError:
        raise SourceError(f"{name}: is a folder; give a .gguf file in it") from None
    except PermissionError:
        what = "is a folder; give a .gguf file in it" if os.path.isdir(path) else "not readable; check its permissions"
        raise SourceError(f"{name}: {what}") from None
    except (OSError, ValueError) as e:
        raise SourceError(f"{name}: cannot be read: {getattr(e, 'strerror', None) or e}; check the path") from e


def _split_count(header: Header) -> int:
    count = header.metadata.get("split.count", 0)
    if not isinstance(count, int) or isinstance(count, bool):
        raise ShardMismatch(f"{header.name}: split.count is not a number; split the model again")
    return count
