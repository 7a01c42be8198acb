"""What ran short of memory once everything was loaded: which op, from how many tokens on."""

from __future__ import annotations

from typing import Final

from memplan.diagnosing.log import Failure, Load
from memplan.explaining.names import ranges
from memplan.explaining.run_time import explain_run_time
from memplan.notes import mib
from memplan.question import Question

_OPS: Final = ("ggml_cuda_op_", "ggml_cuda_mul_", "ggml_cuda_flash_", "argsort_f32_i32_cuda", "top_k_f32_i32_cuda")
"""What the functions that compute an op are called."""


def what_ran_out(load: Load, failure: Failure, question: Question | None) -> str:
    """When it came, and what memplan knows of that moment; to be added to a sentence. ``question``: what was loaded."""
    of = f" of {load.prompt:,}" if load.prompt > load.done else ""
    said = f"; it came after {load.done:,} tokens{of} of a prompt" if load.done or load.prompt else ""
    ops = dict.fromkeys(place for place in failure.places if place.startswith(_OPS))
    if ops:
        said += f", under {' and '.join(ops)}" if said else f"; it came under {' and '.join(ops)}"
    return said if question is None else f"{said}{_by_rule(load, failure, question)}"


def _by_rule(load: Load, failure: Failure, question: Question) -> str:
    """Which op takes most by then, and what was left for it; empty where that is not known."""
    if load.done:  # the batch that failed is the one after those
        question = question.with_(
            filled=max(load.done, min(load.done + question.flags.n_batch, load.prompt or 1 << 40))
        )
    found = explain_run_time(question)
    uses = {use.device: use for use in found.devices if use.modelled and use.pool and not use.drafts}
    left = {device.name: device.left_at_start for device in found.estimate.devices}
    device = failure.buffer or min(uses, key=lambda name: left[name] - uses[name].bytes, default="")
    use = uses.get(device)
    if use is None:
        return ""
    first = use.ops[0]
    layers = f" (layers {ranges(first.layers)})" if first.layers else ""
    return (
        f"; {first.base}{layers} takes {mib(first.bytes)} on {device} for {first.tokens:,} tokens at once with"
        f" {first.filled:,} in the slot, {mib(use.bytes)} in all, where {mib(max(0, left[device]))} were"
        " left by what was loaded"
    )
