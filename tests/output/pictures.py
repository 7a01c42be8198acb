"""Sweeps without an engine: needs in proportion to what is varied, for tests of pictures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from memplan.backends.devices import Gpu, Rig
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.question import Question
from memplan.result import BufferUse, device_uses
from memplan.sweeping.axes import parse_axis
from memplan.sweeping.sweep import Sweep, Sweeper
from tests.estimates import REFUSAL, made_up

GIB = 1 << 30
FREE = 22 * GIB
RIG = Rig(tuple(Gpu("NVIDIA GeForce RTX 3090", 24 * GIB, FREE, (8, 6)) for _ in range(2)))
MODEL = builtin_header("deepseek-v4-flash")

Need = Callable[[int, int, int], int | None]
"""Bytes of context for a device's number, a context and a number of slots; None: refused."""


def in_proportion(device: int, n_ctx: int, slots: int) -> int:
    return 16384 * n_ctx * slots * (device + 1)


def swept(
    monkeypatch: pytest.MonkeyPatch,
    over: list[str],
    need: Need = in_proportion,
    rig: Rig = RIG,
    flags: str = "-cmoe",
    reserve: tuple[int, ...] = (),
) -> tuple[Sweeper, Sweep]:
    """A sweep whose estimates hold 4 GiB of weights, ``need`` of context and 1 GiB of compute on each GPU.

    ``reserve``: bytes that each GPU is to keep; empty for none.
    """

    def answer(question: Question) -> SimpleNamespace:
        flags, rig = question.flags, question.rig
        buffers: dict[str, BufferUse] = {}
        for i in range(len(rig.gpus)):
            context = need(i, flags.n_ctx, flags.n_parallel)
            if context is None:
                return SimpleNamespace(estimate=made_up(flags, rig, refused=REFUSAL))
            buffers[f"CUDA{i}"] = BufferUse(4 * GIB, context, GIB)
        estimate = made_up(flags, rig, buffers)
        return SimpleNamespace(estimate=replace(estimate, devices=device_uses(buffers, rig, reserves=question.reserve)))

    monkeypatch.setattr("memplan.sweeping.sweep.answer", answer)
    question = replace(Question.of(MODEL, parse_flags(flags.split()), rig, "latest"), reserve=reserve)
    sweeper = Sweeper(question, [parse_axis(text) for text in over])
    return sweeper, sweeper.run()
