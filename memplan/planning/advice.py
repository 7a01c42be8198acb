"""What to change when settings do not fit: the best single flag, and the plan that keeps them all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from memplan.errors import BadHyperParameter
from memplan.llama.flag_fields import same_setting
from memplan.llama.flags import Flags
from memplan.llama.memory.kv import CELL_PADDING
from memplan.planning.drafter import drafter_places
from memplan.planning.nearest import without_placement
from memplan.planning.plan import Plan, make_plan
from memplan.planning.probing import (
    LEAST_CONTEXT,
    Change,
    Words,
    cache_types,
    largest_number,
    slots,
    ubatches,
)
from memplan.planning.problem import Problem, check_layers
from memplan.planning.search import Search
from memplan.result import Estimate

MOST_NODES: Final = 50_000
"""Nodes of the longest graph for which changes are tried: DeepSeek-V4-Pro's in b9842 has 48,000."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One change: the flags to add, their estimate, and what it frees where the shortage was; bytes.

    ``also``: another change that does as well, with its estimate: as many slots, each with a context of its own.
    """

    args: Words
    estimate: Estimate
    device: str
    freed: int
    also: tuple[Words, Estimate] | None = None


def advise(problem: Problem, found: Estimate) -> tuple[Advice | None, Plan | Change | None]:
    """The best single flag that makes ``found``, an estimate that does not fit, fit; and the problem's plan.

    Where there is no plan with the placement flags that were given, it is a ``Change`` without them.
    The flags are tried in the order of what they cost: slots that nobody asked for, copies of inputs, copies of
    experts, a smaller ubatch, fewer slots, a quantised cache, a smaller context. Every GPU keeps its reserve.
    Raises BadHyperParameter for a model of more layers than are planned, and for a graph of more nodes.
    """
    check_layers(problem.question)
    if max(found.nodes) > MOST_NODES:
        raise BadHyperParameter(f"{max(found.nodes):,} nodes: what would fit is looked for up to {MOST_NODES:,}")
    search = Search(replace(problem, margins=(0,) * len(problem.rig.gpus)))
    search.remember((), found)
    advice = next(_changes(search, found), None)
    plan = make_plan(problem, changes=False)
    if isinstance(plan, Plan):
        return advice, plan
    return advice, without_placement(problem) if plan.refused is None else None


def given(flags: Flags, flag: str) -> bool:
    """Whether a flag was given, by any of its names."""
    return bool(same_setting(flag) & flags.given)


def _changes(search: Search, found: Estimate) -> Iterator[Advice]:
    flags = search.flags

    def fits(words: Words) -> bool:
        changed = search.estimate(words)
        return changed.fits_with_reserve

    def advice(words: Words) -> Advice:
        changed = search.estimate(words)
        if found.short:
            worst = min(found.short, key=lambda device: device.left)
            after = next(device for device in changed.devices if device.name == worst.name)
            return Advice(words, changed, worst.name, worst.used - after.used)
        return Advice(words, changed, "the host", found.host.used - changed.host.used)

    count = str(flags.n_parallel)
    shared = flags.kv_unified and flags.n_parallel > 1
    unasked = shared and not given(flags, "-np") and not given(flags, "-kvu")
    own = (("-np", count) if unasked else ("-no-kvu",)) if shared else ()
    if unasked:
        one = ("-np", "1")
        first = next((words for words in (one, own) if fits(words)), None)
        if first is not None:
            also = (own, search.estimate(own)) if first == one and fits(own) else None
            yield replace(advice(first), also=also)
    single: list[Words] = [("-fa", "on")] if flags.flash_attn == "off" else []
    costs = search.costs()
    if found.pipeline_parallel and costs is not None:
        single.append(("-ot", f"output_norm={costs.names[search.default_layout(costs).homes()[-1]]}"))
    if flags.op_offload and any(buffer == "CPU" for _, buffer in flags.overrides):
        single.append(("--no-op-offload",))
    places, others = drafter_places(search.problem.question)
    single += [words for words in (*places, *others) if words]
    for options in (ubatches(flags), slots(flags)):
        single += [words for words, _ in options]
    single += [own] if own and not unasked else []
    single += [words for words, _ in cache_types(flags)]
    yield from (advice(words) for words in single if fits(words))
    least = max(LEAST_CONTEXT, CELL_PADDING * flags.n_parallel) // CELL_PADDING
    steps = largest_number((found.n_ctx - 1) // CELL_PADDING, lambda n: fits(("-c", str(n * CELL_PADDING))), least)
    if steps is not None:
        yield advice(("-c", str(steps * CELL_PADDING)))
