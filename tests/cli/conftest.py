from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from memplan.cli import main
from memplan.question import Question
from memplan.result import BufferUse
from tests.estimates import made_up


@dataclass
class Engine:
    """Stands in for memplan.estimator: answers at once, and remembers what it was asked."""

    buffers: dict[str, BufferUse] | None = None
    error: BaseException | None = None
    asked: list[Question] = field(default_factory=list)

    def answer(self, question: Question) -> SimpleNamespace:
        self.asked.append(question)
        if self.error is not None:
            raise self.error
        made = made_up(question.flags, question.rig, self.buffers)
        made = replace(made, notes=question.notes, approximate="; ".join(question.inexact))
        return SimpleNamespace(estimate=made, made=None, elsewhere="")


@pytest.fixture(autouse=True)
def nothing_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No GPU on this machine, nothing in the cache, no token."""
    monkeypatch.setattr("memplan.machine.detect.find_program", lambda name, given="": None)
    monkeypatch.setattr("memplan.machine.detect.nvidia_gpus", lambda host: ([], []))
    monkeypatch.setattr("memplan.machine.detect.amd_gpus", lambda root: [])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("HF_TOKEN", raising=False)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Replaces the real engine for one test."""
    fake = Engine()
    monkeypatch.setattr("memplan.estimator.answer", fake.answer)
    monkeypatch.setattr("memplan.full_estimate.answer", fake.answer)
    monkeypatch.setattr("memplan.sweeping.sweep.answer", fake.answer)
    monkeypatch.setattr("memplan.cli.estimate.advice", lambda question, result: "")
    return fake


def out(capsys: pytest.CaptureFixture[str], *line: str, status: int = 0) -> str:
    """What a line prints, when it says nothing else."""
    assert main(line) == status
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


@pytest.fixture
def wrong(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Sequence[str], str], None]:
    """Holds a wrong line to what each gets: one line that says what is wrong, status 2, and nothing written."""

    def check(line: Sequence[str], said: str) -> None:
        monkeypatch.chdir(tmp_path)
        assert main(line) == 2
        printed, err = capsys.readouterr()
        assert printed == ""
        assert err.startswith("memplan: error: ")
        assert err.count("\n") == 1 and err.endswith("\n")
        assert "fault in memplan" not in err
        assert len(err) < 500
        assert said in err
        assert list(tmp_path.iterdir()) == []

    return check
