"""An estimate as it is shown: with what further estimates say about it, each of which is made only where it counts."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

from memplan.estimator import Answer, answer
from memplan.garbage import gc_paused
from memplan.llama.memory.kv import CELL_PADDING
from memplan.llama.run_time import run_time
from memplan.notes import elsewhere_note, ops_note
from memplan.question import Question
from memplan.result import Estimate


def full_estimate(question: Question) -> Estimate:
    """The estimate, with the tokens from which it is short, where a drafter's layers go, and what refused ops change.

    Raises MemplanError.
    """
    found = answer(question)
    result = replace(found.estimate, short_at=short_at(found))
    if found.elsewhere:
        note = elsewhere_note(answer(question.with_(loaded=True)).estimate)
        result = replace(result, notes=(*result.notes, note))
    if question.without_ops and question.rig.gpus and result.refused is None:
        changed = ops_note(result, answer(question.with_(without_ops=())).estimate)
        result = replace(result, notes=(*result.notes, changed)) if changed else result
    return result


def short_at(found: Answer) -> int | None:
    """Tokens a slot from which a GPU has too little left for what kernels take; None where that never comes.

    Found in steps of 256, by which caches grow.
    """
    if found.made is None or not found.estimate.starts or found.estimate.fits:
        return None
    contexts = [made for made in (found.made, found.draft) if made is not None]

    def fits(steps: int) -> bool:
        taken = [run_time(made.context, made.work(steps * CELL_PADDING)) for made in contexts]
        uses = [replace(d, run_time=sum(t.get(d.name) or 0 for t in taken)) for d in found.estimate.devices]
        return replace(found.estimate, devices=tuple(uses)).fits

    with gc_paused():
        most = -(-found.estimate.filled // CELL_PADDING)
        return min(found.estimate.filled, (bisect_left(range(most), True, key=lambda n: not fits(n))) * CELL_PADDING)
