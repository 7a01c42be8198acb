"""How the network may be used, and what of that is shown."""

from __future__ import annotations

import io
import sys

import pytest

from memplan.cli import asked, main
from tests.gguf import writer
from tests.gguf.server import running


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    wiped: list[object] = []
    monkeypatch.setattr("memplan.cli.asked.time.monotonic", lambda: now[0])
    monkeypatch.setattr("atexit.register", wiped.append)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    access = asked.access_for("https://example.org/m.gguf", offline=False, cache=True)
    assert access is not None and access.progress is not None and access.warn is asked.warn
    access.progress("a", 1000)
    assert terminal.getvalue() == ""
    now[0] = 1.0
    access.progress("a", 2_000_000)
    access.progress("b", 9_000_000)  # too soon after the last
    now[0] = 2.0
    access.progress("b", 500_000)
    shown = terminal.getvalue().split("\r\x1b[K")[1:]
    assert shown == ["reading headers: 2.0 MB", "reading headers: 2.5 MB, 2 files"]
    assert len(wiped) == 1


def test_no_progress_without_a_terminal_and_no_access_without_an_address() -> None:
    access = asked.access_for("hf:owner/repo", offline=True, cache=False)
    assert access is not None and access.progress is None and (access.offline, access.cache) == (True, False)
    assert asked.access_for("model.gguf", offline=True, cache=True) is None


def test_warnings_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    asked.warn("two\nlines")
    assert capsys.readouterr().err == "memplan: warning: two lines\n"


def test_a_header_through_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: object) -> None:
    with running() as server:
        server.files["/m.gguf"] = writer.small()
        line = ["header", f"{server.address}/m.gguf", "-o", f"{tmp_path}/h.gguf"]
        assert main(line) == 0 and main(line) == 0 and len(server.log) == 1
        assert main([*line, "--no-cache"]) == 0 and len(server.log) == 2
        assert main([*line, "--offline"]) == 0 and len(server.log) == 2
        capsys.readouterr()
        assert main([*line, "--offline", "--no-cache"]) == 2
        assert "not in memplan's cache" in capsys.readouterr().err
        assert main(["estimate", f"{server.address}/absent.gguf", "--no-gpu"]) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and "not found on the server" in err
