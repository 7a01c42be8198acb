"""Loads of a log, explained: what was asked for and what memplan predicts, the cause, and what mends it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from memplan.diagnosing.answers import Answers
from memplan.diagnosing.figures import nodes_of, rows_of
from memplan.diagnosing.log import Load
from memplan.diagnosing.meanings import Cause
from memplan.diagnosing.mends import Mend, Variant, find_mends
from memplan.diagnosing.prediction import predict
from memplan.diagnosing.result import Diagnosis, Given
from memplan.diagnosing.subject import Subject
from memplan.diagnosing.verdict import cause_of, need_of
from memplan.errors import MemplanError
from memplan.llama.flag_fields import same_setting
from memplan.llama.flag_words import without
from memplan.releases import LATEST
from memplan.result import Estimate

_NO_FLAGS: Final = frozenset(
    {"nothing-wrong", "cut-off", "unknown", "no-such-file", "incomplete-file", "argument-not-of-this-release"}
)
"""Causes that no flags mend."""


def diagnose(load: Load, asked: Given | None = None, answers: Answers | None = None) -> Diagnosis:
    """Explain one load. Never raises for what the log says; raises MemplanError for what ``asked`` says.

    ``answers``: what was asked for other loads.
    """
    return _diagnose(Subject(load, asked or Given(), answers or Answers()))


def diagnose_all(
    loads: Sequence[Load], asked: Given | None = None, progress: Callable[[int, int], None] | None = None
) -> list[Diagnosis]:
    """Explain every load, those that are the same but for their place in the log once.

    ``progress``: called with how many are explained, and how many there are.
    """
    answers = Answers()
    known: dict[str, Diagnosis] = {}
    found = []
    for done, load in enumerate(reversed(loads)):  # the last are asked about: what is not explained any more is old
        if progress is not None:
            progress(done, len(loads))
        content = load.content
        if content not in known:
            known[content] = diagnose(load, asked, answers)
        found.append(replace(known[content], load=load))
    return found[::-1]


def _diagnose(subject: Subject) -> Diagnosis:
    load, predicted = subject.load, predict(subject)
    rows = rows_of(load, predicted) if predicted is not None else ()
    cause = cause_of(subject, predicted, rows)
    mends = _mends(subject, predicted, cause)
    nodes = None
    if predicted is not None and predicted.refused is None and load.nodes and load.nodes[0]:
        nodes = (load.nodes, nodes_of(predicted))
    _remark(subject, predicted)
    return Diagnosis(
        load=load,
        model=subject.header.name if subject.header is not None else "",
        release=subject.release_name,
        argv=subject.seen.argv,
        guessed=subject.seen.guessed,
        estimate=predicted,
        rows=rows,
        nodes=nodes,
        cause=cause,
        mends=mends,
        notes=tuple(subject.notes),
        assumed=subject.assumed if predicted is not None else (),
        question=None if subject.other_model else subject.predicted(predicted),
    )


def _mends(subject: Subject, predicted: Estimate | None, cause: Cause) -> tuple[Mend, ...]:
    """What mends it, tried; nothing for a load that went well or that no flags are to blame for."""
    if predicted is None or subject.other_model or cause.kind in _NO_FLAGS:
        return ()
    release = subject.release or LATEST
    known: dict[Variant, Estimate | None] = {}

    def argv(variant: Variant) -> list[str]:
        words = without(subject.seen.argv, same_setting(*variant.drop))
        return [*variant.args, *words] if variant.first else [*words, *variant.args]

    def attempt(variant: Variant) -> Estimate | None:
        if variant not in known:
            try:
                known[variant] = subject.ask(subject.parse(argv(variant)), variant.release or release)
            except MemplanError:
                known[variant] = None
        return known[variant]

    def weigh(variant: Variant) -> Mapping[str, int] | None:
        return subject.weigh(argv(variant), variant.release or release)

    blocks, need = subject.number("block_count", 0), need_of(subject, predicted, cause)
    return find_mends(predicted, attempt, weigh, blocks, need, release, experts=subject.experts)


def _remark(subject: Subject, predicted: Estimate | None) -> None:
    """Notes on what else the log shows, and on the settings of a load that went well."""
    load, notes = subject.load, subject.notes
    if load.fit:
        notes.append(f"llama-server's --fit changed nothing: {load.fit}")
    for name, (size, reserved) in load.grown.items():
        more = ": a batch needed more while it worked" if size > reserved else ""
        notes.append(
            f"{name}'s compute buffer was {size:,.2f} MiB in the end, where {reserved:,.2f} were reserved{more}"
        )
    if load.retried:
        notes.append("with pipeline parallelism the compute buffers did not fit; llama.cpp went on without it")
    if load.disabled:
        notes.append(f"llama.cpp turned off what a GPU lacks: {', '.join(load.disabled)}")
    if predicted is not None and predicted.refused is None and load.failed is None:
        notes += [note for note in predicted.notes if note not in notes]
