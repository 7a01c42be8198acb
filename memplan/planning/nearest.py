"""Other settings: the nearest that fit when nothing does, and the largest that cost a plan nothing.

Each is a whole plan of its own, proved by an exact estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from memplan.errors import FlagError, shown
from memplan.llama.flags import Flags, arity, parse_flags, read_flags
from memplan.llama.placement import MAX_BACKENDS
from memplan.planning.attempt import Effort
from memplan.planning.search import Search
from memplan.planning.setting import Candidate, Setting, leaves_margins
from memplan.result import Estimate

CONTEXT_STEP: Final = 1024
"""Tokens between the contexts that are tried."""

LEAST_CONTEXT: Final = 4096
"""The smallest context that is proposed, as llama.cpp's ``--fit-ctx``."""

LEAST_UBATCH: Final = 32
"""The smallest ubatch that is proposed: below it the GPUs take no op from the host
(``ggml_backend_cuda_device_offload_op``)."""

SEARCHED: Final = {
    "c": "c", "ctx": "c", "ctx-size": "c", "context": "c", "ub": "ub", "ubatch": "ub", "ubatch-size": "ub",
    "np": "np", "parallel": "np", "slots": "np", "cache": "cache", "ctk": "cache", "ctv": "cache",
}  # fmt: skip
"""Names of settings that may be searched for, and what they stand for."""

_CACHES = ("f16", "q8_0", "q4_0")
_BITS = {"f32": 32, "f16": 16, "bf16": 16, "q8_0": 8, "q5_1": 6, "q5_0": 6, "q4_1": 5, "q4_0": 4, "iq4_nl": 4}
PLACEMENT: Final = frozenset({
    "-ngl", "--gpu-layers", "--n-gpu-layers", "-ts", "--tensor-split", "-ot", "--override-tensor", "-cmoe", "--cpu-moe",
    "-ncmoe", "--n-cpu-moe", "-ncffn", "--n-cpu-ffn", "-sm", "--split-mode", "-mg", "--main-gpu", "-dev", "--device",
})  # fmt: skip
"""Flags that say what goes where."""
Words = tuple[str, ...]

_MENDS: Final[Mapping[str, Callable[[Flags], list[Words]]]] = {
    "k-v-types-differ": lambda flags: [("-ctv", flags.type_k), ("-ctk", flags.type_v)],
    "quantized-v-needs-flash-attention": lambda flags: [("-fa", "on"), ("-ctk", "f16", "-ctv", "f16")],
    "permuted-quantized-tensor": lambda flags: [("-ctk", "f16", "-ctv", "f16")],
}


@dataclass(frozen=True, slots=True)
class Change:
    """A change with which a plan fits.

    ``change``: what to change, as it is written on a command line.  ``args``: the changed flags and all placement
    flags, to add to the user's own.  ``drop``: flags of the user's that must go.  ``kept``: about how much of the
    setting is left, 1 for all.  ``estimate``: exact.
    """

    change: str
    args: Words
    estimate: Estimate
    kept: float
    drop: Words = ()


class Prober:
    """Finds plans for variants of a setting, and counts their estimates; ``copies``: as ``Search.find`` takes it."""

    def __init__(self, setting: Setting, partial: bool = False) -> None:
        self.setting = setting
        self.partial = partial
        self.copies: bool | None = None
        self.flags = parse_flags(setting.argv, setting.app)
        self.estimates = 0

    def fits(self, words: Sequence[str]) -> bool:
        """Whether any placement fits with these flags added."""
        return self._find(words, "any") is not None

    def plan(self, words: Sequence[str]) -> Candidate | None:
        """The best placement with these flags added."""
        return self._find(words, "best")

    def change(self, words: Words, kept: float) -> Change | None:
        """The same as a change; None when nothing fits."""
        found = self._find(words, "good")
        return None if found is None else Change(" ".join(words), (*words, *found.args), found.estimate, kept)

    def _find(self, words: Sequence[str], effort: Effort) -> Candidate | None:
        search = Search(replace(self.setting, argv=(*self.setting.argv, *words)))
        found = search.find(self.partial, effort, self.copies)
        self.estimates += search.estimates
        return found

    @property
    def n_ctx(self) -> int:
        """Tokens of context that the flags ask for."""
        return self.flags.n_ctx or self.trained

    @property
    def trained(self) -> int:
        """The model's training context."""
        return Search(self.setting).question.model.hparams.n_ctx_train


def nearest_changes(failed: Search, chosen: Words = (), partial: bool = False) -> tuple[tuple[Change, ...], int]:
    """Changes that make a plan fit where this search found none, the smallest first; and how many estimates they took.

    ``chosen``: flags at the end of the setting's that are not the user's.  ``partial``: with whole layers on the host.
    """
    probe = Prober(failed.setting, partial)
    found: list[Change | None] = []
    if failed.refused is not None:
        mends = _MENDS.get(failed.refused.kind)
        found = [probe.change(words, 0.5) for words in mends(probe.flags)] if mends else []
    elif not failed.host_is_short:
        for copies in (True, False):
            probe.copies = copies
            if probe.fits(_smallest(probe.flags)):
                found = list(_smaller(probe))
            if any(found):
                break
    found.append(_without_placement(failed.setting, chosen, probe))
    if partial and not any(found):
        found.append(_without_gpus(failed))
    return _in_order(found), probe.estimates


def _in_order(found: Iterable[Change | None]) -> tuple[Change, ...]:
    return tuple(sorted((change for change in found if change is not None), key=lambda change: -change.kept))


def _smallest(flags: Flags) -> Words:
    """Everything as small as it is proposed: if this does not fit, no single change does."""
    sizes = ("-c", str(min(flags.n_ctx or LEAST_CONTEXT, LEAST_CONTEXT)), "-ub", str(LEAST_UBATCH), "-np", "1")
    return (*sizes, "-ctk", "q4_0", "-ctv", "q4_0") if flags.flash_attn != "off" else sizes


def _smaller(probe: Prober) -> Iterator[Change | None]:
    """A smaller context, ubatch, cache; fewer slots; caches on the host if nothing else helps."""
    flags = probe.flags
    helped = False
    change = reach_context(probe)
    for options in (ubatches(flags), slots(flags), cache_types(flags)):
        helped = helped or change is not None
        yield change
        change = next((c for words, kept in options if probe.fits(words) and (c := probe.change(words, kept))), None)
    yield change
    if flags.offload_kqv and not helped and change is None:
        yield probe.change(("-nkvo",), 0.1)


def reach_context(probe: Prober, step: int = CONTEXT_STEP) -> Change | None:
    """The largest context with which a plan fits, in whole steps of tokens, below what was asked for."""
    n_ctx = probe.n_ctx
    least = -(-max(LEAST_CONTEXT, CONTEXT_STEP * probe.flags.n_parallel) // step)
    steps = largest_number((n_ctx - 1) // step, lambda n: probe.fits(("-c", str(n * step))), least)
    while steps is not None:
        change = probe.change(("-c", str(steps * step)), steps * step / n_ctx)
        if change is not None:
            return change
        steps = steps - 1 if steps > least else None
    return None


def context_for_all(failed: Search) -> tuple[tuple[Change, ...], int]:
    """About the largest context with which every layer is on a GPU, as a change; and how many estimates it took.

    Where whole layers can be on the host instead, to a 32nd of the context asked for: the rest is ``--search c``'s.
    """
    probe = Prober(failed.setting)
    probe.copies = True
    step = max(CONTEXT_STEP, probe.n_ctx // 32 // CONTEXT_STEP * CONTEXT_STEP)
    change = reach_context(probe, step)
    return (() if change is None else (change,)), probe.estimates


def widen(setting: Setting, name: str) -> tuple[Words, int]:
    """The flags that raise a setting as far as no expert loses its place on a GPU, or lower it as far as it must be.

    Empty when it is best as given. Raises FlagError for a setting that cannot be searched for.
    """
    axis = SEARCHED.get(name.strip().lstrip("-"))
    if axis is None:
        raise FlagError(f"--search {shown(name)}: must be c, ub, np or cache")
    probe = Prober(setting)
    base = probe.plan(())
    if base is None:
        return _lowered(probe, axis), probe.estimates
    least = base.weights

    def free(words: Sequence[str]) -> bool:
        found = probe.plan(words)
        if found is None or found.layout.no_op_offload != base.layout.no_op_offload:
            return False
        return found.weights >= least

    flags = probe.flags
    words: Words
    if axis == "c":
        most = probe.trained * (1 if flags.kv_unified else flags.n_parallel) // CONTEXT_STEP
        steps = largest_number(most, lambda n: free(_context(n)), probe.n_ctx // CONTEXT_STEP)
        words = _context(steps) if steps and steps * CONTEXT_STEP > probe.n_ctx else ()
    elif axis == "ub":
        higher = [2**n for n in range(flags.n_batch.bit_length() - 1, 4, -1) if 2**n > flags.n_ubatch]
        words = next((w for ub in higher if free(w := ("-ub", str(ub)))), ())
    elif axis == "np":
        higher = [n for n in (16, 8, 6, 4, 3, 2) if n > flags.n_parallel]
        words = next((w for n in higher if free(w := ("-np", str(n)))), ())
    else:
        better = [kind for kind in _CACHES if _BITS[kind] > _BITS[flags.type_k]]
        words = next((kept for kind in better if free(kept := ("-ctk", kind, "-ctv", kind))), ())
    return words, probe.estimates


def _lowered(probe: Prober, axis: str) -> Words:
    if axis == "c":
        change = reach_context(probe)
        return () if change is None else change.args[:2]
    options = {"ub": ubatches, "np": slots, "cache": cache_types}[axis](probe.flags)
    return next((words for words, _ in options if probe.fits(words)), ())


def _context(steps: int) -> Words:
    return "-c", str(steps * CONTEXT_STEP)


def largest_number(high: int, fits: Callable[[int], bool], low: int) -> int | None:
    """The largest number up to ``high`` that fits, by bisection; None when ``low`` does not."""
    if high < low or not fits(low):
        return None
    if fits(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


Options = list[tuple[Words, float]]
"""Flags, and about how much of the setting they leave, 1 for all."""


def ubatches(flags: Flags) -> Options:
    """Smaller ubatches, the largest first, each with its share of what was asked for."""
    ubatch = min(flags.n_ubatch, flags.n_batch)
    lower = [2**n for n in range(ubatch.bit_length(), 4, -1) if LEAST_UBATCH <= 2**n < ubatch]
    return [(("-ub", str(ub)), ub / ubatch) for ub in lower]


def slots(flags: Flags) -> Options:
    """Fewer slots, the most first."""
    count = flags.n_parallel
    unified = ("-kvu",) if flags.kv_unified and "-kvu" not in flags.given else ()
    fewer = [n for n in range(count - 1, 0, -1) if n < 4 or n in (count - 1, count // 2, count // 4)]
    return [(("-np", str(n), *(unified if n > 1 else ())), n / count) for n in fewer]


def cache_types(flags: Flags) -> Options:
    """Cache types of fewer bits, the most first."""
    bits = _BITS[flags.type_k]
    lower = [kind for kind in _CACHES if _BITS[kind] < bits]
    return [(("-ctk", kind, "-ctv", kind), _BITS[kind] / bits) for kind in lower]


def _without_gpus(failed: Search) -> Change | None:
    """Everything on the host."""
    args = ("-ngl", "0", *(("--no-op-offload",) if failed.flags.op_offload else ()))
    estimate = failed.estimate(args)
    fits = leaves_margins(estimate, failed.setting.margins)
    return Change(" ".join(args), args, estimate, 0.0) if fits else None


def _without_placement(setting: Setting, chosen: Words, probe: Prober) -> Change | None:
    """The plan without the placement flags that the user gave."""
    given = list(read_flags(setting.argv[: len(setting.argv) - len(chosen)]))
    drop = tuple(sorted(PLACEMENT & {flag for flag, _ in given}))
    if not drop:
        return None
    kept: list[str] = []
    for flag, value in [*given, *read_flags(chosen)]:
        if flag not in PLACEMENT:
            kept += [flag, value] if arity(flag) else [flag]
    fewer, _ = few_enough(replace(setting, argv=tuple(kept)))
    search = Search(replace(setting, argv=(*kept, *fewer)))
    found = search.find(effort="good") or search.find(partial=True, effort="good")
    probe.estimates += search.estimates
    if found is None:
        return None
    others = [flag for pair in read_flags(chosen) if pair[0] not in PLACEMENT for flag in pair]
    return Change(f"without {' '.join(drop)}", (*others, *fewer, *found.args), found.estimate, 0.5, drop)


def few_enough(setting: Setting) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """``-dev`` without the smallest GPUs, and a note, when there are more than llama.cpp's scheduler can hold."""
    flags = parse_flags(setting.argv, setting.app)
    gpus = setting.rig.gpus
    if flags.devices is not None or flags.split_mode == "none" or len(gpus) < MAX_BACKENDS:
        return (), ()
    kept = sorted(sorted(range(len(gpus)), key=lambda i: (-gpus[i].free, i))[: MAX_BACKENDS - 1])
    names = ",".join(setting.rig.names[i] for i in kept)
    lost = ", ".join(name for i, name in enumerate(setting.rig.names) if i not in kept)
    return ("-dev", names), (f"{lost} is left out: llama.cpp takes at most {MAX_BACKENDS - 1} GPUs",)
