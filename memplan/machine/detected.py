"""What was found on a machine, and from whom it is known."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from memplan.backends.cards import find_card
from memplan.backends.devices import BACKENDS, CUDA, METAL, VULKAN, Gpu, Rig, in_device_order
from memplan.backends.vulkan_limits import VulkanLimits

ASSUMED_CAPABILITY: Final = (8, 6)
"""For a GPU whose compute capability nobody says; the note about it says so."""

_UNIFIED: Final = re.compile(
    r"\b(GB10|Orin|Thor|Xavier|Jetson|Tegra|Apple|Strix|Radeon 8\d\d0S|Radeon [678]\d\dM|Iris|Arc Graphics|UHD Graphics"
    r"|Radeon(?:\(TM\))? (?:Vega \d+ )?Graphics)\b"
    r"|RADV (?:RAVEN|RENOIR|VANGOGH|REMBRANDT|RAPHAEL|MENDOCINO|PHOENIX|HAWK|STRIX|KRACKAN|GFX1103|GFX115)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Found:
    """One GPU as it was found. ``backend``: the prefix of llama.cpp's name for it (``CUDA``, ``ROCm``); bytes.

    ``limits``: what its Vulkan driver says, where that was asked.
    """

    description: str
    total: int
    free: int
    backend: str = "CUDA"
    capability: tuple[int, int] | None = None
    shares_host: bool = False
    limits: VulkanLimits | None = None

    @property
    def unified(self) -> bool:
        """Whether its memory is the host's, as far as its driver or its name tells."""
        return self.shares_host or self.backend == METAL or _UNIFIED.search(self.description) is not None

    def gpu(self) -> Gpu:
        """As a device of a rig: of its own backend if there is a plan for it, else of CUDA."""
        free = min(self.free, self.total)
        integrated = self.backend != METAL and self.unified
        if self.backend in BACKENDS and self.backend != CUDA:
            return Gpu(
                self.description, self.total, free, backend=self.backend, integrated=integrated, limits=self.limits
            )
        card = find_card(self.description)
        capability = self.capability or (card.compute_capability if card else ASSUMED_CAPABILITY)
        sms = card.sms if card is not None else 0
        return Gpu(self.description, self.total, free, capability, integrated=integrated, sms=sms)


@dataclass(frozen=True, slots=True)
class Detected:
    """A machine: its rig, who told (``source``), and what to know about that (``notes``)."""

    rig: Rig
    source: str
    backends: tuple[str, ...] = ()
    """The prefix of llama.cpp's name for each GPU."""
    host_free: int | None = None
    notes: tuple[str, ...] = ()
    guessed: tuple[str, ...] = ()
    """GPUs whose compute capability nobody says, by their descriptions."""

    @property
    def inexact(self) -> str:
        """Why an estimate for this machine is not exact; empty when it can be."""
        others = sorted(set(self.backends) - set(BACKENDS))
        if others:
            return f"{', '.join(others)} is not modelled: its devices are planned as CUDA ones, in the same order"
        if self.guessed:
            capability = "{}.{}".format(*ASSUMED_CAPABILITY)
            return (
                f"the compute capability of {self.guessed[0]} is not known: taken as {capability}, in which buffers may"
                " differ; --gpu takes another"
            )
        return ""


def detected(found: list[Found], source: str, host: tuple[int | None, int | None], notes: list[str]) -> Detected:
    """Put together what was found; ``host``: bytes in all and free."""
    total, free = host
    own = {gpu.description for gpu in found if gpu.backend == CUDA}
    found = [gpu for gpu in found if gpu.backend != VULKAN or gpu.description not in own]  # llama.cpp takes each once
    unified = bool(found) and all(gpu.unified for gpu in found)
    notes = list(notes)
    unknown = [
        gpu.description
        for gpu in found
        if gpu.backend == CUDA and gpu.capability is None and find_card(gpu.description) is None
    ]
    if unified:
        notes.append("unified memory: the GPU's memory is the host's, so what lies on the host takes from it too")
    rig = Rig(in_device_order(tuple(gpu.gpu() for gpu in found)), total, unified)
    backends = tuple(gpu.backend for gpu in found)
    return Detected(rig, source, backends, free, tuple(notes), tuple(dict.fromkeys(unknown)))
