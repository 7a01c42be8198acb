from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

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
