"""``--search``: the largest settings that cost a plan nothing, or the largest with which there is a plan at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from memplan.errors import FlagError, shown
from memplan.llama.flag_fields import same_setting
from memplan.llama.flags import Flags
from memplan.llama.memory.kv import CELL_PADDING
from memplan.planning.layout import Layout
from memplan.planning.probing import (
    BITS,
    CACHES,
    LEAST_CONTEXT,
    Options,
    Prober,
    Words,
    cache_types,
    largest_number,
)
from memplan.planning.problem import Problem
from memplan.planning.search import Search

SEARCHED: Final = {
    "c": "c", "ctx": "c", "ctx-size": "c", "context": "c", "ub": "ub", "ubatch": "ub", "ubatch-size": "ub",
    "np": "np", "parallel": "np", "slots": "np", "cache": "cache", "ctk": "cache", "ctv": "cache",
}  # fmt: skip
"""Names of settings that may be searched for, and what they stand for."""


SLOTS: Final = (16, 8, 6, 4, 3, 2)
"""Numbers of slots that are tried when there may be more."""


def widen(problem: Problem, name: str) -> tuple[Words, int, tuple[Layout, ...]]:
    """The flags that raise a setting as far as no expert and no layer loses its place on a GPU.

    Where there is no plan for the setting as given, it is lowered as little as can be. Empty when it is best as given.
    Also how many estimates that took, and layouts that fit. Raises FlagError for a setting that cannot be searched for.
    """
    axis = SEARCHED.get(name.strip().lstrip("-"))
    if axis is None:
        raise FlagError(f"--search {shown(name)}: must be c, ub, np or cache")
    asked = problem.flags.given & same_setting("-c")
    if axis == "c" and not asked:
        words, count, hints = _in_full(problem)
        if words:
            return words, count, hints
    probe = Prober(problem)
    base = probe.plan(())
    costs = Search(problem).costs()
    if base is None and costs is not None and costs.first is None and costs.fixed_homes is None:
        probe.partial = True
        base = probe.plan(())
    if base is None:
        return _lowered(probe, axis), probe.estimates, probe.hints
    least, layout = base.weights, base.layout

    def free(words: Sequence[str]) -> bool:
        found = probe.plan(words)
        if found is None or found.layout.no_op_offload != layout.no_op_offload:
            return False
        return found.weights >= least and found.layout.first <= layout.first

    flags = probe.flags
    if axis == "c":
        most = probe.trained * (1 if flags.kv_unified else flags.n_parallel) // CELL_PADDING
        steps = largest_number(most, lambda n: free(_context(n)), probe.n_ctx // CELL_PADDING)
        words = _context(steps) if steps and steps * CELL_PADDING > probe.n_ctx else ()
    elif axis == "ub":
        higher = [2**n for n in range(flags.n_batch.bit_length() - 1, 4, -1) if 2**n > flags.n_ubatch]
        words = next((w for ub in higher if free(w := ("-ub", str(ub)))), ())
    elif axis == "np":
        more = [_slots(flags, n, probe.n_ctx) for n in SLOTS if n > flags.n_parallel]
        words = next((w for w in more if free(w)), ())
    else:
        better = [kind for kind in CACHES if BITS[kind] > BITS[flags.type_k]]
        words = next((kept for kind in better if free(kept := ("-ctk", kind, "-ctv", kind))), ())
    return words, probe.estimates, probe.hints


def _in_full(problem: Problem) -> tuple[Words, int, tuple[Layout, ...]]:
    """The largest context with which every layer, its experts too, is on a GPU; nothing where there is none.

    Where no context was asked for, the model's own is no reason to take a layer or an expert off a GPU.
    """
    probe = Prober(problem)

    def in_full(steps: int) -> bool:
        found = probe.plan(_context(steps))
        return found is not None and not (found.layout.first or found.layout.host)

    least = max(LEAST_CONTEXT, CELL_PADDING * probe.flags.n_parallel) // CELL_PADDING
    steps = largest_number(probe.trained // CELL_PADDING, in_full, least)
    fits_as_it_is = steps is not None and steps * CELL_PADDING >= probe.trained
    return () if steps is None or fits_as_it_is else _context(steps), probe.estimates, probe.hints


def _lowered(probe: Prober, axis: str) -> Words:
    flags = probe.flags
    for copies in (True, None):  # prompts are slow without
        probe.copies = copies
        if axis == "c":
            change = probe.context()
        elif axis == "ub":
            change = probe.ubatch()
        else:
            change = probe.first_of(cache_types(flags) if axis == "cache" else _fewer_slots(flags, probe.n_ctx))
        if change is not None:
            return change.words
    return ()


def _fewer_slots(flags: Flags, n_ctx: int) -> Options:
    """Fewer slots: with the context that all had together, else with what each had."""
    options: Options = []
    for n in range(flags.n_parallel - 1, 0, -1):
        words = _slots(flags, n, n_ctx)
        options += [(words[:2], 1.0)] if "-c" in words else []
        options.append((words, 1.0))
    return options


def _slots(flags: Flags, count: int, n_ctx: int) -> Words:
    """So many slots, each with the context that it had: a part of its own, or all of a shared one."""
    words = ("-np", str(count))
    if flags.kv_unified:
        return (*words, "-kvu") if count > 1 and "-kvu" not in flags.given else words
    return (*words, "-c", str(n_ctx // flags.n_parallel * count))


def _context(steps: int) -> Words:
    return "-c", str(steps * CELL_PADDING)
