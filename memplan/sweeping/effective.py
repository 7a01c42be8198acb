"""What llama.cpp makes of an axis' values: where it takes another than the one that was given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from memplan.llama.flag_fields import same_setting
from memplan.models.paths import path_ways
from memplan.models.registry import find_architecture
from memplan.releases import find_release
from memplan.result import Estimate
from memplan.sweeping.axes import Axis, Value


def is_unfused(axis: Axis, value: Value, estimate: Estimate) -> bool:
    """Whether small ops compute what the axis says is ``fused``: the release has no other way."""
    if not axis.is_path or value != "fused":
        return False
    arch = find_architecture(estimate.model.architecture)
    return path_ways(arch, axis.name, find_release(estimate.llama)[0]) == ("unfused",)


def remarks(axes: Sequence[Axis], points: Iterable[tuple[Sequence[Value], Estimate]]) -> tuple[str, ...]:
    """One line for each kind of value that llama.cpp takes otherwise, or that needs a word; each said once.

    ``points``: the values of ``axes``, and the estimate with them.
    """
    said: dict[str, None] = {}
    for values, estimate in points:
        for axis, value in zip(axes, values, strict=True):
            text = _remark(axis, value, estimate)
            if text:
                said[text] = None
    return tuple(said)


def _remark(axis: Axis, value: Value, e: Estimate) -> str:
    if e.refused is not None:
        return ""
    if is_unfused(axis, value, e):
        return f"{e.llama} has no fused {axis.name}: with it, fused stands for unfused"
    if not axis.flags or not isinstance(value, int):
        return ""
    setting = same_setting(axis.flags[0])
    if "-ub" in setting and value > e.n_ubatch:
        return f"-ub above {e.n_ubatch:,} is taken as {e.n_ubatch:,}: no more than -b or the context"
    if "-b" in setting and value > e.n_batch:
        return f"-b above {e.n_batch:,} is taken as {e.n_batch:,}: no more than the context"
    if "-c" in setting and value == 0:
        return f"-c 0 is the model's own context: {e.n_ctx:,} tokens"
    if "-np" in setting and value > 1 and e.flags.kv_unified:
        return "the context is that of all slots together: they share it"
    if "-np" in setting and value > 1:
        return "the context is that of all slots together: each has its part"
    return ""
