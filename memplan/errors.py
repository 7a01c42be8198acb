"""Everything memplan raises on purpose: one tree, one clear line a message.

::

    MemplanError
    ├── SourceError                 a file that cannot be opened or read
    │   └── RemoteError             one behind an address that cannot be fetched
    ├── HeaderError                 a GGUF header that is wrong
    │   ├── BadMagic
    │   ├── UnsupportedVersion
    │   ├── UnsupportedByteOrder
    │   ├── TruncatedHeader
    │   ├── BadLength
    │   ├── BadValue
    │   ├── DuplicateKey
    │   ├── DuplicateTensor
    │   ├── UnknownTensorType
    │   └── UnknownValueType
    ├── ShardError                  a split model whose parts do not belong together
    │   ├── MissingShard
    │   └── ShardMismatch
    ├── ModelError                  a sound header of a model that llama.cpp, or memplan, cannot load
    │   ├── UnsupportedArchitecture
    │   ├── MissingKey
    │   ├── BadHyperParameter
    │   ├── MissingTensor
    │   └── BadTensorShape
    ├── UnknownModel                neither a file nor a built-in model
    ├── FlagError                   a llama-server flag that is unknown or has a bad value
    ├── RigError                    a GPU or rig description that cannot be used
    ├── UnknownRelease              a llama.cpp release that is not modelled
    ├── LogError                    a log in which llama.cpp loads no model
    ├── ProgramError                a program that memplan was to run, or its answer
    └── OutputError                 a file that cannot be written

A message says what is wrong, where (file, byte, key, tensor or flag), and how to fix it, in one line. Catch a leaf, a
family, or MemplanError. What llama.cpp itself would refuse is no exception: it is part of an estimate's answer.
"""

from __future__ import annotations

import re
from typing import Final

# an address: its user and password, what may be shown, its query and fragment; quotes end it, as messages quote
_ADDRESS: Final = re.compile(r"""(?<=://)(?:[^\s/?#'"]*@)?(?P<open>[^\s?#'"]*)(?:[?#][^\s'"]*)?""")


def without_secrets(text: str) -> str:
    """``text`` with addresses that have neither user, password, query nor fragment, which may be secret."""
    return _ADDRESS.sub(r"\g<open>", text) if "://" in text else text


class MemplanError(Exception):
    """The root: catch this to catch all that memplan raises on purpose. No secret of an address is in its words."""

    def __str__(self) -> str:
        return without_secrets(super().__str__())


class SourceError(MemplanError):
    """A model file does not exist, is a folder, or cannot be read."""


class RemoteError(SourceError):
    """A model's address is wrong, its server refuses or cannot be reached, or what it sends cannot be used."""


class HeaderError(MemplanError):
    """A GGUF header is wrong: not GGUF at all, damaged, cut short, or lying about its own lengths."""


class BadMagic(HeaderError):
    """The first four bytes are not GGUF."""


class UnsupportedVersion(HeaderError):
    """The GGUF version is not one that llama.cpp loads (2 or 3)."""


class UnsupportedByteOrder(HeaderError):
    """The header was written for big-endian machines."""


class TruncatedHeader(HeaderError):
    """The bytes end before the header does."""


class BadLength(HeaderError):
    """A length or count says more than the rest of the file, or any sensible header, can hold."""


class BadValue(HeaderError):
    """A name, value, shape, alignment or offset is not one that ggml accepts."""


class DuplicateKey(HeaderError):
    """A metadata key occurs twice."""


class DuplicateTensor(HeaderError):
    """A tensor name occurs twice, in one file or in two shards of a model."""


class UnknownTensorType(HeaderError):
    """A tensor's ggml type was removed from ggml or is newer than this version of memplan."""


class UnknownValueType(HeaderError):
    """A metadata value's type is none of GGUF's thirteen."""


class ShardError(MemplanError):
    """The shards of a split model cannot be put together."""


class MissingShard(ShardError):
    """One or more shards of a split model are not beside the one given."""


class ShardMismatch(ShardError):
    """A shard's name or its split.* keys contradict the model it is to be part of."""


class ModelError(MemplanError):
    """A header is sound, but the model in it cannot be loaded."""


class UnsupportedArchitecture(ModelError):
    """The model's architecture is not one that memplan models."""


class MissingKey(ModelError):
    """A metadata key that the architecture requires is absent."""


class BadHyperParameter(ModelError):
    """A hyper-parameter has a type or value that the architecture does not allow."""


class MissingTensor(ModelError):
    """A tensor that the architecture requires is absent."""


class BadTensorShape(ModelError):
    """A tensor's shape is not the one that the hyper-parameters imply."""


class UnknownModel(MemplanError):
    """A model name is neither a file nor a built-in model; the message lists the built-in ones."""


class FlagError(MemplanError):
    """A llama-server flag is unknown, lacks its value, or has one that llama-server would not take."""


class RigError(MemplanError):
    """A GPU or rig description is malformed, or names a card that is not known."""


class UnknownRelease(MemplanError):
    """A llama.cpp release or build is not modelled; the message says which are."""


class LogError(MemplanError):
    """A log cannot be read, or llama.cpp loads no model in it."""


class ProgramError(MemplanError):
    """A llama.cpp program is not found, fails, or answers what is not understood."""


class OutputError(MemplanError):
    """A file cannot be written."""


def printable(text: str) -> str:
    """``text`` with a space for what is no visible character: line ends, control characters, marks of direction.

    Names come from files, logs, drivers and servers; a terminal obeys what it is sent.
    """
    return text if text.isprintable() else "".join(char if char.isprintable() else " " for char in text)


def shown(text: str, limit: int = 80) -> str:
    """``text`` quoted for an error message: one line, control characters escaped, cut at ``limit`` characters."""
    text = without_secrets(text)
    return repr(text if len(text) <= limit else text[:limit] + "...")
