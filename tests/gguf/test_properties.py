"""Whatever header is written reads back equal."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan.gguf.header import ARRAY_LIMIT, Header, SkippedArray
from memplan.gguf.source import read_header
from tests.gguf import writer
from tests.gguf.writer import CODES, TENSOR_TYPES, Key, Tensor

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
INTEGERS = {k: struct.calcsize("<" + c) * 8 for k, c in CODES.items() if k[0] in "ui"}


def scalars(kind: str) -> st.SearchStrategy[Any]:
    if kind in INTEGERS:
        bits = INTEGERS[kind]
        low, high = (0, 2**bits - 1) if kind[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return st.integers(low, high)
    if kind == "bool":
        return st.booleans()
    if kind == "str":
        return TEXT
    return st.floats(allow_nan=False, width=32 if kind == "f32" else 64)


def values(kind: str) -> st.SearchStrategy[tuple[str, Any]]:
    one = scalars(kind).map(lambda v: (kind, v))
    array = st.lists(scalars(kind), max_size=6)
    long = scalars(kind).map(lambda v: [v] * (ARRAY_LIMIT + 1))
    return one | (array | long).map(lambda v: (f"arr[{kind}]", v))


KINDS = st.sampled_from(sorted(writer.VALUE_TYPES))
NAMES = TEXT.filter(lambda name: 0 < len(name.encode()) < 64)
KEYS: st.SearchStrategy[list[Key]] = st.dictionaries(
    NAMES.filter(lambda k: k != "general.alignment" and not k.startswith("split.")), KINDS.flatmap(values), max_size=8
).map(lambda d: [(k, *v) for k, v in d.items()])


@st.composite
def shapes(draw: st.DrawFn) -> tuple[tuple[int, ...], str]:
    name = draw(st.sampled_from(sorted(TENSOR_TYPES)))
    rows = draw(st.lists(st.integers(0, 1000), max_size=3))
    return (draw(st.integers(0, 100)) * TENSOR_TYPES[name][1], *rows), name


TENSORS: st.SearchStrategy[list[Tensor]] = st.dictionaries(NAMES, shapes(), max_size=8).map(
    lambda d: [(k, *v) for k, v in d.items()]
)


def kept(value: Any, kind: str) -> object:
    if not isinstance(value, list):
        return value
    return tuple(value) if len(value) <= ARRAY_LIMIT else SkippedArray(kind[4:-1], len(value))


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(KEYS, TENSORS, st.sampled_from([2, 3]), st.sampled_from([1, 8, 32, 4096]))
def test_round_trip(keys: list[Key], tensors: list[Tensor], version: int, alignment: int) -> None:
    every: list[Key] = [*keys, ("general.alignment", "u32", alignment)]
    h = read_header(writer.header(every, tensors, version, alignment))
    assert (h.version, h.alignment) == (version, alignment)
    assert list(h.metadata.items()) == [(k, kept(v, kind)) for k, kind, v in every]
    assert h.value_types == {k: kind for k, kind, _ in every}
    assert [(t.name, t.shape, t.type.name) for t in h.tensors.values()] == tensors
    check_offsets(h)


def check_offsets(h: Header) -> None:
    end = 0
    for t in h.tensors.values():
        assert t.offset == end
        assert t.offset % h.alignment == 0
        end += t.nbytes + -t.nbytes % h.alignment


@settings(deadline=None, max_examples=50)
@given(KEYS, TENSORS)
def test_any_prefix_is_a_truncated_header(keys: list[Key], tensors: list[Tensor]) -> None:
    from memplan.errors import TruncatedHeader

    data = writer.header(keys, tensors)
    for end in {*range(0, min(len(data), 200), 7), *range(0, len(data), len(data) // 40 + 1)}:
        try:
            read_header(data[:end])
        except TruncatedHeader:
            continue
        raise AssertionError(f"{end} of {len(data)} bytes read as a whole header")
