"""Other settings: the nearest that fit when nothing does. Each is a whole plan of its own, proved by an estimate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from memplan.llama.flag_fields import PLACEMENT_AND_DEVICES
from memplan.llama.flag_words import read_flags, without
from memplan.llama.flags import Flags
from memplan.llama.memory.kv import CELL_PADDING
from memplan.llama.placement import MAX_BACKENDS
from memplan.planning.probing import (
    LEAST_CONTEXT,
    LEAST_UBATCH,
    UBATCH_STEP,
    Change,
    Prober,
    Words,
    asked_ubatch,
    cache_types,
    slots,
)
from memplan.planning.problem import Problem, leaves_margins
from memplan.planning.search import Search

_MENDS: Final[Mapping[str, Callable[[Flags], list[Words]]]] = {
    "k-v-types-differ": lambda flags: [("-ctv", flags.type_k), ("-ctk", flags.type_v)],
    "quantized-v-needs-flash-attention": lambda flags: [("-fa", "on"), ("-ctk", "f16", "-ctv", "f16")],
    "permuted-quantized-tensor": lambda flags: [("-ctk", "f16", "-ctv", "f16")],
}


def nearest_changes(failed: Search, chosen: Words = (), partial: bool = False) -> tuple[tuple[Change, ...], int]:
    """Changes that make a plan fit where this search found none, the smallest first; and how many estimates they took.

    With all attention on GPUs, and where ``partial`` with whole layers on the host too, if that changes less.
    ``chosen``: words at the end of the problem's that are not the user's.
    """
    probe = Prober(failed.problem)
    found: list[Change | None] = []
    if failed.refused is not None:
        mends = _MENDS.get(failed.refused.kind)
        words = mends(probe.flags) if mends else []
        found = [probe.change(mend, 0.5) for mend in words]
        if partial and not any(found):
            found = [Prober(failed.problem, partial).change(mend, 0.5) for mend in words]
    else:
        together: Change | None = None
        for copies in (True, False):
            probe.copies = copies
            if probe.fits(_smallest(probe.flags)):
                found += _smaller(probe, [change for change in found if change is not None])
                together = together or (None if any(found) else _all_smaller(probe))
            if any(found) and not failed.crowded:  # copies take room that a crowded host may have to have
                break
        if partial and not failed.crowded:
            some = Prober(failed.problem, partial)
            some.hints = probe.hints
            if some.fits(_smallest(some.flags)):
                found += _smaller(some, [change for change in found if change is not None])
                together = together or (None if any(found) else _all_smaller(some))
        found += [] if any(found) else [together]
    found.append(without_placement(failed.problem, chosen, probe))
    if partial and not any(found):
        found.append(_without_gpus(failed))
    return _in_order(found), probe.estimates


def _in_order(found: Iterable[Change | None]) -> tuple[Change, ...]:
    return tuple(sorted((change for change in found if change is not None), key=lambda change: -change.kept))


def _smallest(flags: Flags) -> Words:
    """Everything as small as it is proposed: if this does not fit, no single change does."""
    sizes = ("-c", str(min(flags.n_ctx or LEAST_CONTEXT, LEAST_CONTEXT)), "-ub", str(LEAST_UBATCH), "-np", "1")
    return (*sizes, "-ctk", "q4_0", "-ctv", "q4_0") if flags.flash_attn != "off" else sizes


def _all_smaller(probe: Prober) -> Change | None:
    """The largest context with all else as small as it is proposed: where no single change is enough."""
    words = _smallest(probe.flags)[2:]
    rest = Prober(probe.problem.with_words(*words), probe.partial)
    rest.copies, rest.hints = probe.copies, probe.hints
    change = (rest.change((), 0.0) if rest.fits(()) else None) or rest.context()
    probe.estimates += rest.estimates
    if change is None:
        return None
    return replace(change, words=(*words, *change.words), args=(*words, *change.args), kept=0.0)


def _smaller(probe: Prober, known: Sequence[Change]) -> Iterator[Change | None]:
    """A smaller context, ubatch, cache; fewer slots; caches on the host if nothing else helps.

    ``known``: changes that fit otherwise: of those settings, only what keeps more is of interest.
    """
    flags = probe.flags
    kept = {change.words[0]: change for change in known}

    def share(flag: str) -> float:
        return kept[flag].kept if flag in kept else 0.0

    def next_to(flag: str) -> int:
        return kept[flag].value + 1 if flag in kept else 0

    yield (context := probe.context(least=next_to("-c")))
    yield (ubatch := probe.ubatch(least=next_to("-ub")))
    yield (fewer := probe.first_of(slots(flags), share("-np")))
    yield (cache := probe.first_of(cache_types(flags), share("-ctk")))
    if flags.offload_kqv and not (known or context or ubatch or fewer or cache):
        yield probe.change(("-nkvo",), 0.1)


def changes_in_full(failed: Search, slow: bool) -> tuple[tuple[Change, ...], int]:
    """About the largest context with which every layer is on a GPU, as a change; and how many estimates it took.

    Where whole layers can be on the host instead, to a 32nd of what was asked for.  ``slow``: whether prompts would be,
    too: then also about the largest ubatch.
    """
    probe = Prober(failed.problem)
    probe.copies = True
    found = [probe.context(_step(probe.n_ctx, CELL_PADDING))]
    if slow:
        found.append(probe.ubatch(_step(asked_ubatch(probe.flags), UBATCH_STEP)))
    return _in_order(found), probe.estimates


def _step(asked: int, step: int) -> int:
    return max(step, asked // 32 // step * step)


def _without_gpus(failed: Search) -> Change | None:
    """Everything on the host."""
    args = ("-ngl", "0", *(("--no-op-offload",) if failed.flags.op_offload else ()))
    estimate = failed.estimate(args)
    fits = leaves_margins(estimate, failed.problem.margins)
    return Change(args, args, estimate, 0.0) if fits else None


def without_placement(problem: Problem, chosen: Words = (), probe: Prober | None = None) -> Change | None:
    """The plan without the placement flags that the user gave; None when none was given, or nothing fits.

    ``chosen``: as ``nearest_changes`` takes it.  ``probe``: counts the estimates.
    """
    words = problem.flags.words()
    drop = tuple(sorted(PLACEMENT_AND_DEVICES & {flag for flag, _ in read_flags(words[: len(words) - len(chosen)])}))
    if not drop:
        return None
    problem = problem.with_flags(problem.flags.without(PLACEMENT_AND_DEVICES))
    fewer, _ = few_enough(problem)
    search = Search(problem.with_words(*fewer))
    found = search.find(effort="good") or search.find(partial=True, effort="good")
    if probe is not None:
        probe.estimates += search.estimates
    if found is None:
        return None
    args = (*without(chosen, PLACEMENT_AND_DEVICES), *fewer, *found.args)
    return Change((), args, found.estimate, 0.5, drop)


def few_enough(problem: Problem) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """``-dev`` without the smallest GPUs, and a note, when there are more than llama.cpp's scheduler can hold."""
    flags, gpus = problem.flags, problem.rig.gpus
    if flags.devices is not None or flags.split_mode == "none" or len(gpus) < MAX_BACKENDS:
        return (), ()
    kept = sorted(sorted(range(len(gpus)), key=lambda i: (-gpus[i].free, i))[: MAX_BACKENDS - 1])
    names = ",".join(problem.rig.names[i] for i in kept)
    lost = ", ".join(name for i, name in enumerate(problem.rig.names) if i not in kept)
    return ("-dev", names), (f"{lost} is left out: llama.cpp takes at most {MAX_BACKENDS - 1} GPUs",)
