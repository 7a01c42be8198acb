"""The largest value of an axis with which everything still fits; or the smallest, as of layers kept on the host.

By bisection where what is left falls as the value rises, by scan where it does not: compute buffers are not monotone,
and llama.cpp refuses some settings between others that it takes. Values just above the answer are tried as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

from memplan.backends.devices import Rig
from memplan.errors import FlagError, shown
from memplan.estimator import model_of
from memplan.gguf.header import Header
from memplan.halving import last_before
from memplan.llama.flag_fields import same_setting
from memplan.llama.flag_table import NUMBER
from memplan.llama.flags import parse_flags
from memplan.llama.memory.kv import CELL_PADDING
from memplan.question import Question
from memplan.result import Estimate
from memplan.sweeping.axes import Axis, Value, axis_flags, make_axis, parse_axis
from memplan.sweeping.sweep import Sweeper

BISECTION = "bisection"
SCAN = "scan"
SAMPLES = 9
"""Values that are tried first, to see whether what is left only falls."""
SCANNED = 257
"""Values that a scan tries from the top down, evenly spread, before it halves the step above the first that fits."""
NEIGHBOURS = 8
"""Values above the answer of a bisection that are tried too: packing moves by a little from value to value."""
MOST_SLOTS = 64
MOST_UBATCH = 8192


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest value that fits, or the smallest: the farthest one way, as the values were put in order.

    ``value``: None when none does.  ``estimate``: with it, or with the nearest value when none fits.  ``beyond``: the
    next value and its estimate, which does not fit; None when the axis ends first.  ``method``: BISECTION or SCAN.
    ``tried``: how many values were estimated.  ``first``: the value that is nearest, where the search starts.
    """

    value: int | None
    estimate: Estimate
    beyond: tuple[int, Estimate] | None
    method: str
    tried: int
    first: int


def slack(estimate: Estimate, margin: int | None = None) -> int | None:
    """Bytes left on the device that has least, the host too if its memory is known; None when refused.

    ``margin`` bytes of each GPU are not counted as left; None: its reserve.
    """
    if estimate.refused is not None:
        return None
    left = [device.spare if margin is None else device.left - margin for device in estimate.devices]
    if estimate.host.left is not None:
        left.append(estimate.host.left)
    return min(left, default=0)


def largest(candidates: Sequence[int], ask: Callable[[int], Estimate], margin: int | None = None) -> Largest:
    """The last of ``candidates`` (in order, rising for the largest) that fits, as ``ask`` answers.

    ``margin``: bytes that are to be left on every GPU; None: its reserve.
    """
    known: dict[int, Estimate] = {}

    def at(i: int) -> Estimate:
        if i not in known:
            known[i] = ask(candidates[i])
        return known[i]

    def left(i: int) -> int | None:
        return slack(at(i), margin)

    last = len(candidates) - 1
    samples = _spread(last, SAMPLES)
    monotone = _falls([left(i) for i in samples])
    best = _last_fit(samples if monotone else _spread(last, SCANNED), lambda i: (left(i) or 0) >= 0 and at(i).fits)
    return Largest(
        None if best < 0 else candidates[best],
        estimate=at(max(best, 0)),
        beyond=(candidates[best + 1], at(best + 1)) if best < last else None,
        method=BISECTION if monotone else SCAN,
        tried=len(known),
        first=candidates[0],
    )


def _spread(last: int, count: int) -> list[int]:
    """Up to ``count`` indices from 0 to ``last``, evenly."""
    return sorted({round(i * last / (count - 1)) for i in range(count)})


def _falls(left: Sequence[int | None]) -> bool:
    """Whether what is left crosses 0 once at most, and only falls from there on; None, refused, is less than any."""
    amounts = [-(1 << 62) if x is None else x for x in left]
    fitting = [i for i, x in enumerate(amounts) if x >= 0]
    start = fitting[-1] if fitting else 0
    rest = amounts[start:]
    return len(fitting) == start + bool(fitting) and all(b <= a for a, b in pairwise(rest))


def _last_fit(grid: Sequence[int], fits: Callable[[int], bool]) -> int:
    """The largest index that fits, -1 for none: from the top of the grid down, then halving what lies above it."""
    found = next((k for k in range(len(grid) - 1, -1, -1) if fits(grid[k])), -1)
    if found < 0 or found == len(grid) - 1:
        return grid[found] if found >= 0 else -1
    low = last_before(grid[found], grid[found + 1], fits)
    above = range(min(low + NEIGHBOURS, grid[found + 1] - 1), low, -1)
    return next((i for i in above if fits(i)), low)


def candidates(sweeper: Sweeper, name: str, option: str = "--max") -> tuple[Axis, tuple[int, ...]]:
    """The axis to be made as large as possible, and the values to try: those that were given, or all that make sense.

    Rising.  ``option``: how it was asked for, ``--max`` or ``--min``.  Raises FlagError for an axis that has no order.
    """
    flags = axis_flags(name, option)
    for axis in sweeper.axes:
        if axis.is_called(name):
            if not axis.is_number:
                raise FlagError(f"{option} {name}: {axis.name} has values that are no numbers")
            return axis, tuple(sorted(value for value in axis.values if isinstance(value, int)))
    if not flags or not all(flag in NUMBER | same_setting("-ngl") for flag in flags):
        raise FlagError(f"{option} {name}: takes no numbers, so none is last; name one that does, as ctx, np or ub")
    if flags[0] in same_setting("-ncmoe") and not model_of(sweeper.question).hparams.n_expert:
        raise FlagError(f"{option} {name}: the model has no experts; -ngl keeps whole layers of it on the host")
    values = _all_that_make_sense(sweeper.question, flags[0])
    if not values:
        raise FlagError(f"{option} {name}: say which values to try, as in --over {name}=1:64:1")
    return Axis(name, flags, tuple(values)), tuple(values)


def _all_that_make_sense(question: Question, flag: str) -> range:
    """The values of a setting; none where there is no telling."""
    hp = model_of(question).hparams
    if flag in same_setting("-c"):
        return range(CELL_PADDING, max(CELL_PADDING, hp.n_ctx_train) + 1, CELL_PADDING)
    if flag in same_setting("-np"):
        return range(1, MOST_SLOTS + 1)
    if flag in same_setting("-ub"):
        return range(32, min(MOST_UBATCH, max(32, question.flags.n_batch)) + 1, 32)
    if flag in same_setting("-ncmoe"):
        return range(hp.n_layer + 1)
    if flag in same_setting("-ngl"):
        return range(hp.n_layer + 2)
    return range(0)


def largest_of(
    sweeper: Sweeper, axis: Axis, values: Sequence[int], others: tuple[Value, ...], margin: int | None = None
) -> Largest:
    """The last of ``values`` that fits with one combination of all other axes' values, in their order."""
    at = sweeper.axes.index(axis)
    return largest(values, lambda value: sweeper.at((*others[:at], value, *others[at:])), margin)


Bound = Literal["largest", "smallest"]


def find_limit(
    header: Header,
    flags: Sequence[str],
    rig: Rig,
    name: str = "ctx",
    values: str | Sequence[int] | None = None,
    bound: Bound = "largest",
    margin: int | None = None,
    release: str = "latest",
    without_ops: Iterable[str] = (),
    app: str = "server",
    draft: Header | None = None,
    projector: Header | None = None,
) -> Largest:
    """The largest value of one setting with which everything still fits, or the smallest, as of ``ncmoe``.

    Args:
        header: the model, from ``read_model``.  rig: the GPUs.
        flags: llama-server's flags, as words; that of the setting is replaced.
        name: the setting: ``ctx``, ``np``, ``ub`` or any flag that takes a number.
        values: those to try, as ``[4096, 8192]`` or ``"4096:65536:4096"``; by default all that make sense.
        bound: ``largest`` or ``smallest``.  margin: bytes to leave on every GPU; None: 300 MiB on CUDA.
        release, without_ops, draft, projector: as in ``estimate``.  app: ``server`` or ``cli``.
    Raises:
        MemplanError: a setting, value, flag or device that cannot be, in one line.
    """
    if bound not in get_args(Bound):
        raise FlagError(f"bound {shown(bound)}: must be {' or '.join(get_args(Bound))}")
    parsed = parse_flags(flags, app)
    question = Question.of(header, parsed, rig, release, without_ops, draft=draft, projector=projector)
    if not isinstance(name, str):
        raise TypeError(f"name is a setting's, as in 'ctx'; this is of type {type(name).__name__}")
    given = () if values is None else (_axis(name, values),)
    axis, tried = candidates(Sweeper(question, given), name)
    return largest_of(Sweeper(question, [axis]), axis, tried if bound == "largest" else tried[::-1], (), margin)


def _axis(name: str, values: str | Sequence[int]) -> Axis:
    return parse_axis(f"{name}={values}") if isinstance(values, str) else make_axis(name, values)
