from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from memplan.backends.devices import Rig
from memplan.gguf.header import Header
from memplan.llama.flags import Flags
from memplan.result import BufferUse, Estimate
from tests.estimates import made_up


@dataclass
class Engine:
    """Stands in for memplan.estimator: answers at once, and remembers what it was asked."""

    buffers: dict[str, BufferUse] | None = None
    error: BaseException | None = None
    asked: list[tuple[Header, Flags, Rig, Any, tuple[str, ...]]] = field(default_factory=list)
    more: list[tuple[Any, ...]] = field(default_factory=list)
    """What came after these, for each."""

    def estimate(
        self, header: Header, flags: Flags, rig: Rig, llama: Any = "latest", without_ops: Iterable[str] = (), *more: Any
    ) -> Estimate:
        self.asked.append((header, flags, rig, llama, tuple(without_ops)))
        self.more.append(more)
        if self.error is not None:
            raise self.error
        return made_up(flags, rig, self.buffers)


@pytest.fixture(autouse=True)
def nothing_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No GPU on this machine, nothing in the cache, no token."""
    monkeypatch.setattr("memplan.machine.detect.find_program", lambda name, given="": None)
    monkeypatch.setattr("memplan.machine.detect.nvidia_gpus", lambda host: ([], []))
    monkeypatch.setattr("memplan.machine.detect.amd_gpus", lambda root: [])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Replaces the real engine for one test."""
    fake = Engine()
    module = ModuleType("memplan.estimator")
    module.estimate = fake.estimate  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "memplan.estimator", module)
    monkeypatch.setattr("memplan.cli.estimate.advice", lambda arguments, asked, result: "")
    return fake
