"""How long a token takes: an estimate from bandwidths, to rank placements by, and what it assumes.

A generated token reads every weight that it needs once; the time is bytes over bandwidth, and a little for each change
of device. Caches, kernels' own overhead and a prompt's arithmetic are left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from memplan.backends.cards import find_card
from memplan.backends.devices import RPC, Gpu
from memplan.backends.other_cards import find_other
from memplan.errors import FlagError, shown
from memplan.rig import MAX_BANDWIDTH, MIN_BANDWIDTH

GPU_SHARE = 0.75
"""Share of a card's peak bandwidth that reading weights reaches."""

HOST_SHARE = 0.65
"""Share of the host's peak bandwidth that reading experts reaches."""

SPLIT_MS = 0.03
"""Milliseconds a change of device costs: a launch, a copy of activations, a wait."""

NETWORK_MS = 0.5
"""Milliseconds that a change to or from another machine's device costs: 64 KiB, a token's state with four
hyper-connections, take as much at 1 Gbit/s. A faster network costs less, a busy one more."""

DEFAULT_HOST = "2xDDR5-5600"
"""Two channels, as a desktop has them."""

_UNKNOWN_GPU = 500.0
_MEMORY = re.compile(r"(?:([0-9]{1,2})\s*[x*]\s*)?(?:LP)?DDR([345])X?-([0-9]{3,5})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """GB/s that are taken for each GPU, in the rig's order, and for the host; ``assumed``: what was not given.

    ``remote``: the GPUs that are behind a network.
    """

    gpus: tuple[float, ...]
    host: float
    assumed: tuple[str, ...] = ()
    remote: frozenset[int] = frozenset()

    def change_ms(self, *devices: int) -> float:
        """Milliseconds that a change to, from or between these devices costs; -1: the host."""
        return NETWORK_MS if self.remote.intersection(devices) else SPLIT_MS

    def gpu_ms(self, device: int, nbytes: float) -> float:
        """Milliseconds to read ``nbytes`` on a GPU."""
        return nbytes / (self.gpus[device] * GPU_SHARE * 1e6)

    def host_ms(self, nbytes: float) -> float:
        """Milliseconds to read ``nbytes`` on the host."""
        return nbytes / (self.host * HOST_SHARE * 1e6)


def find_bandwidths(
    gpus: Sequence[Gpu], given: Sequence[float] = (), host: str | float | None = None, unified: bool = False
) -> Bandwidths:
    """The bandwidths of a rig: those ``given`` (one for all GPUs or one each), the GPUs' own where a rig file has
    them, the known cards', or a middling guess.

    ``host``: GB/s, or a kind of memory such as ``8xDDR4-3200``.  ``unified``: it is the GPU's. Raises FlagError.
    """
    assumed = []
    if given and len(given) not in (1, len(gpus)):
        raise FlagError(f"--gpu-bandwidth has {len(given)} values for {len(gpus)} GPUs: give one for all, or one each")
    values = []
    for i, gpu in enumerate(gpus):
        if given:
            values.append(given[i if len(given) > 1 else 0])
            continue
        known = gpu.bandwidth or card_bandwidth(gpu.card or gpu.description)
        if known is None:
            assumed.append(f"{gpu.description}: {_UNKNOWN_GPU:.0f} GB/s, since its card is not known")
        values.append(known or _UNKNOWN_GPU)
    if host is None and unified and values:
        host = max(values)
        assumed.append(f"host memory: the GPU's ({host:.0f} GB/s)")
    elif host is None:
        assumed.append(f"host memory: {DEFAULT_HOST} ({host_bandwidth(DEFAULT_HOST):.0f} GB/s)")
    assumed.append(f"{GPU_SHARE:.0%} of a GPU's and {HOST_SHARE:.0%} of the host's bandwidth reached")
    remote = frozenset(i for i, gpu in enumerate(gpus) if gpu.backend == RPC)
    network = f", {NETWORK_MS} ms where that is over a network" if remote else ""
    assumed.append(f"{SPLIT_MS} ms a change of device{network}; caches and arithmetic left out")
    peak = host if isinstance(host, (int, float)) else host_bandwidth(host or DEFAULT_HOST)
    return Bandwidths(tuple(values), float(peak), tuple(dict.fromkeys(assumed)), remote)


@lru_cache(maxsize=64)
def card_bandwidth(description: str) -> float | None:
    """Peak GB/s of a known card, or None."""
    card = find_card(description)
    if card is not None:
        return card.bandwidth
    other = find_other(description)
    return None if other is None else other.bandwidth


def host_bandwidth(text: str) -> float:
    """GB/s of ``96``, ``2xDDR5-5600`` or ``8xDDR4-3200`` (channels, 8 bytes each). Raises FlagError."""
    wanted = "GB/s, or channels and kind as in 8xDDR4-3200"
    kind = _MEMORY.fullmatch(text.strip())
    if kind:
        value = int(kind[1] or 2) * int(kind[3]) * 8 / 1000
        if not MIN_BANDWIDTH <= value < MAX_BANDWIDTH:
            raise FlagError(f"--host-bandwidth {shown(text)}: is {value:g} GB/s; must be {wanted}")
        return value
    return bandwidth("--host-bandwidth", text, wanted)


def bandwidth(flag: str, text: str, wanted: str = "GB/s") -> float:
    """A number of GB/s that time can be divided by. Raises FlagError."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not MIN_BANDWIDTH <= value < MAX_BANDWIDTH:
        raise FlagError(f"{flag} {shown(text)}: must be {wanted}")
    return value
