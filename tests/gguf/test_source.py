from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from memplan.errors import DuplicateTensor, MissingShard, ShardMismatch, SourceError, TruncatedHeader
from memplan.gguf.header import Header, parse_header
from memplan.gguf.source import merge_shards, read_header
from tests.gguf import writer
from tests.gguf.writer import Key, header


def split(folder: Path, count: int = 3) -> list[Path]:
    paths = [folder / f"m-{i + 1:05d}-of-{count:05d}.gguf" for i in range(count)]
    for path, data in zip(paths, writer.shards(count), strict=True):
        path.write_bytes(data)
    return paths


def test_a_path(tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    path.write_bytes(writer.small())
    h = read_header(path)
    assert h == read_header(str(path))
    assert h.name == str(path)
    assert read_header(path, name="it").name == "it"
    with path.open("rb") as f:
        assert read_header(f) == h


def test_a_file_with_data_is_read_no_further_than_its_header(tmp_path: Path) -> None:
    path = tmp_path / "sparse.gguf"
    path.write_bytes(writer.small())
    os.truncate(path, 50 << 30)
    assert read_header(path).tensors == read_header(writer.small()).tensors


@pytest.mark.parametrize("given", [0, 1, 2])
def test_any_shard_finds_the_others(tmp_path: Path, given: int) -> None:
    h = read_header(split(tmp_path)[given])
    whole = read_header(writer.small())
    assert h.shards == 3
    assert list(h.tensors) == list(whole.tensors)
    assert {t.shard for t in h.tensors.values()} == {0, 1, 2}
    assert h.nbytes == whole.nbytes
    assert h.metadata["general.architecture"] == "deepseek4"
    assert h.name.endswith("m-00001-of-00003.gguf")
    assert h.tensors["blk.6.ffn_up_exps.weight"].offset == 0


def test_missing_shards_are_named(tmp_path: Path) -> None:
    paths = split(tmp_path, 6)
    paths[1].unlink()
    with pytest.raises(MissingShard, match=r"m-00002-of-00006\.gguf missing in the same folder; download all 6"):
        read_header(paths[3])
    for path in (paths[0], paths[2], paths[4]):
        path.unlink()
    with pytest.raises(MissingShard, match=r"m-00001.*, m-00002.*, m-00003.* and 1 more missing"):
        read_header(paths[3])


def test_a_shard_without_its_name(tmp_path: Path) -> None:
    paths = split(tmp_path)
    with pytest.raises(ShardMismatch, match=r"must end in -NNNNN-of-00003\.gguf"):
        read_header(paths[0].rename(tmp_path / "renamed.gguf"))
    with pytest.raises(ShardMismatch, match="of-00003"):
        read_header(paths[1].rename(tmp_path / "m-00002-of-00004.gguf"))


@pytest.mark.parametrize("source", [writer.shards()[1], io.BytesIO(writer.shards()[0])], ids=["bytes", "file"])
def test_a_shard_without_a_place(source: bytes | io.BytesIO) -> None:
    with pytest.raises(MissingShard, match=r"of 3.*give its path"):
        read_header(source)


def test_shards_in_each_others_place(tmp_path: Path) -> None:
    paths = split(tmp_path)
    paths[1].write_bytes(writer.shards()[2])
    with pytest.raises(ShardMismatch, match=r"m-00002-of-00003\.gguf: split\.no is 2, 1 expected"):
        read_header(paths[0])


def shard(no: int, count: int, total: int, *names: str) -> bytes:
    keys: list[Key] = [
        ("split.no", "u16", no),
        ("split.count", "u16", count),
        ("split.tensors.count", "i32", total),
    ]
    return header(keys, [(n, (32,), "f32") for n in names])


def test_shards_of_different_splits() -> None:
    first, other = read_one(shard(0, 2, 2, "a")), read_one(shard(1, 3, 2, "b"))
    with pytest.raises(ShardMismatch, match=r"split\.count is 3, 2 expected"):
        merge_shards([first, other])
    plain = read_one(header([], [("b", (32,), "f32")]))
    with pytest.raises(ShardMismatch, match=r"split\.no is missing, 1 expected"):
        merge_shards([first, plain])
    with pytest.raises(ShardMismatch, match=r"split\.tensors\.count is 2, the 2 shards hold 3"):
        merge_shards([first, read_one(shard(1, 2, 2, "b", "c"))])
    with pytest.raises(DuplicateTensor, match="'a' is in"):
        merge_shards([first, read_one(shard(1, 2, 2, "a"))])


def read_one(data: bytes) -> Header:
    return parse_header(io.BytesIO(data), "shard")


def test_split_count_that_is_no_count(tmp_path: Path) -> None:
    with pytest.raises(ShardMismatch, match="not a number"):
        read_header(header([("split.count", "str", "3")]))
    one = header([("split.count", "u16", 1), ("split.no", "u16", 0)], [("a", (32,), "f32")])
    path = tmp_path / "m-00001-of-00001.gguf"
    path.write_bytes(one)
    assert read_header(path).shards == 1
    huge = tmp_path / "m-00001-of-00002.gguf"
    huge.write_bytes(header([("split.count", "u64", 2**60)]))
    with pytest.raises(ShardMismatch):
        read_header(huge)


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    paths = split(tmp_path)
    paths[2].write_bytes(paths[2].read_bytes()[:-3])
    with pytest.raises(TruncatedHeader, match="m-00003-of-00003"):
        read_header(paths[0])


def test_sources_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such file"):
        read_header(tmp_path / "absent.gguf")
    with pytest.raises(SourceError, match="is a folder"):
        read_header(tmp_path)
    with pytest.raises(SourceError, match="cannot be read"):
        read_header("a\0b.gguf")
    with pytest.raises(SourceError, match="from int"):
        read_header(5)  # type: ignore[arg-type]
    with pytest.raises(SourceError, match=r"^'.*new\\nline.gguf': no such file; check the path$"):
        read_header(tmp_path / "new\nline.gguf")
    with pytest.raises(SourceError, match="cannot be read"):
        read_header("x" * 5000)


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="permissions do not bind here")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "secret.gguf"
    path.write_bytes(writer.small())
    path.chmod(0)
    with pytest.raises(SourceError, match="check its permissions"):
        read_header(path)
