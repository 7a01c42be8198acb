"""A load of a log, explained: what was asked for and what memplan predicts, the cause, and what mends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from memplan.backends.devices import Rig
from memplan.diagnosing.answers import Answers, TooMuchWork
from memplan.diagnosing.causes import from_memory, left_by_log, on_host
from memplan.diagnosing.figures import Row, explains, nodes_of, rows_of
from memplan.diagnosing.log import Failure, Load, Stage
from memplan.diagnosing.matching import (
    Seen,
    assumed_flags,
    builtin_model,
    builtin_models,
    guess_computing,
    guess_placement,
    named_model,
    same_types,
    seen_flags,
    without_flags,
)
from memplan.diagnosing.meanings import RUN_TIME, Cause, from_words, label
from memplan.diagnosing.mends import HOST, LEAST, Mend, Need, Variant, find_mends
from memplan.diagnosing.rigs import other_gpus, rig_of
from memplan.diagnosing.run_time import what_ran_out
from memplan.errors import MemplanError, UnknownRelease
from memplan.estimator import model_of
from memplan.gguf.header import Header
from memplan.llama.flags import Flags, check_devices, parse_flags
from memplan.llama.speculation import draft_kind
from memplan.models.builtin import builtin_like
from memplan.models.registry import ARCHITECTURES
from memplan.notes import mib
from memplan.planning.problem import one_each
from memplan.question import Question
from memplan.releases import FORKS, LATEST, RELEASES, Release, find_release
from memplan.result import Estimate

_NO_BUILD: Final = "the log does not say which build it was"
_NO_FLAGS: Final = frozenset(
    {"nothing-wrong", "cut-off", "unknown", "no-such-file", "incomplete-file", "argument-not-of-this-release"}
)
"""Causes that no flags mend."""


@dataclass(frozen=True, slots=True)
class Given:
    """What the user adds to a log: a model, flags, GPUs, a release; each None or empty when the log has to tell."""

    header: Header | None = None
    flags: tuple[str, ...] = ()
    rig: Rig | None = None
    llama: str = ""
    whole: bool = False
    """Whether the flags are a whole command line, so that what is not among them was not given."""
    notes: tuple[str, ...] = ()
    """What to say about it."""
    draft: Header | None = None
    """The model of ``-md``."""
    projector: Header | None = None
    """That of ``--mmproj``."""
    reserve: tuple[int, ...] = ()
    """MiB that a mend is to leave on every GPU, or on each; empty: what an estimate's reserve is."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One load explained. ``estimate`` is None when nothing could be predicted; ``notes`` then say why."""

    load: Load
    model: str
    release: str
    argv: tuple[str, ...]
    guessed: tuple[str, ...]
    estimate: Estimate | None
    rows: tuple[Row, ...]
    nodes: tuple[tuple[int, int], tuple[int, int]] | None
    """Nodes of both graphs, as logged and as predicted."""
    cause: Cause
    mends: tuple[Mend, ...] = ()
    notes: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    """Flags that neither the log nor the user tells: the program's defaults stand for them."""
    question: Question | None = field(default=None, compare=False, repr=False)
    """What was predicted; None where nothing could be, or of another model than the log's."""
    placement: tuple[str, ...] = ()
    """All flags with a placement that fits, where one was looked for."""

    @property
    def agrees(self) -> bool | None:
        """Whether every buffer that can be compared is as predicted, and a refusal too; None when there is neither."""
        if self.estimate is not None and self.estimate.refused is not None:
            return self.estimate.refused.kind == self.cause.kind
        return all(row.agrees for row in self.rows) if self.rows else None


def diagnose(load: Load, asked: Given | None = None, answers: Answers | None = None) -> Diagnosis:
    """Explain one load. Never raises for what the log says; raises MemplanError for what ``asked`` says.

    ``answers``: what was asked for other loads.
    """
    return _Work(load, asked or Given(), answers or Answers()).result()


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


class _Work:
    """One diagnosis in the making."""

    def __init__(self, load: Load, asked: Given, answers: Answers) -> None:
        self.load, self.asked, self.answers = load, asked, answers
        self.notes: list[str] = list(asked.notes)
        if load.is_tail:
            self.notes.append("the log begins in the middle of the load: what came before is not known")
        self.other_model = False
        self.header = self._header()
        self.named = bool(self.asked.llama or load.build is not None or load.version)
        """Whether the release is known, from the log or the user."""
        self.release, self.release_name = self._release()
        self.rig = self._rig()
        self.draft = self._draft()
        self.seen = seen_flags(load, asked.flags, draft_kind(self.draft) if self.draft is not None else "")
        self.assumed = () if asked.whole else assumed_flags(self.seen)

    def result(self) -> Diagnosis:
        predicted = self._predict()
        if predicted is not None:
            predicted = self._settled(predicted)
        rows = rows_of(self.load, predicted) if predicted is not None else ()
        cause = self._cause(predicted, rows)
        mends = self._mends(predicted, cause)
        nodes = None
        if predicted is not None and predicted.refused is None and self.load.nodes and self.load.nodes[0]:
            nodes = (self.load.nodes, nodes_of(predicted))
        self._remarks(predicted)
        return Diagnosis(
            load=self.load,
            model=self.header.name if self.header is not None else "",
            release=self.release_name,
            argv=self.seen.argv,
            guessed=self.seen.guessed,
            estimate=predicted,
            rows=rows,
            nodes=nodes,
            cause=cause,
            mends=mends,
            notes=tuple(self.notes),
            assumed=self.assumed if predicted is not None else (),
            question=None if self.other_model else self._asked(predicted),
        )

    def _header(self) -> Header | None:
        given = self.asked.header
        if given is not None:
            if same_types(self.load, given) is False:
                self.other_model = True
                self.notes.append(
                    f"the model given, {given.name}, has other tensors than the log's: no flags are recommended for it"
                )
            return given
        architecture = self.load.metadata.get("general.architecture", "")
        if architecture and architecture not in ARCHITECTURES:
            self.notes.append(f"nothing is predicted: its architecture, {architecture}, is not modelled")
            return None
        names = builtin_models(self.load)
        if not names:
            why = "no built-in model has its tensors" if self.load.types else "the log does not show its tensors"
            if self._argument_refused():
                return None
            like = builtin_like(self.load.path or named_model(self.load.command))
            as_in = f", as in -m {like}, which its name suggests," if like and not self.load.types else ""
            self.notes.append(f"which model it was is not known ({why}): name it with -m MODEL{as_in} for a prediction")
            return None
        if len(names) > 1:
            self.notes.append(f"the model is taken to be {names[0]}; {' and '.join(names[1:])} has the same tensors")
        return builtin_model(names[0])

    def _draft(self) -> Header | None:
        """The model that drafts, where it is one of its own: as given, or a built-in one with the log's tensors."""
        names = [] if self.load.draft is None else builtin_models(self.load.draft)
        return self.asked.draft or (builtin_model(names[0]) if names else None)

    def _argument_refused(self) -> bool:
        """Whether llama.cpp went no further than its command line."""
        return self.load.failed is not None and "invalid argument:" in self.load.failed.said

    def _rig(self) -> Rig | None:
        """The GPUs given; the log's own where those cannot be meant."""
        own, given = rig_of(self.load), self.asked.rig
        if given is None:
            return own
        if different := other_gpus(self.load, given):
            used = "the log's are taken" if own is not None else "leave --gpu out, or give those"
            self.notes.append(f"the GPUs given are not the log's: {different}; {used}")
        return own if different and own is not None else given

    def _release(self) -> tuple[Release | None, str]:
        text = self.asked.llama or (f"b{self.load.build}" if self.load.build else self.load.version)
        if not text:
            if not self._argument_refused():
                self.notes.append(f"{_NO_BUILD}: taken as {LATEST.name}; --llama names another")
            return LATEST, LATEST.name
        try:
            release, note = find_release(text)
        except UnknownRelease as error:
            if self.asked.llama:
                raise
            self.notes.append(f"nothing is predicted: {error}")
            return None, text
        if note:
            self.notes.append(note)
        return release, release.name

    def _predict(self) -> Estimate | None:
        if self.header is None or self.release is None:
            return None
        if self.rig is None:
            self.notes.append("which GPUs there were is not known: name them with --gpu for a prediction")
            return None
        self.seen = guess_placement(self.load, self.header, self.seen, self.rig, self.release)
        failed = self.load.failed
        told = self.load.model or (failed is not None and failed.stage is Stage.MODEL and failed.size)
        if not (self.seen.placed or self.load.dry or not told):
            tried = "-ncmoe" if self._number("expert_count", 1) > 0 else "-ngl"
            self.notes.append(f"where the weights lie was not found by trying {tried}: give the flags after the log")
        elif not self.seen.placed and not self.load.layers:
            self.notes.append("flags for where weights lie are not in the log: they can be given")
        if self.seen.guessed:
            guessed = " ".join(self.seen.guessed)
            self.notes.append(f"{guessed} is not in the log: found by trying what gives its weights")
        if self.assumed:
            self.notes.append(
                f"the log does not show {' and '.join(self.assumed)}: llama-{self.seen.app}'s defaults are taken; give"
                f" {'it' if len(self.assumed) == 1 else 'them'} after the log"
            )
        return self._estimate(self.seen.argv, self.release)

    def _estimate(self, argv: Sequence[str], release: Release, *, seeking: bool = False) -> Estimate | None:
        if self.header is None or self.rig is None:
            return None
        try:
            flags = parse_flags(argv, self.seen.app)
            return self.answers.ask(self._question(self.header, self.rig, flags, release), seeking=seeking)
        except MemplanError as error:
            if seeking and isinstance(error, TooMuchWork):
                return None
            self._check_given()
            if (note := f"nothing is predicted: {error}") not in self.notes:
                self.notes.append(note)
            return None

    def _check_given(self) -> None:
        """Raises MemplanError for what is wrong with what the user gave, whatever the log says."""
        flags = parse_flags(self.asked.flags, self.seen.app)
        if self.rig is not None:
            check_devices(flags, self.rig)
            if self.asked.reserve:
                one_each("--reserve", self.asked.reserve, len(self.rig.gpus))
        if self.asked.header is not None and self.release is not None:
            model_of(Question.of(self.asked.header, flags, Rig(()), self.release))

    def _settled(self, predicted: Estimate) -> Estimate:
        """The prediction, or another that the log's figures agree with: of a fork, which says that it is the build it
        was made from; of the release, where the log names none; with flags that show in compute buffers alone."""
        if self.release is None or explains(self.load, predicted):
            return predicted
        named = self.load.build is not None or bool(self.load.version)
        for release, seen in self._others(self.release, predicted, named):
            again = self._estimate(seen.argv, release, seeking=True)
            if again is None:
                continue
            rows = rows_of(self.load, again)
            of_fork = named and release is not self.release
            # a fork may differ from what is known of it
            agrees = rows and all(row.agrees for row in rows if row.part == "compute") if of_fork else None
            if not (explains(self.load, again) if agrees is None else agrees):
                continue
            if release is not self.release:
                self._is(release, named)
            if seen is not self.seen:
                self.seen = seen
                guessed = " ".join(seen.guessed)
                self.notes.append(f"{guessed} is not in the log: found by trying what gives its buffers")
            return again
        return predicted

    def _others(self, release: Release, predicted: Estimate, named: bool) -> Iterator[tuple[Release, Seen]]:
        """Releases and flags that may explain the log better, those that change least first."""
        wrong = [row for row in rows_of(self.load, predicted) if not row.agrees]
        # of a load that measures, compute buffers are all that can be compared
        hopeless = not self.load.dry and 1 < len(rows_of(self.load, predicted)) == len(wrong)
        hopeless = hopeless or self.seen.from_command or bool(self.asked.flags)
        guesses: list[Seen] = []
        if self.header and self.rig and not hopeless and all(row.part == "compute" for row in wrong):
            guesses = list(guess_computing(self.load, self.seen, self.header, self.rig))
        others = [] if self.asked.llama else [fork for fork in FORKS if fork.build == release.build]
        if not named and not self.asked.llama:
            others = [*(other for other in reversed(RELEASES) if other is not release), *FORKS]
            yield from ((other, self.seen) for other in others)
            yield from ((other, guess) for other in (release, *others) for guess in guesses)
            return
        yield from ((release, guess) for guess in guesses)
        yield from ((other, self.seen) for other in others)

    def _is(self, release: Release, named: bool) -> None:
        """By its figures, the log is of this release."""
        fork = release in FORKS
        what = f"the fork {release.name}, made from build {release.build}" if fork else label(release)
        if not named:
            self.notes = [note for note in self.notes if not note.startswith(_NO_BUILD)]
        self.notes.append(f"{'' if named else f'{_NO_BUILD}: '}by its figures this is {what}")
        self.release, self.release_name, self.named = release, release.name, True

    def _ask(self, flags: Flags, release: Release) -> Estimate:
        if self.header is None or self.rig is None:
            raise UnknownRelease("nothing to ask about")
        return self.answers.ask(self._question(self.header, self.rig, flags, release))

    def _question(self, header: Header, rig: Rig, flags: Flags, release: Release) -> Question:
        draft = self.draft if flags.draft_model else None
        projector = self.asked.projector if flags.projector else None
        question = Question.of(header, flags, rig, release, draft=draft, projector=projector)
        reserve = one_each("--reserve", self.asked.reserve, len(rig.gpus)) if self.asked.reserve else ()
        return question.with_(loaded=not self.load.dry, reserve=reserve)

    def _cause(self, predicted: Estimate | None, rows: Sequence[Row]) -> Cause:
        if self.other_model:
            predicted = None  # what is predicted of another model explains nothing
        failure = self.load.failed
        if failure is None:
            return self._no_failure(predicted, rows)
        cause = from_words(failure, self.release if self.named else None)
        if cause is None and (
            failure.kind == "allocation" or (failure.kind == "cuda" and "out of memory" in failure.said)
        ):
            cause = self._from_memory(failure, predicted, self.assumed, self.seen.placed)
        if cause is not None:
            if cause.kind == RUN_TIME:
                return replace(cause, text=f"{cause.text}{what_ran_out(self.load, failure, self._asked(predicted))}")
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
        self, failure: Failure, predicted: Estimate | None, assumed: Sequence[str] = (), placed: bool = True
    ) -> Cause:
        """The cause by what is predicted; by the log's own figures where no more can be asked."""
        experts = self._number("expert_count", 1) > 0
        rest = (self.release or LATEST, self._ask, self._heads(), assumed, placed, experts)
        try:
            return from_memory(self.load, failure, predicted, *rest)
        except TooMuchWork:
            return from_memory(self.load, failure, None, *rest)

    def _asked(self, predicted: Estimate | None) -> Question | None:
        """The question that was predicted; None for none, or for a refusal."""
        if predicted is None or predicted.refused is not None:
            return None
        if self.header is None or self.rig is None or self.release is None:
            return None
        return self._question(self.header, self.rig, predicted.flags, self.release)

    def _number(self, key: str, unknown: int) -> int:
        """A number of the model's metadata, 0 where it has none; ``unknown`` where there is no model."""
        if self.header is None:
            return unknown
        found = self.header.metadata.get(f"{self.header.metadata.get('general.architecture')}.{key}", 0)
        return found if isinstance(found, int) else 0

    def _heads(self) -> int:
        return self._number("attention.indexer.head_count", 64) or 64

    def _no_failure(self, predicted: Estimate | None, rows: Sequence[Row]) -> Cause:
        load = self.load
        if load.dry and load.compute:
            return self._measured(predicted)
        if load.ready and not load.compute:
            return Cause("nothing-wrong", "nothing wrong as far as the log says: the model was loaded")
        if load.reserved or load.ready:
            if rows and not all(row.agrees for row in rows):
                return Cause("nothing-wrong", "nothing wrong: it loaded, though not as predicted")
            every = "nothing wrong in this part of the log: every buffer that it shows" if load.is_tail else ""
            return Cause("nothing-wrong", f"{every or 'nothing wrong: every buffer'} was allocated")
        if predicted is not None and predicted.refused is not None:
            return Cause(predicted.refused.kind, predicted.refused.message, predicted.refused.fix)
        told = "n_ctx" in load.settings or self.seen.from_command or bool(self.asked.flags)
        if predicted is not None and told and not predicted.fits and not load.dry:
            failure = Failure("allocation", "", Stage.UNKNOWN, predicted.short[0].name if predicted.short else "")
            cause = self._from_memory(failure, predicted)
            return replace(cause, text=f"the log ends before that, but it will not fit: {cause.text}")
        return Cause("cut-off", "the log ends before the load does, and nothing in it is wrong so far")

    def _measured(self, predicted: Estimate | None) -> Cause:
        """Of a load that only measures: nothing was allocated, so nothing can have failed."""
        text = "it only measures, and allocates nothing"
        short = predicted.short if predicted is not None and predicted.refused is None and not self.assumed else ()
        if short:
            use = min(short, key=lambda device: device.left)
            size = mib(-use.left, up=True)
            return Cause("only-measured", f"{text}; by what was free, {use.name} would be {size} short")
        return Cause("only-measured", f"{text}; nothing wrong so far")

    def _mends(self, predicted: Estimate | None, cause: Cause) -> tuple[Mend, ...]:
        """What mends it, tried; nothing for a load that went well or that no flags are to blame for."""
        if predicted is None or self.other_model or cause.kind in _NO_FLAGS:
            return ()
        release = self.release or LATEST
        known: dict[Variant, Estimate | None] = {}

        def attempt(variant: Variant) -> Estimate | None:
            if variant not in known:
                words = without_flags(self.seen.argv, variant.drop)
                argv = [*variant.args, *words] if variant.first else [*words, *variant.args]
                try:
                    known[variant] = self._ask(parse_flags(argv, self.seen.app), variant.release or release)
                except MemplanError:
                    known[variant] = None
            return known[variant]

        blocks, experts = self._number("block_count", 0), self._number("expert_count", 1) > 0
        return find_mends(predicted, attempt, blocks, self._need(predicted, cause), release, experts=experts)

    def _need(self, predicted: Estimate, cause: Cause) -> Need:
        """What a mend has to bring; of a load that should have fitted, a quarter of what failed."""
        failure = self.load.failed
        said = failure.said if failure is not None else ""
        if cause.kind == "host-memory":
            return Need(cause.kind, said, HOST, LEAST)
        allocation = failure is not None and failure.kind in ("allocation", "cuda")
        if failure is None or not allocation or not predicted.fits or not predicted.devices:
            return Need(cause.kind, said)
        where = failure.buffer or max(predicted.devices, key=lambda device: device.used).name
        use = next(device for device in predicted.devices if device.name == where)
        if (left := left_by_log(self.load, failure, use)) < 0:
            return Need(cause.kind, said, where, use.reserve - left)
        return Need(cause.kind, said, where, max((failure.size or 0) // 4, 4 * LEAST))

    def _remarks(self, predicted: Estimate | None) -> None:
        load = self.load
        if load.fit:
            self.notes.append(f"llama-server's --fit changed nothing: {load.fit}")
        for name, (size, reserved) in load.grown.items():
            more = ": a batch needed more while it worked" if size > reserved else ""
            self.notes.append(
                f"{name}'s compute buffer was {size:,.2f} MiB in the end, where {reserved:,.2f} were reserved{more}"
            )
        if load.retried:
            self.notes.append("with pipeline parallelism the compute buffers did not fit; llama.cpp went on without it")
        if load.disabled:
            self.notes.append(f"llama.cpp turned off what a GPU lacks: {', '.join(load.disabled)}")
        if predicted is not None and predicted.refused is None and load.failed is None:
            self.notes += [note for note in predicted.notes if note not in self.notes]


__all__ = ["Diagnosis", "Given", "Row", "Seen", "diagnose", "diagnose_all"]
