from __future__ import annotations

import io
import sys
import time

import pytest

from memplan.cli.waiting import working


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_work_shows_on_a_terminal_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr("memplan.cli.terminal.PATIENCE", 0.01)
    with working("planning"):
        until = time.monotonic() + 20
        while "planning: 0 s" not in stream.getvalue() and time.monotonic() < until:
            time.sleep(0.01)
    assert "planning: 0 s" in stream.getvalue() and stream.getvalue().endswith("\r\x1b[K")


def test_short_work_and_other_streams_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stderr", stream)
        with working("planning"):
            pass
        assert stream.getvalue() == ""
