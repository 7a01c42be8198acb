"""What a load is of: its model, GPUs, release and flags, as the log or the user tells them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from memplan.backends.devices import Rig
from memplan.diagnosing.answers import Answers
from memplan.diagnosing.flags_seen import Seen, assumed_flags, named_model, seen_flags
from memplan.diagnosing.known_models import builtin_models, same_types
from memplan.diagnosing.log import Load
from memplan.diagnosing.result import Given
from memplan.diagnosing.rigs import other_gpus, rig_of
from memplan.errors import MemplanError, UnknownRelease
from memplan.gguf.header import Header
from memplan.llama.flags import Flags, parse_flags
from memplan.llama.speculation import draft_kind
from memplan.models.builtin import builtin_header, builtin_like
from memplan.models.registry import ARCHITECTURES
from memplan.question import Question
from memplan.releases import LATEST, Release, find_release
from memplan.result import Estimate
from memplan.rig import one_each

NO_BUILD: Final = "the log does not say which build it was"


@dataclass(slots=True)
class Subject:
    """What is asked about: found when it is made, and corrected where the log's figures speak for something else.

    ``named``: whether the log or the user tells the release.  ``other_model``: the model given is not the log's.
    ``notes``: how all that was found.
    """

    load: Load
    asked: Given
    answers: Answers
    notes: list[str] = field(init=False)
    header: Header | None = field(init=False)
    other_model: bool = field(init=False, default=False)
    release: Release | None = field(init=False)
    release_name: str = field(init=False)
    named: bool = field(init=False)
    rig: Rig | None = field(init=False)
    draft: Header | None = field(init=False)
    seen: Seen = field(init=False)
    assumed: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        load, asked = self.load, self.asked
        self.notes = list(asked.notes)
        if load.is_tail:
            self.notes.append("the log begins in the middle of the load: what came before is not known")
        self.header = self._header()
        self.named = bool(asked.llama or load.build is not None or load.version)
        self.release, self.release_name = self._release()
        self.rig = self._rig()
        self.draft = self._draft()
        self.seen = seen_flags(load, asked.flags, draft_kind(self.draft) if self.draft is not None else "")
        self.assumed = () if asked.whole else assumed_flags(self.seen)

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
        return builtin_header(names[0])

    def _draft(self) -> Header | None:
        """The model that drafts, where it is one of its own: as given, or a built-in one with the log's tensors."""
        names = [] if self.load.draft is None else builtin_models(self.load.draft)
        return self.asked.draft or (builtin_header(names[0]) if names else None)

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
                self.notes.append(f"{NO_BUILD}: taken as {LATEST.name}; --llama names another")
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

    def number(self, key: str, unknown: int) -> int:
        """A number of the model's metadata, 0 where it has none; ``unknown`` where there is no model."""
        if self.header is None:
            return unknown
        found = self.header.metadata.get(f"{self.header.metadata.get('general.architecture')}.{key}", 0)
        return found if isinstance(found, int) else 0

    @property
    def experts(self) -> bool:
        """Whether the model has any, as far as is known."""
        return self.number("expert_count", 1) > 0

    def question(self, flags: Flags, release: Release) -> Question | None:
        """What is asked with these flags; None where the model or the GPUs are not known. Raises FlagError."""
        if self.header is None or self.rig is None:
            return None
        draft = self.draft if flags.draft_model else None
        projector = self.asked.projector if flags.projector else None
        question = Question.of(self.header, flags, self.rig, release, draft=draft, projector=projector)
        reserve = one_each("--reserve", self.asked.reserve, len(self.rig.gpus)) if self.asked.reserve else ()
        return question.with_(loaded=not self.load.dry, reserve=reserve)

    def predicted(self, estimate: Estimate | None) -> Question | None:
        """The question that ``estimate`` answers; None for none, or for a refusal."""
        if estimate is None or estimate.refused is not None or self.release is None:
            return None
        return self.question(estimate.flags, self.release)

    def ask(self, flags: Flags, release: Release, *, seeking: bool = False) -> Estimate:
        """The estimate, remembered; ``seeking``: as one of many guesses. Raises MemplanError."""
        question = self.question(flags, release)
        if question is None:
            raise UnknownRelease("nothing to ask about")
        return self.answers.ask(question, seeking=seeking)

    def weigh(self, argv: Sequence[str], release: Release) -> Mapping[str, int] | None:
        """Bytes of the weights by buffer type with these flags; None where llama.cpp would not take them, where model
        or GPUs are not known, and once as much was tried for the log as is."""
        if self.header is None or self.rig is None or not self.answers.places:
            return None
        try:
            return self.answers.weights(Question.of(self.header, self.parse(argv), self.rig, release))
        except MemplanError:
            return None

    def parse(self, argv: Sequence[str]) -> Flags:
        """Flags of the program that printed the log. Raises FlagError."""
        return parse_flags(argv, self.seen.app)
