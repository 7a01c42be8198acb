from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from memplan.cli import main
from memplan.errors import OutputError
from memplan.gguf.raw import HEADER
from memplan.outfile import Kind, check_output, write_atomically, write_output
from tests.gguf import writer

pytestmark = pytest.mark.slow

ANY = Kind("file at all", lambda file: file.read(4) != b"GGUF")
"""As if everything but a model were memplan's."""


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_output(str(path), b"one", ANY)
    write_output(str(path), b"two", ANY, size=100)
    assert path.read_bytes() == b"two" + b"\0" * 97
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_permissions_are_the_users_own(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_output(str(tmp_path / "f"), b"", ANY)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o640


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "f")
    write_output(str(tmp_path / "link"), b"new", ANY)
    assert (tmp_path / "f").read_bytes() == b"new" and (tmp_path / "link").is_symlink()


def test_nothing_is_left_of_an_interrupted_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(handle: int) -> None:
        raise KeyboardInterrupt

    (tmp_path / "f").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "f", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["f"] and (tmp_path / "f").read_bytes() == b"old"


@pytest.mark.parametrize("path", ["", "-", "/", "/dev/null", "nul\0", "absent/folder/f", "x" * 300])
def test_what_cannot_be_written(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutputError) as caught:
        write_output(path, b"x", ANY, force=True)
    assert str(caught.value).isprintable()
    assert list(tmp_path.iterdir()) == []


def test_a_check_leaves_nothing_behind(tmp_path: Path) -> None:
    check_output(str(tmp_path / "f"), ANY)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["", "/", "/dev/null", "nul\0", "absent/folder/f", "x" * 300, "f/", "-"])
def test_what_a_check_refuses(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutputError):
        check_output(path, ANY)


def test_a_folder_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**_: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkdtemp", refused)  # root may write anywhere
    with pytest.raises(OutputError, match="Permission denied"):
        check_output(str(tmp_path / "f"), ANY)


@pytest.mark.parametrize("link", ["", "symlink", "hard link", "folder"])
def test_an_input_is_never_written_over(link: str, tmp_path: Path) -> None:
    path = other = tmp_path / "in"
    path.write_bytes(b"input")
    if link == "symlink":
        other = tmp_path / "other"
        other.symlink_to(path)
    elif link == "hard link":
        other = tmp_path / "other"
        os.link(path, other)
    elif link:
        (tmp_path / "folder").symlink_to(tmp_path)
        other = tmp_path / "folder" / "in"
    with pytest.raises(OutputError, match="is the file that is read"):
        write_output(str(other), b"out", ANY, inputs=["absent", str(path)], force=True)
    assert path.read_bytes() == b"input"


def model(path: Path, data: bytes = b"", size: int = 0) -> bytes:
    """Write a model: a header, ``data`` after it, and a hole to ``size``."""
    with path.open("wb") as file:
        file.write(writer.small() + data)
        if size:
            file.truncate(size)
        file.flush()
        os.fsync(file.fileno())
    return path.read_bytes()


@pytest.mark.parametrize("kind", [ANY, HEADER])
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("data", [b"x", b"\0" * 100_000 + b"x", b"\0" * 40_000_000, b"damaged"])
def test_a_model_is_never_written_over(kind: Kind, force: bool, data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    before = model(path, data)
    if data == b"damaged":
        before = before[:100]
        path.write_bytes(before)
    with pytest.raises(OutputError, match="a model is there already"):
        write_output(str(path), b"new", kind, force=force)
    assert path.read_bytes() == before


@pytest.mark.parametrize(("data", "size"), [(b"", 0), (b"\0" * 32, 0), (b"", 10_000_000)])
def test_a_header_may_be_written_over_by_another(data: bytes, size: int, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    model(path, data, size)
    with pytest.raises(OutputError, match="a model is there already"):
        write_output(str(path), b"rig", ANY)
    write_output(str(path), b"new", HEADER)
    assert path.read_bytes() == b"new"


def test_no_command_writes_over_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / f"m-0000{i + 1}-of-00002.gguf" for i in range(2)]
    for path, data in zip(paths, writer.shards(2), strict=True):
        path.write_bytes(data + b"weights")
    picture = tmp_path / "link.png"
    picture.symlink_to(paths[0])
    before = [path.read_bytes() for path in paths]
    lines = [
        ["header", str(paths[0]), "-o", str(paths[0])],
        ["header", str(paths[0]), "-o", str(paths[1])],
        ["header", str(paths[1]), "-o", str(picture)],
        ["header", "deepseek-v4-flash", "-o", str(paths[0])],
        ["devices", "-o", str(paths[0])],
        ["plot", "deepseek-v4-flash", "--gpu", "RTX 3090", "-o", str(picture)],
        ["explain", "deepseek-v4-flash", "--gpu", "RTX 3090", "--timeline", str(picture)],
    ]
    for line in lines:
        assert main(line) == 2, line
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1
        assert "file that is read" in err or "a model is there already" in err, line
        assert [path.read_bytes() for path in paths] == before


OTHERS = {
    "notes": b"what I found out\n",
    "gguf without data": writer.raw([writer.key("general.architecture", "str", "llama")], []),
    "own toml rig": b'# my machine\nhost_mib = 64000\n\n[[gpus]]\nname = "RTX 3090"\n',
    "own json rig": b'{"gpus": [{"name": "RTX 3090"}]}',
    "photo": b"\x89PNG\r\n\x1a\n" + bytes(1000),
}


@pytest.mark.parametrize("other", OTHERS)
def test_no_command_writes_over_what_it_did_not_write(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("memplan.machine.detect.find_program", lambda name, given="": None)
    path = tmp_path / "f.png"
    path.write_bytes(OTHERS[other])
    model = ["deepseek-v4-flash"]
    plot = ["plot", *model, "--gpu", "RTX 3090", "-np", "1", "-cmoe", "--over", "ctx=4096,8192", "-o"]
    explain = ["explain", *model, "--gpu", "RTX 3090", "-c", "4096", "-np", "1", "-cmoe", "--timeline"]
    for line in (["header", *model, "-o"], ["devices", "-o"], plot, explain):
        assert main([*line, str(path)]) == 2, line
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1
        assert "--force" in err or "a model is there already" in err
        assert path.read_bytes() == OTHERS[other]
    assert os.listdir(tmp_path) == ["f.png"]


def test_every_command_writes_again_over_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("memplan.machine.detect.find_program", lambda name, given="": None)
    model = ["deepseek-v4-flash"]
    plot = ["plot", *model, "--gpu", "RTX 3090", "-np", "1", "-cmoe", "--over", "ctx=4096,8192", "-o"]
    lines = [["header", *model, "-o", "h.gguf"], ["header", *model, "--sparse", "-o", "s.gguf"]]
    lines += [["devices", "-o", name] for name in ("r.toml", "r.json")]
    lines += [[*plot, f"p.{ending}"] for ending in ("png", "svg", "pdf")]
    monkeypatch.chdir(tmp_path)
    for line in lines:
        assert [main(line), main(line)] == [0, 0], (line, capsys.readouterr().err)
        before = (tmp_path / line[-1]).stat()
        (tmp_path / line[-1]).write_bytes(b"notes")
        assert main(line) == 2
        assert main([*line, "--force"]) == 0
        assert (tmp_path / line[-1]).stat().st_size == before.st_size
    for line in lines:
        (tmp_path / line[-1]).write_bytes(b"")  # nothing is lost
        assert main(line) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-o", "-"], "not stdout"),
        (["-o", "absent/f"], "no folder 'absent'"),
        (["-o", "there/"], "not a regular file"),
        (["-o", "there"], "not a regular file"),
        (["-o", "a", "-o", "b"], "given twice"),
        (["-o", "a", "--output", "b"], "given twice"),
        (["-o"], "needs a value"),
        (["-o", ""], ""),
        (["--force"], ""),
    ],
)
@pytest.mark.parametrize("command", ["header", "devices", "plot"])
def test_files_that_cannot_be_meant(
    command: str, words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    ending = ".png" if command == "plot" else ""
    (tmp_path / f"there{ending}").mkdir()
    monkeypatch.chdir(tmp_path)
    words = [word + ending if word.strip("-/") and word[0] != "-" and word[-1] != "/" else word for word in words]
    model = {"header": ["deepseek-v4-flash"], "plot": ["deepseek-v4-flash", "--gpu", "RTX 3090"]}.get(command, [])
    assert main([command, *model, *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert said in err or "a picture's name ends in" in err, err
    assert os.listdir(tmp_path) == [f"there{ending}"]


def test_a_figure_that_cannot_be_written_costs_no_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("memplan.cli.sweep.read_question", None)
    monkeypatch.setattr("memplan.cli.explain.read_question", None)
    for name in ("x" * 300 + ".png", "absent/f.png"):
        for line in (["plot", "m.gguf", "-o"], ["explain", "m.gguf", "--timeline"]):
            assert main([*line, str(tmp_path / name)]) == 2
            assert "fault" not in capsys.readouterr().err
