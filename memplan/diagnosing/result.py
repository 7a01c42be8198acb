"""A load of a log, explained: the data."""

from __future__ import annotations

from dataclasses import dataclass, field

from memplan.backends.devices import Rig
from memplan.diagnosing.figures import Row
from memplan.diagnosing.log import Load
from memplan.diagnosing.meanings import Cause
from memplan.diagnosing.mends import Mend
from memplan.gguf.header import Header
from memplan.question import Question
from memplan.result import Estimate


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
