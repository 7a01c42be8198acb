"""What memplan predicts for a load: with its flags, or with those, and the release, that its figures speak for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from memplan.backends.devices import Rig
from memplan.diagnosing.answers import TooMuchWork
from memplan.diagnosing.figures import explains, nodes_of, rows_of
from memplan.diagnosing.flags_seen import Seen
from memplan.diagnosing.guessing import guess_computing, guess_placement
from memplan.diagnosing.log import Stage
from memplan.diagnosing.meanings import label
from memplan.diagnosing.subject import NO_BUILD, Subject
from memplan.errors import MemplanError
from memplan.estimator import model_of
from memplan.llama.flags import check_devices
from memplan.question import Question
from memplan.releases import FORKS, RELEASES, Release
from memplan.result import Estimate
from memplan.rig import one_each


def predict(subject: Subject) -> Estimate | None:
    """The estimate of a load; None where its model, its GPUs or its release are not known, which notes then say.

    Raises MemplanError for what is wrong with what the user gave.
    """
    if subject.header is None or subject.release is None:
        return None
    if subject.rig is None:
        subject.notes.append("which GPUs there were is not known: name them with --gpu for a prediction")
        return None
    weigh = partial(subject.weigh, release=subject.release)
    subject.seen = guess_placement(subject.load, subject.header, subject.seen, subject.rig, weigh)
    _say_flags(subject)
    predicted = _estimate(subject, subject.seen.argv, subject.release)
    if predicted is None or explains(subject.load, predicted):
        return predicted
    return _settled(subject, subject.release, predicted)


def _say_flags(subject: Subject) -> None:
    """Notes on flags that were guessed, or for which defaults stand."""
    load, seen, notes = subject.load, subject.seen, subject.notes
    failed = load.failed
    told = load.model or (failed is not None and failed.stage is Stage.MODEL and failed.size)
    if not (seen.placed or load.dry or not told):
        tried = "-ncmoe" if subject.experts else "-ngl"
        notes.append(f"where the weights lie was not found by trying {tried}: give the flags after the log")
    elif not seen.placed and not load.layers:
        notes.append("flags for where weights lie are not in the log: they can be given")
    if seen.guessed:
        notes.append(f"{' '.join(seen.guessed)} is not in the log: found by trying what gives its weights")
    if subject.assumed:
        notes.append(
            f"the log does not show {' and '.join(subject.assumed)}: llama-{seen.app}'s defaults are taken; give"
            f" {'it' if len(subject.assumed) == 1 else 'them'} after the log"
        )


def _estimate(subject: Subject, argv: Sequence[str], release: Release, *, seeking: bool = False) -> Estimate | None:
    try:
        return subject.ask(subject.parse(list(argv)), release, seeking=seeking)
    except MemplanError as error:
        if seeking and isinstance(error, TooMuchWork):
            return None
        _check_given(subject)
        if (note := f"nothing is predicted: {error}") not in subject.notes:
            subject.notes.append(note)
        return None


def _check_given(subject: Subject) -> None:
    """Raises MemplanError for what is wrong with what the user gave, whatever the log says."""
    asked = subject.asked
    flags = subject.parse(asked.flags)
    if subject.rig is not None:
        check_devices(flags, subject.rig)
        if asked.reserve:
            one_each("--reserve", asked.reserve, len(subject.rig.gpus))
    if asked.header is not None and subject.release is not None:
        model_of(Question.of(asked.header, flags, Rig(()), subject.release))


def _settled(subject: Subject, release: Release, predicted: Estimate) -> Estimate:
    """The prediction, or another that the log's figures agree with: of a fork, which says that it is the build it was
    made from; of the release, where the log names none; with flags that show in compute buffers alone."""
    named = subject.load.build is not None or bool(subject.load.version)
    for other, seen in _others(subject, release, predicted, named):
        again = _estimate(subject, seen.argv, other, seeking=True)
        if again is None:
            continue
        rows = rows_of(subject.load, again)
        of_fork = named and other is not release
        # a fork may differ from what is known of it
        agrees = rows and all(row.agrees for row in rows if row.part == "compute") if of_fork else None
        if not (explains(subject.load, again) if agrees is None else agrees):
            continue
        if other is not release:
            _is(subject, other, named)
        if seen is not subject.seen:
            subject.seen = seen
            guessed = " ".join(seen.guessed)
            subject.notes.append(f"{guessed} is not in the log: found by trying what gives its buffers")
        return again
    return predicted


def _others(subject: Subject, release: Release, predicted: Estimate, named: bool) -> Iterator[tuple[Release, Seen]]:
    """Releases and flags that may explain the log better, those that change least first."""
    load, seen, asked = subject.load, subject.seen, subject.asked
    rows = rows_of(load, predicted)
    wrong = [row for row in rows if not row.agrees]
    # of a load that measures, compute buffers are all that can be compared
    hopeless = not load.dry and 1 < len(rows) == len(wrong)
    hopeless = hopeless or seen.from_command or bool(asked.flags)
    guesses: list[Seen] = []
    if subject.header and subject.rig and not hopeless and all(row.part == "compute" for row in wrong):
        guesses = list(guess_computing(load, seen, subject.header, subject.rig))
    if named or asked.llama:
        yield from ((release, guess) for guess in guesses)
        yield from ((fork, seen) for fork in FORKS if fork.build == release.build and not asked.llama)
        return
    alike: list[Release] = []  # whose graph has as many nodes as the log's, which no guess changes
    for other in (release, *(each for each in reversed(RELEASES) if each is not release), *FORKS):
        found = _estimate(subject, seen.argv, other, seeking=True)
        if found is not None and _same_graph(subject, found):
            alike.append(other)
            yield other, seen
        elif alike and load.nodes:
            yield from ((each, guess) for each in alike for guess in guesses)
            alike = []
    yield from ((each, guess) for each in alike for guess in guesses)


def _same_graph(subject: Subject, found: Estimate) -> bool:
    nodes = subject.load.nodes
    return nodes is None or not nodes[0] or nodes == nodes_of(found)


def _is(subject: Subject, release: Release, named: bool) -> None:
    """By its figures, the log is of this release."""
    fork = release in FORKS
    what = f"the fork {release.name}, made from build {release.build}" if fork else label(release)
    if not named:
        subject.notes = [note for note in subject.notes if not note.startswith(NO_BUILD)]
    subject.notes.append(f"{'' if named else f'{NO_BUILD}: '}by its figures this is {what}")
    subject.release, subject.release_name, subject.named = release, release.name, True
