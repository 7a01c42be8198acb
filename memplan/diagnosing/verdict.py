"""Why a load failed, or that it did not: llama.cpp's own words first, then what memory tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memplan.diagnosing.answers import TooMuchWork
from memplan.diagnosing.causes import from_memory, left_by_log, on_host
from memplan.diagnosing.figures import Row
from memplan.diagnosing.log import Failure, Stage
from memplan.diagnosing.meanings import RUN_TIME, Cause, from_words
from memplan.diagnosing.mends import HOST, LEAST, Need
from memplan.diagnosing.run_time import what_ran_out
from memplan.diagnosing.subject import Subject
from memplan.notes import mib
from memplan.releases import LATEST
from memplan.result import Estimate


def cause_of(subject: Subject, predicted: Estimate | None, rows: Sequence[Row]) -> Cause:
    """The cause of a failure; for a load without one, how it went. ``rows``: the buffers beside those predicted."""
    if subject.other_model:
        predicted = None  # what is predicted of another model explains nothing
    failure = subject.load.failed
    if failure is None:
        return _no_failure(subject, predicted, rows)
    cause = from_words(failure, subject.release if subject.named else None)
    if cause is None and (failure.kind == "allocation" or (failure.kind == "cuda" and "out of memory" in failure.said)):
        cause = _from_memory(subject, failure, predicted, subject.assumed, subject.seen.placed)
    if cause is not None:
        if cause.kind == RUN_TIME:
            about = what_ran_out(subject.load, failure, subject.predicted(predicted))
            return replace(cause, text=f"{cause.text}{about}")
        lie = on_host(predicted) if predicted is not None and cause.kind == "host-memory" else ""
        return replace(cause, text=f"{cause.text}; {lie}") if lie else cause
    if predicted is not None and predicted.refused is not None:
        refused = predicted.refused
        return Cause(refused.kind, f"llama.cpp says: {refused.message}", refused.fix)
    if predicted is not None and predicted.draft_refused is not None:
        refused = predicted.draft_refused
        return Cause(refused.kind, f"the context that drafts cannot be made: {refused.message}", refused.fix)
    return Cause("unknown", f"llama.cpp says: {failure.said}; memplan does not know what that means", "")


def _from_memory(
    subject: Subject,
    failure: Failure,
    predicted: Estimate | None,
    assumed: Sequence[str] = (),
    placed: bool = True,
) -> Cause:
    """The cause by what is predicted; by the log's own figures where no more can be asked."""
    heads = subject.number("attention.indexer.head_count", 64) or 64
    rest = (subject.release or LATEST, subject.ask, heads, assumed, placed, subject.experts)
    try:
        return from_memory(subject.load, failure, predicted, *rest)
    except TooMuchWork:
        return from_memory(subject.load, failure, None, *rest)


def _no_failure(subject: Subject, predicted: Estimate | None, rows: Sequence[Row]) -> Cause:
    load = subject.load
    if load.dry and load.compute:
        return _measured(subject, predicted)
    if load.ready and not load.compute:
        return Cause("nothing-wrong", "nothing wrong as far as the log says: the model was loaded")
    if load.reserved or load.ready:
        if rows and not all(row.agrees for row in rows):
            return Cause("nothing-wrong", "nothing wrong: it loaded, though not as predicted")
        every = "nothing wrong in this part of the log: every buffer that it shows" if load.is_tail else ""
        return Cause("nothing-wrong", f"{every or 'nothing wrong: every buffer'} was allocated")
    if predicted is not None and predicted.refused is not None:
        return Cause(predicted.refused.kind, predicted.refused.message, predicted.refused.fix)
    told = "n_ctx" in load.settings or subject.seen.from_command or bool(subject.asked.flags)
    if predicted is not None and told and not predicted.fits and not load.dry:
        failure = Failure("allocation", "", Stage.UNKNOWN, predicted.short[0].name if predicted.short else "")
        cause = _from_memory(subject, failure, predicted)
        return replace(cause, text=f"the log ends before that, but it will not fit: {cause.text}")
    return Cause("cut-off", "the log ends before the load does, and nothing in it is wrong so far")


def _measured(subject: Subject, predicted: Estimate | None) -> Cause:
    """Of a load that only measures: nothing was allocated, so nothing can have failed."""
    text = "it only measures, and allocates nothing"
    short = predicted.short if predicted is not None and predicted.refused is None and not subject.assumed else ()
    if short:
        use = min(short, key=lambda device: device.left)
        size = mib(-use.left, up=True)
        return Cause("only-measured", f"{text}; by what was free, {use.name} would be {size} short")
    return Cause("only-measured", f"{text}; nothing wrong so far")


def need_of(subject: Subject, predicted: Estimate, cause: Cause) -> Need:
    """What a mend has to bring; of a load that should have fitted, a quarter of what failed."""
    failure = subject.load.failed
    said = failure.said if failure is not None else ""
    if cause.kind == "host-memory":
        return Need(cause.kind, said, HOST, LEAST)
    allocation = failure is not None and failure.kind in ("allocation", "cuda")
    if failure is None or not allocation or not predicted.fits or not predicted.devices:
        return Need(cause.kind, said)
    fullest = max(predicted.devices, key=lambda device: device.used)  # for a GPU that those given lack, too
    use = next((device for device in predicted.devices if device.name == failure.buffer), fullest)
    if (left := left_by_log(subject.load, failure, use)) < 0:
        return Need(cause.kind, said, use.name, use.reserve - left)
    return Need(cause.kind, said, use.name, max((failure.size or 0) // 4, 4 * LEAST))
