"""What llama.cpp says when it does not start: an answer, not an exception."""

from __future__ import annotations

from collections.abc import Mapping
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
        """The kind in words, or llama.cpp's own where the kind says nothing."""
        return self.message if self.kind == OTHER else self.kind.replace("-", " ")


_CONVERT = "convert the model again: its shapes are not what llama.cpp expects"


def died(condition: str) -> Refusal:
    """The abort of an assertion that a model's shapes do not hold."""
    return Refusal(OTHER, ABORT, f"GGML_ASSERT({condition}) failed", _CONVERT)


_ABORTS: Mapping[str, tuple[str, str]] = {
    "n_inputs < GGML_SCHED_MAX_SPLIT_INPUTS": (
        "too-many-split-inputs",
        "take a newer llama.cpp, or keep what is read together on one device",
    ),
    " (view)) in a buffer": (  # rows of a cache or a state, which no override put there
        OTHER,
        "keep the caches on the host (-nkvo), or use a build whose GPUs compute this op",
    ),
    "pre-allocated tensor": (
        "override-to-unused-device",
        "name a GPU that is in use and computes the tensor's op in -ot, or use all GPUs (-sm layer)",
    ),
    "cparams.ctx_other": (
        OTHER,
        "this model only drafts for another one: give it with -md beside the model that it drafts for",
    ),
    "GGML_ASSERT(obj_new)": (
        OTHER,
        "llama.cpp has no room for so large a graph: use a smaller --spec-draft-n-max, or a model of fewer layers",
    ),
    "fatal error": (OTHER, "llama.cpp has no room for so large a graph: use one slot, -kvu, or an unquantised cache"),
    "tensor->nb[0] == ggml_element_size(tensor)": (
        "permuted-quantized-tensor",
        "take an unquantised cache type (-ctk f16 -ctv f16)",
    ),
}
"""By words of what llama.cpp says as it dies: the kind of refusal, and what to change. Where it does, and in which
release, is said beside the rule that finds it out."""


def abort_of(said: str) -> Refusal:
    """The abort in which llama.cpp says this, and what to change."""
    for words, (kind, mend) in _ABORTS.items():
        if words in said:
            return Refusal(kind, ABORT, said, mend)
    return Refusal(OTHER, ABORT, said, "change the settings that this names, or report it")
