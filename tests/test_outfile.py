from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from memplan.errors import OutputError
from memplan.outfile import write_atomically, write_output


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_output(str(path), b"one")
    write_output(str(path), b"two", size=100)
    assert path.read_bytes() == b"two" + b"\0" * 97
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_permissions_are_the_users_own(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_output(str(tmp_path / "f"), b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o640


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "f")
    write_output(str(tmp_path / "link"), b"new")
    assert (tmp_path / "f").read_bytes() == b"new" and (tmp_path / "link").is_symlink()


def test_nothing_is_left_of_an_interrupted_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(handle: int) -> None:
        raise KeyboardInterrupt

    (tmp_path / "f").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "f", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["f"] and (tmp_path / "f").read_bytes() == b"old"


@pytest.mark.parametrize("path", ["", "/", "/dev/null", "nul\0", "absent/folder/f", "x" * 300])
def test_what_cannot_be_written(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutputError) as caught:
        write_output(path, b"x")
    assert str(caught.value).isprintable()
    assert list(tmp_path.iterdir()) == []
