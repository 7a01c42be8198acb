"""What the backends of GPUs share: a rule an op, their own memory alone, and what is offloaded.

Follows what ggml-cuda.cu, ggml-vulkan.cpp and ggml-metal.cpp have in common (ggml/src, v0.4.0 and v0.5.0).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from memplan.ggml.backend import Backend
from memplan.gguf.types import BF16, BY_NAME, F16, F32, IQ4_NL, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0

if TYPE_CHECKING:
    from memplan.ggml.backend import BufferType
    from memplan.ggml.tensor import Tensor

OFFLOAD_MIN_BATCH = 32
"""Rows from which an op is worth copying its weights from the host for (GGML_OP_OFFLOAD_MIN_BATCH, not set)."""

Rule = Callable[["Tensor"], bool]

HALVES = frozenset({F32, F16})
FLOATS = frozenset({F32, F16, BF16})
LEGACY = frozenset({Q4_0, Q4_1, Q5_0, Q5_1, Q8_0})
CACHED = FLOATS | LEGACY | {IQ4_NL}
SMALL_BITS = frozenset(BY_NAME[n] for n in ("q1_0", "q2_0"))
NVFP4, TQ1_0, TQ2_0 = BY_NAME["nvfp4"], BY_NAME["tq1_0"], BY_NAME["tq2_0"]


def names(text: str) -> frozenset[str]:
    """The words of ``text``."""
    return frozenset(text.split())


GLU_KINDS = names("REGLU GEGLU SWIGLU SWIGLU_OAI GEGLU_ERF GEGLU_QUICK SWIGLU_CLAMP")


class RuledBackend(Backend):
    """A device whose ``supports_op`` is a rule an op; without a rule it does not compute the op."""

    def __init__(self, name: str, buft: BufferType, rules: Mapping[str, Rule], without_ops: frozenset[str]) -> None:
        self.name = name
        self.buft = buft
        self._rules = {op: rule for op, rule in rules.items() if op not in without_ops}

    def supports_op(self, t: Tensor) -> bool:
        """Whether there is a kernel for ``t``."""
        rule = self._rules.get(t.op)
        return rule is not None and rule(t)

    def supports_buft(self, buft: BufferType) -> bool:
        """Its own memory alone."""
        return buft is self.buft


def batch_rows(t: Tensor) -> int:
    """The rows that decide whether an op is offloaded: those of the batched dimension, none for GET_ROWS."""
    op, ne = t.op, t.ne
    if op == "MUL_MAT":
        return ne[1]
    if op in ("MUL_MAT_ID", "ROPE", "ROPE_BACK"):
        return ne[2]
    return 0 if op == "GET_ROWS" else ne[1] * ne[2] * ne[3]


def always(t: Tensor) -> bool:
    """Computed whatever it is."""
    return True


def all_f32(t: Tensor) -> bool:
    """F32 in and out."""
    return t.type is F32 and all(s.type is F32 for s in t.src)


def f32_in(t: Tensor) -> bool:
    """An f32 source."""
    return t.src[0].type is F32


def same_halves(t: Tensor) -> bool:
    """F32 or f16, the same in and out."""
    return t.src[0].type in HALVES and t.type is t.src[0].type


def f32_contiguous(t: Tensor) -> bool:
    """A contiguous f32 source."""
    return t.src[0].type is F32 and t.src[0].is_contiguous


def contiguous_rows(t: Tensor) -> bool:
    """A source without gaps within its rows."""
    return t.src[0].is_contiguous_rows


def rows_of_halves(t: Tensor) -> bool:
    """The same, of f32 or f16."""
    return t.src[0].is_contiguous_rows and t.src[0].type in HALVES


def rules(text: str, rule: Rule) -> dict[str, Rule]:
    """One rule for several ops."""
    return dict.fromkeys(text.split(), rule)
