"""One estimate for every combination of the axes' values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from memplan.backends.devices import Rig
from memplan.errors import FlagError, shown
from memplan.estimator import answer
from memplan.garbage import gc_paused
from memplan.gguf.header import Header
from memplan.llama.flags import parse_flags
from memplan.models.paths import path_ways
from memplan.models.registry import architecture
from memplan.question import Question
from memplan.result import Estimate
from memplan.rig import parse_gpus
from memplan.sweeping.axes import MAX_POINTS, Axis, Value, gpu_specs, make_axis, parse_axis

Progress = Callable[[int, int], None]
"""Told how many points are done, and of how many."""


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One combination: a value for each axis, and the estimate with them."""

    values: tuple[Value, ...]
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class Sweep:
    """A question asked for all combinations of its axes' values, the last axis fastest."""

    axes: tuple[Axis, ...]
    points: tuple[SweepPoint, ...]

    def axis(self, name: str) -> int:
        """The place of an axis among ``axes``. Raises FlagError."""
        for at, axis in enumerate(self.axes):
            if axis.is_called(name):
                return at
        raise FlagError(f"{name}: not swept; the axes are {', '.join(axis.name for axis in self.axes)}")


def at(question: Question, axis: Axis, value: Value) -> Question:
    """The question with one value of an axis. Raises MemplanError."""
    if axis.flags:
        return question.with_words(*axis.words(value))
    text = str(value)
    if axis.name == "llama":
        return question.with_release(text)
    if axis.name == "app":
        return question.with_(flags=question.flags.with_app(text))
    if axis.name == "gpu":
        return question.with_(rig=replace(parse_gpus(gpu_specs(text)), host_total=question.rig.host_total))
    return question.with_(paths=question.paths.with_(axis.name, "unfused" if value == "unfused" else "fused"))


def as_there(question: Question) -> Question:
    """The question without paths that its release has not got: where there is no other, fused stands for unfused."""
    arch, paths = architecture(question.header), question.paths
    for name, way in paths.forced:
        if name in arch.paths and way not in path_ways(arch, name, question.release):
            paths = paths.with_(name, "auto")
    return question.with_(paths=paths)


class Sweeper:
    """Answers for any combination of the axes' values, each asked once.

    ``on_ask`` is told, before each estimate, how many there were.
    """

    def __init__(self, question: Question, axes: Sequence[Axis]) -> None:
        for at, axis in enumerate(axes):
            for other in axes[:at]:
                if axis.name == other.name or other.replaced.intersection(axis.flags):
                    raise FlagError(f"--over {axis.name}: sets what --over {other.name} sets already")
            question = question.without(axis.replaced)
        self.question = question
        self.axes = tuple(axes)
        self.on_ask: Callable[[int], None] | None = None
        self._known: dict[tuple[Value, ...], Estimate] = {}

    def at(self, values: tuple[Value, ...]) -> Estimate:
        """The estimate with a value for each axis. Raises MemplanError."""
        known = self._known.get(values)
        if known is None:
            if self.on_ask is not None:
                self.on_ask(len(self._known))
            question = self.question
            for axis, value in zip(self.axes, values, strict=True):
                question = at(question, axis, value)
            known = self._known[values] = answer(as_there(question)).estimate
        return known

    def along(self, at: int, others: tuple[Value, ...]) -> dict[int, Estimate]:
        """All that was asked along the axis at place ``at`` with these values of the others, by its value, rising."""
        known = {
            values[at]: estimate
            for values, estimate in self._known.items()
            if (*values[:at], *values[at + 1 :]) == others
        }
        return {x: known[x] for x in sorted(x for x in known if isinstance(x, int))}

    def run(self, progress: Progress | None = None) -> Sweep:
        """All points, in order; ``progress`` is told (done, all)."""
        with gc_paused():
            return self._run(progress)

    def _run(self, progress: Progress | None) -> Sweep:
        """All combinations. Raises FlagError for too many, and what ``at`` raises."""
        count = prod(len(axis.values) for axis in self.axes)
        if count > MAX_POINTS:
            raise FlagError(f"--over: {count} points; at most {MAX_POINTS} in one sweep")
        points: list[SweepPoint] = []
        for values in product(*(axis.values for axis in self.axes)):
            if progress is not None:
                progress(len(points), count)
            points.append(SweepPoint(values, self.at(values)))
        return Sweep(self.axes, tuple(points))


def sweep(
    header: Header,
    flags: Sequence[str],
    rig: Rig,
    over: Mapping[str, str | Sequence[Value]] | Iterable[str],
    release: str = "latest",
    without_ops: Iterable[str] = (),
    app: str = "server",
    progress: Progress | None = None,
    draft: Header | None = None,
    projector: Header | None = None,
) -> Sweep:
    """One estimate for every combination of the axes' values.

    Args:
        header: the model, from ``read_model``.  rig: the GPUs.
        flags: llama-server's flags that stay the same, as words; those that an axis sets are replaced.
        over: the axes: ``{"ctx": [4096, 8192], "np": "1,2,4"}``, or ``["ctx=4096:1048576", "np=1,2,4"]``.
        release, without_ops, draft, projector: as in ``estimate``.  app: ``server`` or ``cli``.
        progress: told (done, all).
    Raises:
        MemplanError: an axis, flag or device that cannot be, in one line.
    """
    parsed = parse_flags(flags, app)
    if isinstance(over, str):
        raise FlagError(f"{shown(over)}: give a list of axes, as in [{shown(over)}]")
    if isinstance(over, Mapping):
        axes = [
            parse_axis(f"{name}={values}") if isinstance(values, str) else make_axis(name, values)
            for name, values in over.items()
        ]
    else:
        axes = [parse_axis(text) for text in over]
    question = Question.of(header, parsed, rig, release, without_ops, draft=draft, projector=projector)
    return Sweeper(question, axes).run(progress)
