"""Flags that mend a load that failed, each tried before it is named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from memplan.result import Estimate

Try = Callable[[tuple[str, ...], bool], "Estimate | None"]
"""The estimate with some flags before the others' (True) or after them; None when they cannot be given."""

MOST: Final = 3
"""Mends that are named."""

MARGIN: Final = 128 << 20
"""Bytes that a mend leaves on every GPU."""


@dataclass(frozen=True, slots=True)
class Mend:
    """``args``: flags to add.  ``left``: bytes that the fullest GPU has left.  ``first``: they go before others."""

    args: tuple[str, ...]
    left: int
    first: bool = False


def find_mends(estimate: Estimate, attempt: Try, n_layers: int) -> tuple[Mend, ...]:
    """Flags with which the same load fits, those that change least first."""
    found: list[Mend] = []
    for family in (_slots, _moves, _ubatch, _experts, _context):
        for args, first in family(estimate, n_layers):
            tried = attempt(args, first)
            if tried is not None and tried.fits and (left := _left(tried)) >= MARGIN:
                found.append(Mend(args, left, first))
                break
        if len(found) == MOST:
            break
    if not found:
        found += _together(estimate, attempt)
    return tuple(found)


def _slots(estimate: Estimate, n_layers: int) -> Iterator[tuple[tuple[str, ...], bool]]:
    if estimate.flags.n_parallel > 1:
        yield ("-np", "1"), False


def _ubatch(estimate: Estimate, n_layers: int) -> Iterator[tuple[tuple[str, ...], bool]]:
    size = min(estimate.flags.n_ubatch, estimate.flags.n_batch, estimate.n_ctx)
    size = 1 << (max(size, 2) - 1).bit_length() - 1
    while size >= 64:
        yield ("-ub", str(size)), False
        size //= 2


def _context(estimate: Estimate, n_layers: int) -> Iterator[tuple[tuple[str, ...], bool]]:
    size = estimate.n_ctx // 2
    while size >= 8192:
        yield ("-c", str(size // 256 * 256)), False
        size //= 2


def _experts(estimate: Estimate, n_layers: int) -> Iterator[tuple[tuple[str, ...], bool]]:
    """More layers' experts on the host, a few at a time."""
    if not estimate.devices or any(device.compute + device.context > device.free for device in estimate.devices):
        return
    given = [pattern for pattern, buffer in estimate.flags.overrides if buffer == "CPU"]
    lowest = max((int(m[1]) + 1 for p in given if (m := re.match(r"blk\\\.(\d+)\\\.", p))), default=1)
    step = max(1, n_layers // 12)
    for n in range(lowest, n_layers + 1, step):
        yield ("-ncmoe", str(n)), False
    yield ("-cmoe",), False


def _moves(estimate: Estimate, n_layers: int) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Expert tensors of a short GPU's layers to the one with most room: as many as the shortage asks for."""
    if len(estimate.short) != 1 or len(estimate.devices) < 2:
        return
    short = estimate.short[0]
    roomy = max(estimate.devices, key=lambda device: device.left)
    if roomy.left <= 0:
        return
    layers = _layers_of(estimate, short.name, n_layers)
    for count in range(1, min(4, len(layers)) + 1):
        numbers = "|".join(map(str, layers[-count:]))
        which = f"({numbers})" if count > 1 else numbers
        for kinds in ("down", "(up|down)", "(up|down|gate)"):
            yield ("-ot", rf"blk\.{which}\.ffn_{kinds}_exps={roomy.name}"), True


def _layers_of(estimate: Estimate, device: str, n_layers: int) -> list[int]:
    """Layers on ``device``, by ``-ts`` or else in equal parts; where they lie exactly the trial shows."""
    shares = estimate.flags.tensor_split[: len(estimate.devices)] or tuple(max(d.free, 1) for d in estimate.devices)
    total = sum(shares)
    if total <= 0:
        return []
    index = [d.name for d in estimate.devices].index(device)
    low, high = sum(shares[:index]) / total, sum(shares[: index + 1]) / total
    return [i for i in range(n_layers) if low <= i / (n_layers + 1) < high]


def _together(estimate: Estimate, attempt: Try) -> Iterator[Mend]:
    """Several at once, when none is enough."""
    one = ("-np", "1") if estimate.flags.n_parallel > 1 else ()
    for args in ((*one, "-ub", "512"), (*one, "-ub", "256", "-cmoe"), (*one, "-ub", "128", "-cmoe", "-c", "32768")):
        tried = attempt(args, False)
        if tried is not None and tried.fits:
            yield Mend(args, _left(tried))
            return


def _left(estimate: Estimate) -> int:
    return min((device.left for device in estimate.devices), default=0)
