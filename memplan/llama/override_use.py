"""What overrides come to: the ones that move no tensor, and whether weights on the host are copied for prompts.

Follows ``create_tensor`` (src/llama-model-loader.cpp), which takes the first pattern found in a name, and
``ggml_backend_sched_backend_id_from_cur`` (ggml/src/ggml-backend.cpp), v0.5.0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from memplan.errors import shown
from memplan.ggml.tensor import Shape, Tensor, packed_strides
from memplan.gguf.types import F32
from memplan.llama.flag_values import DENSE_PATTERN, EXPERTS_PATTERN, Override
from memplan.llama.flags import Flags
from memplan.llama.patterns import compile_pattern, matches
from memplan.llama.placement import Placement
from memplan.llama.weights import INPUT, OUTPUT, ModelTensor

_MOST = 3
_MADE: Final = (
    ("-cmoe", re.compile(re.escape(EXPERTS_PATTERN))),
    ("-ncmoe", re.compile(r"blk\\\.[0-9]+" + re.escape(EXPERTS_PATTERN))),
    ("-ncffn", re.compile(r"blk\\\.[0-9]+" + re.escape(DENSE_PATTERN))),
)
"""Flags that stand for patterns, and what these look like."""


@dataclass(frozen=True, slots=True)
class WeightUse:
    """What a placement comes to.

    ``idle``: a sentence for each override that moves no tensor.  ``copied``: whether a device computes with weights
    that lie on the host, which are copied to it for each batch.
    """

    idle: tuple[str, ...] = ()
    copied: bool = False


def weight_use(tensors: tuple[ModelTensor, ...], flags: Flags, placement: Placement, n_ubatch: int) -> WeightUse:
    """What ``placement``, made of ``flags``, comes to for a model's weights; ``n_ubatch``: tokens computed at once."""
    return WeightUse(_idle(tensors, flags.overrides), flags.op_offload and _copied(tensors, placement, n_ubatch))


def _copied(tensors: tuple[ModelTensor, ...], placement: Placement, n_ubatch: int) -> bool:
    rows: dict[str, Shape] = {"MUL_MAT": (1, n_ubatch, 1, 1), "MUL_MAT_ID": (1, 1, n_ubatch, 1)}
    wanted = {
        op
        for op, ne in rows.items()
        if any(d.backend.offload_op(Tensor(op, F32, ne, packed_strides(F32, ne), [])) for d in placement.devices)
    }
    return any(t.op in wanted and t.layer not in (INPUT, OUTPUT) and placement.tensors[t.role].is_host for t in tensors)


def _idle(tensors: tuple[ModelTensor, ...], overrides: tuple[Override, ...]) -> tuple[str, ...]:
    if not overrides:
        return ()
    names = tuple(t.name for t in tensors)
    used = {rule for _, rule in matches(tuple(pattern for pattern, _ in overrides), names)}
    made_use = {_flag(overrides[rule][0]) for rule in used}
    found: dict[str, None] = {}
    for rule, (pattern, buffer) in enumerate(overrides):
        if rule in used:
            continue
        flag, spelled = _flag(pattern), f"-ot {shown(f'{pattern}={buffer}')}"
        search = compile_pattern(pattern)
        taken = any(search(name) for name in names)
        if flag:
            if not taken and flag not in made_use:
                found[f"{flag} matches no tensor of this model"] = None
        elif taken:
            found[f"{spelled} has no effect: an override before it takes all it matches"] = None
        else:
            found[f"{spelled} matches no tensor of this model"] = None
    said = tuple(found)
    if len(said) <= _MOST + 1:
        return said
    return (*said[:_MOST], f"{len(said) - _MOST} more overrides match no tensor, or none that is not taken before")


def _flag(pattern: str) -> str:
    """The flag that stands for this pattern; empty for one that ``-ot`` gave."""
    return next((flag for flag, form in _MADE if form.fullmatch(pattern)), "")
