"""The GPUs of a log, and those that a user gives beside it."""

from __future__ import annotations

from typing import Final

from memplan.backends.cards import CONTEXT_MIB, find_card
from memplan.backends.devices import Gpu, Rig
from memplan.diagnosing.log import CUDA, Load, LogGpu

_MIB: Final = 1 << 20


def rig_of(load: Load) -> Rig | None:
    """The GPUs that the load used, with what was free before it; None when it names none, or none of CUDA's."""
    if not load.gpus and load.model and not any(CUDA.fullmatch(name) for name in load.model):
        return Rig(())  # llama.cpp without a GPU
    names = sorted((int(m[1]), gpu) for name, gpu in load.gpus.items() if (m := CUDA.fullmatch(name)))
    if not names or any(gpu.free_mib is not None and not CUDA.fullmatch(name) for name, gpu in load.gpus.items()):
        return None
    gpus = []
    for _, gpu in names:
        card = find_card(gpu.description)
        free = gpu.free_mib
        total = gpu.total_mib or (card.total_mib if card else 0) or free or 0
        total = max(total, free or 0)
        if total <= 0:
            return None
        if free is None:
            free = max(total - CONTEXT_MIB, 0)
        seen = gpu.capability if gpu.capability and gpu.capability[0] else None  # 0.0 is none
        capability = seen or (card.compute_capability if card else (8, 6))
        gpus.append(Gpu(gpu.description or gpu.name, total * _MIB, free * _MIB, capability))
    return Rig(tuple(gpus))


def other_gpus(load: Load, rig: Rig) -> str:
    """In what a rig given by a user cannot be the log's, in a few words; empty when it may be, or nobody knows."""
    seen = {name: gpu for name, gpu in load.gpus.items() if gpu.description}
    if not seen:
        on = sorted(name for name in load.model if CUDA.fullmatch(name))
        return f"the log has weights on {', '.join(on)}, which is not among them" if set(on) - set(rig.names) else ""
    there = dict(zip(rig.names, rig.gpus, strict=True))
    every = any(gpu.capability is not None or gpu.total_mib is not None for gpu in seen.values())
    if every and len(seen) != len(there):
        return f"the log has {_counted(seen)}"
    for name, gpu in seen.items():
        if name not in there:
            return f"the log has {_counted(seen)}, one of them {name}; given are {', '.join(there) or 'none'}"
        if not _same_card(gpu, there[name]):
            return f"in the log {name} is {gpu.description}, not {there[name].description}"
    return ""


def _counted(seen: dict[str, LogGpu]) -> str:
    kinds = sorted({gpu.description for gpu in seen.values()})
    return f"{len(seen)} GPU{'s' if len(seen) > 1 else ''} ({', '.join(kinds)})"


def _same_card(logged: LogGpu, given: Gpu) -> bool:
    """Whether a card may go by both names; one with a name of a user's own, if it has as much memory."""
    card, other = find_card(logged.description), find_card(given.description)
    if card is not None and other is not None:
        return card == other
    if logged.description.lower() == given.description.lower() or other is None:
        total = logged.total_mib or (card.total_mib if card else None) or logged.free_mib
        return total is None or abs(total * _MIB - given.total) < given.total // 10
    return False
