"""``--override-kv``: metadata as llama.cpp reads it, given the overrides.

Follows src/llama-model-loader.cpp (``GKV::try_override``, ``validate_override``, the constructor's ``insert``), v0.5.0:
the first override of a key holds, also for a key that the file lacks; one of another kind than the key's is ignored,
and so is one of an array.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memplan.gguf.header import Header
from memplan.llama.flag_values import KvOverride

_TYPES = {bool: "bool", int: "u32", float: "f32", str: "str"}


def override_metadata(header: Header, overrides: Sequence[KvOverride]) -> Header:
    """``header`` with the values that ``--override-kv`` replaces; the same object when there are none."""
    metadata = dict(header.metadata)
    types = dict(header.value_types)
    for key, value in reversed(overrides):
        if key not in header.metadata:
            types[key] = _TYPES[type(value)]
        elif type(header.metadata[key]) is not type(value):
            continue
        metadata[key] = value
    return replace(header, metadata=metadata, value_types=types) if overrides else header
