"""The question: what will llama.cpp allocate for these loads, with these flags, on this rig?

It is frozen and hashable: whoever asks for estimates takes one, changes it with ``with_`` and passes it on whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from memplan.backends.devices import Rig
from memplan.gguf.header import Header
from memplan.llama.context import AS_RELEASED, Paths
from memplan.llama.flags import Flags
from memplan.releases import Release, find_release


@dataclass(frozen=True, slots=True)
class Load:
    """A model that is loaded, and what for: ``model``."""

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

    @staticmethod
    def of(
        header: Header,
        flags: Flags,
        rig: Rig,
        release: str | Release,
        without_ops: Iterable[str] = (),
        paths: Paths = AS_RELEASED,
    ) -> Question:
        """The question of one model. Raises UnknownRelease."""
        found, note = find_release(release) if isinstance(release, str) else (release, None)
        return Question((Load(header),), flags, rig, found, tuple(without_ops), paths, note or "")

    @property
    def header(self) -> Header:
        """The model that is served."""
        return self.loads[0].header

    def with_(self, **changes: Any) -> Question:
        """The same question but for some of its own fields or of its flags': ``with_(n_ctx=4096, rig=other)``."""
        own = {name: changes.pop(name) for name in _OWN & changes.keys()}
        flags: Flags = own.pop("flags", self.flags)
        return replace(self, flags=flags.with_(**changes) if changes else flags, **own)

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


_OWN = frozenset(f.name for f in fields(Question))
