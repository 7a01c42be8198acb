"""A model's header as a file of its own: kilobytes in place of gigabytes, to plan elsewhere, or for a report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memplan.gguf.header import Header, SkippedArray, parse_header
from memplan.gguf.raw import Parts, RawHeader, assemble, key_entry, padded, read_raw, tensor_entries
from memplan.gguf.source import as_shard, merge_shards, other_shards, read_file, read_header, shard_paths
from memplan.models.builtin import builtin_header, is_builtin
from memplan.models.open import check_name, check_unchanged, is_remote

if TYPE_CHECKING:
    from memplan.gguf.remote import Access


_Keys = dict[str, bytes | memoryview]


@dataclass(frozen=True, slots=True)
class HeaderFile:
    """A header-only GGUF file. ``parts``: its bytes, one after another.  ``tokens``: how many a vocabulary has.

    ``end``: bytes of the tensors' data, which is not there. Tokens may be left out of the file.
    """

    parts: Parts
    end: int
    tokens: int

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return sum(map(len, self.parts))

    @property
    def size(self) -> int:
        """Bytes of the same file with its tensors' data."""
        return self.nbytes + self.end

    @property
    def data(self) -> bytes:
        """The file's bytes."""
        return b"".join(self.parts)


def header_file(
    model: str, access: Access | None = None, *, vocabulary: bool = True, changes: Sequence[str] = ()
) -> HeaderFile:
    """The header of ``model`` as a file: every byte the original's, up to where its data would start.

    A split model's shards become one file, without ``split.*`` keys and with its tensors laid out anew. Without
    ``vocabulary`` all ``tokenizer.*`` keys go; ``tokenizer.ggml.model`` says none, and ``vocab_size`` how many tokens
    there were, so memplan and llama.cpp still count them. ``changes``: as ``open_model`` has them.

    Raises what ``open_model`` raises.
    """
    raws = raw_headers(model, access, changes)
    first = raws[0]
    header = merge_shards(raw.header for raw in raws) if len(raws) > 1 else first.header
    tensors, end = tensor_entries(list(header.tensors.values()), header.alignment)
    if len(raws) == 1 and vocabulary:
        return HeaderFile(padded([first.data], header.alignment), end, _tokens(header))
    keys: _Keys = {key: entry for key, entry in first.keys.items() if not (len(raws) > 1 and key.startswith("split."))}
    if not vocabulary:
        keys = _without_vocabulary(header, keys)
    parts = assemble(header.version, list(keys.values()), tensors, header.alignment)
    return HeaderFile(parts, end, _tokens(header))


def _tokens(header: Header) -> int:
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    return len(tokens) if isinstance(tokens, tuple | SkippedArray) else 0


def model_files(model: str) -> list[str]:
    """The files that a model is read from, all shards of a split one; none for a built-in model or an address."""
    if is_builtin(model) or is_remote(model):
        return []
    return [model, *other_shards(model)]


def raw_headers(model: str, access: Access | None = None, changes: Sequence[str] = ()) -> list[RawHeader]:
    """The headers of all shards, in order; of others than the first the tensors alone.

    Raises what ``open_model`` raises.
    """
    if is_builtin(model):
        return [_encoded(builtin_header(model, changes))]
    check_unchanged(model, changes)
    if is_remote(model):
        from memplan.gguf.remote import read_remote_raw

        return read_remote_raw(model, access)
    check_name(model)
    if not os.path.isfile(model):  # a pipe can be read once, and has no shards beside it
        return [read_file(model, model, read_raw)]
    header = read_header(model)
    if header.shards < 2:
        return [read_file(model, model, read_raw)]
    first, *others = shard_paths(model, header.shards)
    rest = (as_shard(read_file(path, path, parse_header)) for path in others)
    return [read_file(first, first, read_raw), *(RawHeader(header, b"", {}, b"") for header in rest)]


def _encoded(header: Header) -> RawHeader:
    """The bytes of a header that no file holds."""
    keys = {key: key_entry(key, header.value_types[key], value) for key, value in header.metadata.items()}
    tensors, _ = tensor_entries(list(header.tensors.values()), header.alignment)
    data = b"".join(assemble(header.version, list(keys.values()), tensors, header.alignment))
    return RawHeader(replace(header), data, keys, b"".join(tensors))


def _without_vocabulary(header: Header, keys: _Keys) -> _Keys:
    kept = {key: entry for key, entry in keys.items() if not key.startswith("tokenizer.")}
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    size_key = f"{header.metadata.get('general.architecture', '')}.vocab_size"
    if isinstance(tokens, tuple | SkippedArray):
        kept[size_key] = key_entry(size_key, "u32", len(tokens))
    if any(key.startswith("tokenizer.") for key in keys):
        kept["tokenizer.ggml.model"] = key_entry("tokenizer.ggml.model", "str", "none")
    return kept
