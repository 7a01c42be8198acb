"""GPUs that llama.cpp does not use through CUDA: which backend, how much memory, and the names people use for them.

Totals are what the backend reports, as far as it is known, else the nominal size. A Mac's GPU may take three quarters
of its memory (two thirds below 36 GB) unless ``iogpu.wired_limit_mb`` says otherwise: Metal's recommended working set.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from memplan.backends.cards import CONTEXT_MIB, MIB
from memplan.backends.devices import METAL, VULKAN, Gpu

_SMALL_MAC_GB = 36


@dataclass(frozen=True, slots=True)
class OtherCard:
    """A GPU; ``total_mib`` None when only the user knows it.  ``integrated``: it has no memory of its own."""

    description: str
    backend: str
    total_mib: int | None = None
    integrated: bool = False

    def gpu(self, total: int, free: int | None) -> Gpu:
        """This card as a device of a rig; bytes."""
        if free is None:
            free = total if self.backend == METAL else max(total - CONTEXT_MIB * MIB, 0)
        return Gpu(self.description, total, free, backend=self.backend, integrated=self.integrated)


_STRIX_HALO = OtherCard("AMD Radeon 8060S", VULKAN, 110000, True)

_CARDS: dict[str, OtherCard] = {
    "rx 7900 xtx": OtherCard("AMD Radeon RX 7900 XTX", VULKAN, 24560),
    "rx 7900 xt": OtherCard("AMD Radeon RX 7900 XT", VULKAN, 20464),
    "rx 7900 gre": OtherCard("AMD Radeon RX 7900 GRE", VULKAN, 16368),
    "rx 7800 xt": OtherCard("AMD Radeon RX 7800 XT", VULKAN, 16368),
    "rx 6800 xt": OtherCard("AMD Radeon RX 6800 XT", VULKAN, 16368),
    "rx 6900 xt": OtherCard("AMD Radeon RX 6900 XT", VULKAN, 16368),
    "rx 9070 xt": OtherCard("AMD Radeon RX 9070 XT", VULKAN, 16304),
    "rx 9070": OtherCard("AMD Radeon RX 9070", VULKAN, 16304),
    "ai pro r9700": OtherCard("AMD Radeon AI PRO R9700", VULKAN, 32624),
    "w7900": OtherCard("AMD Radeon PRO W7900", VULKAN, 49136),
    "arc a770": OtherCard("Intel Arc A770 Graphics", VULKAN, 16225),
    "arc b580": OtherCard("Intel Arc B580 Graphics", VULKAN, 12216),
    "arc pro b60": OtherCard("Intel Arc Pro B60 Graphics", VULKAN, 24480),
    "strix halo": _STRIX_HALO,
    "radeon 8060s": _STRIX_HALO,
    "ryzen ai max+ 395": _STRIX_HALO,
}
"""By name, lower case, without its maker."""

_MOST_GB = {
    "m1": 16, "m1 pro": 32, "m1 max": 64, "m1 ultra": 128, "m2": 24, "m2 pro": 32, "m2 max": 96, "m2 ultra": 192,
    "m3": 24, "m3 pro": 36, "m3 max": 128, "m3 ultra": 512, "m4": 32, "m4 pro": 64, "m4 max": 128,
}  # fmt: skip
"""The most memory that each Apple chip comes with, GB: what its name alone means."""

_MAC = re.compile(r"(?:apple )?(m[0-9]{1,2}(?: (?:pro|max|ultra))?)(?: \(?([0-9]{1,4}) ?gb\)?)?")
_METAL_WORDS = re.compile(r"\b(apple|mac|macbook|metal)\b")
_VULKAN_WORDS = re.compile(r"\b(amd|radeon|rx|ryzen|strix|intel|arc|iris|vulkan)\b")
_INTEGRATED = re.compile(r"\b(strix|ryzen|8060s|8050s|iris|[678][0-9]0m)\b|arc graphics")
_MAKER = re.compile(r"^(amd radeon|amd|radeon(?= (?:rx|ai|pro))|intel\(r\)|intel) ")


def find_other(name: str) -> OtherCard | None:
    """The GPU that ``name`` means if it is none for CUDA; None when the name does not tell.

    >>> find_other("M2 Ultra").backend, find_other("RX 7900 XTX").backend
    ('MTL', 'Vulkan')
    """
    words = " ".join(name.lower().replace("(r)", "").replace("(tm)", "").split())
    mac = _MAC.fullmatch(words)
    if mac:
        chip, given = mac[1], mac[2]
        gb = int(given) if given else _MOST_GB.get(chip, 0)
        total = gb * 1024 * (3 if gb >= _SMALL_MAC_GB else 2) // (4 if gb >= _SMALL_MAC_GB else 3)
        return OtherCard("Apple " + " ".join(w.capitalize() for w in chip.split()), METAL, total or None)
    bare = _MAKER.sub("", words).removesuffix(" graphics").strip()
    card = _CARDS.get(words) or _CARDS.get(bare)
    if card is not None:
        return card
    if _METAL_WORDS.search(words):
        return OtherCard(name, METAL)
    if _VULKAN_WORDS.search(words) and "nvidia" not in words:
        return OtherCard(name, VULKAN, None, _INTEGRATED.search(words) is not None)
    return None
