"""The question: what will llama.cpp allocate for these loads, with these flags, on this rig?

It is frozen and hashable: whoever asks for estimates takes one, changes it with ``with_`` and passes it on whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from memplan.backends.devices import CUDA, Gpu, Rig
from memplan.errors import FlagError, shown
from memplan.gguf.header import Header
from memplan.llama.context import AS_RELEASED, Paths
from memplan.llama.flags import Flags
from memplan.llama.speculation import draft_kind
from memplan.releases import Release, find_release

KERNELS = 300 << 20
"""Bytes that a CUDA device is to have left for the code of kernels, which is loaded as they are first used.

llama.cpp's own breakdown has them in "unaccounted": 703 to 715 MiB in six public logs of RTX PRO 6000, 699 to 750 on
RTX 5090 at small batches. Some 400 of it are taken already where ``--list-devices`` says what is free, since asking
makes the CUDA context.
"""

UNKNOWN = 1024 << 20
"""The same for a device whose kernels' scratch is in no rule: what llama.cpp's own ``--fit`` leaves."""


def reserve_of(gpu: Gpu) -> int:
    """Bytes to be left on a GPU unless the user says otherwise."""
    return KERNELS if gpu.backend == CUDA else UNKNOWN


@dataclass(frozen=True, slots=True)
class Load:
    """A model that is loaded, and what for.

    ``role``: ``model``, ``draft`` for one that drafts (``-md``), ``projector`` for images and sound (``--mmproj``).
    """

    header: Header = field(hash=False)
    role: str = "model"


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes:
        loads: the models, the one that is served first.
        flags: llama-server's settings.  rig: the GPUs and the host.
        release: the llama.cpp to follow; ``release_note``: why that is another than the one that was named.
        without_ops: ops that every GPU is made to refuse, by ggml's names.
        paths: fused ops that are asked for or ruled out; what is forced is not probed.
        notes: what is said with every estimate.  inexact: why none can be exact, whatever the flags.
        filled: tokens that each slot holds when run time is counted; None: all that a slot can hold.
        reserve: bytes to be left on each GPU for what no rule has; empty: ``KERNELS`` or ``UNKNOWN``.
        loaded: what a load takes, in place of what llama.cpp plans for it while it takes nothing: a drafter's layers go
            by what the model has left free, and norms are computed on their layers' devices.
    """

    loads: tuple[Load, ...]
    flags: Flags
    rig: Rig
    release: Release
    without_ops: tuple[str, ...] = ()
    paths: Paths = AS_RELEASED
    release_note: str = ""
    notes: tuple[str, ...] = ()
    inexact: tuple[str, ...] = ()
    filled: int | None = None
    reserve: tuple[int, ...] = ()
    loaded: bool = False

    @staticmethod
    def of(
        header: Header,
        flags: Flags,
        rig: Rig,
        release: str | Release,
        without_ops: Iterable[str] = (),
        paths: Paths = AS_RELEASED,
        draft: Header | None = None,
        filled: int | None = None,
        projector: Header | None = None,
    ) -> Question:
        """The question of one model, and perhaps of one that drafts for it.

        Raises UnknownRelease, FlagError for an op that there is not, and TypeError, saying which argument is none and
        where one comes from.
        """
        for name, value, kind, source in (
            ("header", header, Header, "memplan.read_model"),
            ("flags", flags, Flags, "memplan.parse_flags"),
            ("rig", rig, Rig, "memplan.parse_gpus or memplan.load_rig"),
            ("release", release, (str, Release), 'a tag such as "v0.5.0" or memplan.find_release'),
            ("paths", paths, Paths, "memplan.llama.context.Paths"),
            ("draft", draft, (Header, type(None)), "memplan.read_model"),
            ("projector", projector, (Header, type(None)), "memplan.read_model"),
        ):
            if not isinstance(value, kind):
                raise TypeError(f"{name} must come from {source}; this is of type {type(value).__name__}")
        for name in ("n_ctx", "n_batch", "n_ubatch", "n_parallel"):  # of flags that were changed after they were parsed
            number = getattr(flags, name)
            if type(number) is not int or not 0 <= number < 1 << 31:
                raise FlagError(f"{name} is {shown(repr(number))}: must be a whole number from 0 to 2147483647")
        if filled is not None and (type(filled) is not int or filled < 0):
            raise FlagError(f"filled is {shown(repr(filled))}: must be a whole number of 0 or more")
        if isinstance(without_ops, str | bytes):
            raise TypeError(f"without_ops: give a list of ops, as in [{without_ops!r}]")
        ops = tuple(dict.fromkeys(check_op(op) for op in without_ops))
        found, note = find_release(release) if isinstance(release, str) else (release, None)
        beside = [(draft, "draft"), (projector, "projector")]
        loads = (Load(header), *[Load(other, role) for other, role in beside if other is not None])
        if draft is not None and not flags.draft_model:
            flags = flags.with_words("-md", draft.name)
        return Question(loads, flags, rig, found, ops, paths, note or "", filled=filled).with_draft_kind()

    @property
    def reserves(self) -> tuple[int, ...]:
        """Bytes to be left on each GPU."""
        return self.reserve or tuple([reserve_of(gpu) for gpu in self.rig.gpus])

    @property
    def as_loaded(self) -> bool:
        """Whether it is about a load, as that of a server which holds tokens by now."""
        return self.loaded or bool(self.filled)

    @property
    def header(self) -> Header:
        """The model that is served."""
        return self.loads[0].header

    @property
    def draft(self) -> Header | None:
        """The model that drafts, where it is one of its own."""
        return self._loaded("draft")

    @property
    def projector(self) -> Header | None:
        """What makes embeddings of images and sound."""
        return self._loaded("projector")

    def _loaded(self, role: str) -> Header | None:
        return next((load.header for load in self.loads if load.role == role), None)

    def with_(self, **changes: Any) -> Question:
        """The same question but for some of its own fields or of its flags': ``with_(n_ctx=4096, rig=other)``."""
        own = {name: changes.pop(name) for name in _OWN & changes.keys()}
        flags: Flags = own.pop("flags", self.flags)
        return replace(self, flags=flags.with_(**changes) if changes else flags, **own)

    def with_draft_kind(self) -> Question:
        """The same with the kind of draft that the draft model's file stands for, where none is given."""
        kind = "" if self.draft is None or self.flags.n_draft else draft_kind(self.draft)
        return self.with_words("--spec-type", kind) if kind and self.release.infers_draft_kind else self

    def with_words(self, *words: str) -> Question:
        """The same with more of llama-server's words."""
        return replace(self, flags=self.flags.with_words(*words))

    def without(self, flags: Collection[str]) -> Question:
        """The same without some of llama-server's flags."""
        return replace(self, flags=self.flags.without(flags))

    def with_release(self, text: str) -> Question:
        """The same of the release that a tag or a build means. Raises UnknownRelease."""
        release, note = find_release(text)
        return replace(self, release=release, release_note=note or "")


def check_op(name: str, option: str = "") -> str:
    """An op that GPUs can be made to refuse, as ggml spells it. Raises FlagError; ``option`` stands before the name."""
    from memplan.backends.cuda import KNOWN_OPS
    from memplan.ggml.tensor import VIEW_OPS

    if not isinstance(name, str):
        raise TypeError(f"without_ops: an op is named by a text; this is of type {type(name).__name__}")
    op = name.strip().upper()
    if op in VIEW_OPS:
        raise FlagError(f"{option}{shown(name)}: {op} computes nothing, so no backend lacks it")
    if op in KNOWN_OPS:
        return op
    import difflib

    near = difflib.get_close_matches(op[:80], sorted(KNOWN_OPS - VIEW_OPS), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "name one as ggml does, such as MUL_MAT_ID"
    raise FlagError(f"{option}{shown(name)}: there is no such GPU op; {hint}")


_OWN = frozenset(f.name for f in fields(Question))
