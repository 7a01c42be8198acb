from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from memplan.cli.diagnose import _chunks
from memplan.errors import LogError, MemplanError, RigError, SourceError
from memplan.gguf.source import read_header
from memplan.infile import open_input
from memplan.models.raw import header_file
from memplan.rig_file import load_rig
from tests.gguf import writer

ROOT = Path(__file__).parents[1]
RIG = b'[[gpus]]\nname = "RTX 3090"\n'
LOG = b"a line\n" * 100_000

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")]


@pytest.fixture
def fifo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("memplan.infile.PATIENCE", 0.1)
    path = str(tmp_path / "pipe")
    os.mkfifo(path)
    return path


READERS: list[tuple[Callable[[str], object], type[MemplanError], bytes]] = [
    (read_header, SourceError, writer.small()),
    (header_file, SourceError, writer.small()),
    (load_rig, RigError, RIG),
    (lambda path: b"".join(_chunks(path)), LogError, LOG),
]


@pytest.mark.parametrize(("read", "error", "data"), READERS)
def test_a_pipe_that_nobody_writes_to(
    read: Callable[[str], object], error: type[MemplanError], data: bytes, fifo: str
) -> None:
    with pytest.raises(error, match=r"pipe.*a named pipe that nobody writes to"):
        read(fifo)


@pytest.mark.parametrize(("read", "error", "data"), READERS)
def test_a_pipe_with_data(
    read: Callable[[str], object], error: type[MemplanError], data: bytes, fifo: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(data)
    writing = threading.Thread(target=lambda: Path(fifo).write_bytes(data))
    writing.start()
    piped, plain = read(fifo), read(str(tmp_path / "file"))
    writing.join()
    assert str(piped).replace("/pipe'", "/file'") == str(plain)


def test_the_waiting_thread_ends(fifo: str) -> None:
    before = threading.active_count()
    with pytest.raises(OSError, match="nobody writes"):
        open_input(fifo)
    for thread in threading.enumerate():
        if thread.daemon:
            thread.join(5)
    assert threading.active_count() == before


@pytest.mark.parametrize("way", ["/dev/stdin <<< {}", "/dev/stdin < <(printf %s {})", "<(printf %s {})"])
def test_a_shells_pipes(way: str) -> None:
    rig = '\'{"gpus": [], "host_mib": 4096}\''
    line = f"'{sys.executable}' -m memplan estimate deepseek-v4-flash -c 4096 -np 1 --rig " + way.replace("{}", rig)
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")


def test_stdin_is_closed() -> None:
    line = f"'{sys.executable}' -m memplan diagnose - <&-"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "stdin is closed" in done.stderr
