"""Damaged headers: each is read or refused by HeaderError or ShardError, quickly, in bounded memory, in one line."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from pathlib import Path

import pytest

from memplan.errors import HeaderError, ShardError
from memplan.gguf.header import Header
from memplan.gguf.source import Source, read_header
from tests.gguf import writer

pytestmark = pytest.mark.slow

SOUND = {
    "small": writer.small(),
    "v2": writer.header(writer.SMALL_KEYS, writer.SMALL_TENSORS, version=2),
    "shard": writer.shards(2)[1],
}
LIES = (0, 1, 255, 2**16, 2**24, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


def outcome(source: Source) -> Header | str:
    tracemalloc.start()
    began = time.perf_counter()
    try:
        return read_header(source, "bad.gguf")
    except (HeaderError, ShardError) as e:
        message = str(e)
        assert message.isprintable()
        assert message.startswith("bad.gguf: ") or "-of-" in message
        assert len(message) < 500
        return message
    finally:
        taken, peak = time.perf_counter() - began, tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert taken < 2
        assert peak < 8 << 20


def place(data: bytearray, r: random.Random) -> int:
    """A byte to damage, mostly where structure is: the vocabulary makes up most of the rest."""
    n = len(data)
    return r.choice((r.randrange(min(n, 300)), r.randrange(n), n - r.randrange(1, min(n, 1400))))


def flip(data: bytearray, r: random.Random) -> None:
    for _ in range(r.randint(1, 4)):
        data[place(data, r)] = r.choice((0, 1, 127, 128, 255, r.randrange(256)))


def cut(data: bytearray, r: random.Random) -> None:
    del data[place(data, r) :]


def inflate(data: bytearray, r: random.Random) -> None:
    # eight bytes whose upper ones are zero may be a length or a count: make it lie
    places = [i for i in range(8, len(data) - 8) if data[i] and not any(data[i + 2 : i + 8])]
    ends = [i for i in places if i < 400 or i > len(data) - 1500]
    struct.pack_into("<Q", data, r.choice(ends if r.random() < 0.8 else places), r.choice(LIES))


def remove(data: bytearray, r: random.Random) -> None:
    at = place(data, r)
    del data[at : at + r.randint(1, 12)]


def insert(data: bytearray, r: random.Random) -> None:
    at = place(data, r)
    data[at:at] = r.randbytes(r.randint(1, 12))


MUTATIONS = {
    "flip": (flip, 140),
    "cut": (cut, 80),
    "inflate": (inflate, 120),
    "remove": (remove, 50),
    "insert": (insert, 50),
}
CASES = [(kind, seed) for kind, (_, count) in MUTATIONS.items() for seed in range(count)]


def mutated(kind: str, seed: int) -> bytes:
    r = random.Random(f"{kind} {seed}")
    data = bytearray(SOUND[r.choice(list(SOUND))])
    MUTATIONS[kind][0](data, r)
    return bytes(data)


@pytest.mark.parametrize(("kind", "seed"), CASES)
def test_a_mutated_header(kind: str, seed: int) -> None:
    outcome(mutated(kind, seed))


def test_most_mutations_are_noticed() -> None:
    refused = [case for case in CASES if isinstance(outcome(mutated(*case)), str)]
    assert len(CASES) >= 300
    assert len(refused) > len(CASES) * 0.6


@pytest.mark.parametrize("seed", range(40))
def test_a_mutated_header_in_a_large_sparse_file(seed: int, tmp_path: Path) -> None:
    # here a lying length stays within the file, so only the limits catch it
    path = tmp_path / "bad.gguf"
    with path.open("wb") as f:
        f.write(mutated("inflate", 1000 + seed))
        f.truncate(20 << 30)
    outcome(path)


@pytest.mark.parametrize("seed", range(30))
def test_a_mutated_shard(seed: int, tmp_path: Path) -> None:
    r = random.Random(seed)
    shards = [bytearray(s) for s in writer.shards(3)]
    r.choice((flip, cut, inflate, remove))(shards[r.randrange(3)], r)
    paths = [tmp_path / f"m-{i + 1:05d}-of-00003.gguf" for i in range(3)]
    for path, data in zip(paths, shards, strict=True):
        path.write_bytes(data)
    outcome(r.choice(paths))


def test_a_count_that_fits_a_hole_is_walked_no_further_than_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    with path.open("wb") as f:
        f.write(writer.raw([writer.string("a") + struct.pack("<IIQ", 9, 8, 300_000)], [], counts=(0, 9)))
        f.truncate(20 << 30)
    assert isinstance(outcome(path), str)
