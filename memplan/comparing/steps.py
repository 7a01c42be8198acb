"""What each release between two moves of one question: the question, asked of one after the other."""

from __future__ import annotations

from itertools import pairwise

from memplan.comparing.result import BufferMove, ReleaseStep
from memplan.estimator import answer
from memplan.question import Question
from memplan.releases import FORKS, changed_between
from memplan.result import BufferUse, Estimate

PARTS = {"model": "weights", "context": "context", "compute": "compute"}
"""What a buffer type holds, and what that is called."""


def release_steps(before: Question, after: Question) -> tuple[ReleaseStep, ...]:
    """A step for each release that changed something between two questions' releases, from the first side's on.

    Empty where the questions differ in more than the release, and where one is of a fork.
    """
    alone = before.with_(release=after.release, release_note=after.release_note) == after
    if not alone or before.release in FORKS or after.release in FORKS:
        return ()
    older, newer = sorted((before, after), key=lambda question: question.release.build)
    releases = changed_between(older.release, newer.release)
    estimates = [answer(older.with_(release=r)).estimate for r in (older.release, *releases)]
    steps = [_step(r.name, a, b) for r, (a, b) in zip(releases, pairwise(estimates), strict=True)]
    return tuple(steps) if older is before else tuple([step.undone() for step in reversed(steps)])


def _step(name: str, a: Estimate, b: Estimate) -> ReleaseStep:
    moves = []
    for buffer in sorted({**a.buffers, **b.buffers}):
        uses = (a.buffers.get(buffer, BufferUse()), b.buffers.get(buffer, BufferUse()))
        for part, called in PARTS.items():
            x, y = (getattr(use, part) for use in uses)
            if x != y:
                moves.append(BufferMove(buffer, called, y - x))
    for d, e in zip(a.devices, b.devices, strict=True):
        if d.run_time != e.run_time:
            moves.append(BufferMove(d.name, "run time", e.run_time - d.run_time))
    refused = (a.refused is not None, b.refused is not None)
    return ReleaseStep(name, tuple(moves), (a.splits[0], b.splits[0]) if not any(refused) else (0, 0), refused)
