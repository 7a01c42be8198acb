"""Best fit: where tensors go in one buffer, and that no two of them overlap."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.errors import BadHyperParameter
from memplan.ggml.backend import UNLIMITED
from memplan.ggml.tallocr import MAX_CHUNKS, Address, DynTallocr, OutOfFreeBlocksError


def test_a_hole_is_filled_before_the_end_grows() -> None:
    t = DynTallocr(UNLIMITED)
    first, _second = t.alloc(256), t.alloc(128)
    t.free(first, 256)
    assert t.alloc(128) == (0, 0)
    assert t.alloc(128) == (0, 128)
    assert t.total == 384


def test_the_tightest_hole_wins_and_of_equal_ones_the_last() -> None:
    t = DynTallocr(UNLIMITED)
    places = [t.alloc(size) for size in (384, 128, 256, 128, 256, 128)]
    for i, size in ((0, 384), (2, 256), (4, 256)):
        t.free(places[i], size)
    assert t.alloc(256) == places[4]
    assert t.alloc(128) == places[2]


def test_holes_join() -> None:
    t = DynTallocr(UNLIMITED)
    places = [t.alloc(128) for _ in range(4)]
    t.free(places[0], 128)
    t.free(places[2], 128)
    t.free(places[1], 128)
    assert t.alloc(384) == (0, 0)


def test_a_full_chunk_opens_another() -> None:
    t = DynTallocr(1024)
    assert t.alloc(768) == (0, 0)
    assert t.alloc(512) == (1, 0)
    assert t.alloc(256) == (0, 768)
    assert t.total == 1024 + 512


def test_what_is_larger_than_a_chunk_gets_one_of_its_own() -> None:
    t = DynTallocr(1024)
    assert t.alloc(4096) == (0, 0)
    assert t.total == 4096


def test_the_last_chunk_takes_all() -> None:
    t = DynTallocr(128)
    places = [t.alloc(128) for _ in range(MAX_CHUNKS + 3)]
    assert [chunk for chunk, _ in places[-4:]] == [MAX_CHUNKS - 1] * 4


def test_too_many_holes_are_an_abort() -> None:
    t = DynTallocr(UNLIMITED)
    places = [t.alloc(128) for _ in range(600)]
    with pytest.raises(OutOfFreeBlocksError, match="out of free blocks"):
        for place in places[::2]:
            t.free(place, 128)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 9)), max_size=120), st.sampled_from([UNLIMITED, 2048]))
def test_live_tensors_never_overlap(moves: list[tuple[int, int]], chunk: int) -> None:
    t = DynTallocr(chunk)
    live: list[tuple[Address, int]] = []
    for blocks, choice in moves:
        if choice > 5 and live:
            place, size = live.pop(choice % len(live))
            t.free(place, size)
        else:
            live.append((t.alloc(blocks * 128), blocks * 128))
        taken = sorted((place[0], place[1], size) for place, size in live)
        for a, b in itertools.pairwise(taken):
            assert a[0] != b[0] or a[1] + a[2] <= b[1]
    for place, size in live:
        t.free(place, size)
    # all that was taken is one hole again, in every chunk
    assert all(c.offsets == [0] for c in t.chunks)


def test_a_tensor_of_no_bytes_leaves_a_hole_of_none() -> None:
    """As ggml does: once it lies within another tensor, what is freed around it is not joined over it."""
    t = DynTallocr(UNLIMITED)
    first, _second = t.alloc(256), t.alloc(128)
    t.free(first, 256)
    empty = t.alloc(0)
    assert empty == (0, 0)
    around = t.alloc(256)
    assert around == (0, 0)
    t.free(empty, 0)
    assert (t.chunks[0].offsets, t.chunks[0].sizes) == ([0, 384], [0, UNLIMITED - 384])
    t.free(around, 256)
    assert (t.chunks[0].offsets, t.chunks[0].sizes) == ([0, 384], [256, UNLIMITED - 384])


def test_a_hole_of_none_keeps_its_neighbours_apart() -> None:
    t = DynTallocr(UNLIMITED)
    a, b, c = t.alloc(128), t.alloc(128), t.alloc(128)
    t.free(b, 128)
    empty = t.alloc(0)
    again = t.alloc(128)
    assert empty == again == b
    t.free(empty, 0)
    t.free(c, 128)  # joined with the end
    t.free(again, 128)
    assert t.chunks[0].offsets == [128]
    t.free(a, 128)
    assert (t.chunks[0].offsets, t.chunks[0].sizes) == ([0], [UNLIMITED])
    assert t.total == 384


def test_what_62_bits_cannot_count() -> None:
    talloc = DynTallocr(UNLIMITED)
    talloc.alloc(UNLIMITED - 100)
    with pytest.raises(BadHyperParameter, match="more bytes than 62 bits"):
        talloc.alloc(200)
    small = DynTallocr(1 << 61)
    for _ in range(3):
        small.alloc(1 << 61)
    with pytest.raises(BadHyperParameter, match="more bytes than 62 bits"):
        _ = small.total
