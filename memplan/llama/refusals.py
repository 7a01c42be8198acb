"""What llama.cpp says when it does not start: an answer, not an exception."""

from __future__ import annotations

from dataclasses import dataclass

REFUSED = "refused"
"""llama.cpp stops with a message of its own."""

ABORT = "abort"
"""llama.cpp dies of an assertion."""

OTHER = "other"
"""The kind of every refusal that has no name of its own."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why llama.cpp would not start with these settings.

    ``kind``: a stable name (``k-v-types-differ``, ``tensors-not-of-this-release``, ``other``, ...).  ``outcome``:
    REFUSED or ABORT.  ``message``: llama.cpp's own words.  ``fix``: what to change, one line.
    """

    kind: str
    outcome: str
    message: str
    fix: str = ""

    @property
    def title(self) -> str:
        """The kind, or llama.cpp's own words where the kind says nothing."""
        return self.message if self.kind == OTHER else self.kind


_CONVERT = "convert the model again: its shapes are not what llama.cpp expects"


def died(condition: str) -> Refusal:
    """The abort of an assertion that a model's shapes do not hold."""
    return Refusal(OTHER, ABORT, f"GGML_ASSERT({condition}) failed", _CONVERT)
