"""GPUs that llama.cpp does not use through CUDA: which backend, how much memory, and the names people use for them.

Totals are what the backend reports, as far as it is known, else the nominal size. A Mac's GPU may take three quarters
of its memory (two thirds below 36 GB) unless ``iogpu.wired_limit_mb`` says otherwise: Metal's recommended working set.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from memplan.backends.cards import CONTEXT_MIB, MIB, size_assumed
from memplan.backends.devices import METAL, ROCM, VULKAN, Gpu

_SMALL_MAC_GB = 36


@dataclass(frozen=True, slots=True)
class OtherCard:
    """A GPU; ``total_mib`` None when only the user knows it.  ``integrated``: it has no memory of its own.
    ``bandwidth``: peak GB/s, from its maker's data sheet.  ``chip``: what Mesa's Vulkan driver adds to its name.
    ``assumed``: which of several sizes of memory the name was taken to mean; empty where it says one, or has one.
    ``machine_gb``: the machine's memory, of which the GPU's is a part; 0 where it is not known.
    """

    description: str
    backend: str
    total_mib: int | None = None
    integrated: bool = False
    bandwidth: float | None = None
    chip: str = ""
    assumed: str = ""
    machine_gb: int = 0

    def gpu(self, total: int, free: int | None) -> Gpu:
        """This card as a device of a rig; bytes."""
        if free is None:
            free = total if self.backend == METAL else max(total - CONTEXT_MIB * MIB, 0)
        name = f"{self.description} ({self.chip})" if self.chip and self.backend == VULKAN else self.description
        machine = max(total, self.machine_gb << 30) if self.machine_gb else 0
        return Gpu(name, total, free, backend=self.backend, integrated=self.integrated, machine=machine)


def _amd(name: str, chip: str, mib: int | None, bandwidth: float | None, integrated: bool = False) -> OtherCard:
    return OtherCard(name, VULKAN, mib, integrated, bandwidth, f"RADV {chip}")


def _arc(name: str, chip: str, mib: int, bandwidth: float) -> OtherCard:
    return OtherCard(f"Intel(R) Arc(tm) {name} Graphics", VULKAN, mib, False, bandwidth, chip)


_STRIX_HALO = replace(_amd("Radeon 8060S Graphics", "STRIX_HALO", 110000, 256, integrated=True), machine_gb=128)

_CARDS: dict[str, OtherCard] = {
    "rx 7900 xtx": _amd("AMD Radeon RX 7900 XTX", "NAVI31", 24560, 960),
    "rx 7900 xt": _amd("AMD Radeon RX 7900 XT", "NAVI31", 20464, 800),
    "rx 7900 gre": _amd("AMD Radeon RX 7900 GRE", "NAVI31", 16368, 576),
    "rx 7800 xt": _amd("AMD Radeon RX 7800 XT", "NAVI32", 16368, 624),
    "rx 6800 xt": _amd("AMD Radeon RX 6800 XT", "NAVI21", 16368, 512),
    "rx 6900 xt": _amd("AMD Radeon RX 6900 XT", "NAVI21", 16368, 512),
    "rx 9070 xt": _amd("AMD Radeon RX 9070 XT", "GFX1201", 16304, 640),
    "rx 9070": _amd("AMD Radeon RX 9070", "GFX1201", 16304, 640),
    "v620": _amd("AMD Radeon PRO V620", "NAVI21", 32752, 512),
    "mi50": _amd("AMD Instinct MI60 / MI50", "VEGA20", 32752, 1024),
    "mi210": OtherCard("AMD Instinct MI210", ROCM, 65520, bandwidth=1638),
    "mi300x": OtherCard("AMD Instinct MI300X", ROCM, 196592, bandwidth=5300),
    "r9700": _amd("AMD Radeon AI PRO R9700", "GFX1201", 32624, 640),
    "w7900": _amd("AMD Radeon PRO W7900", "NAVI31", 49136, 864),
    "arc a770": _arc("A770", "DG2", 16288, 560),
    "arc b580": _arc("B580", "BMG G21", 12216, 456),
    "arc pro b50": _arc("Pro B50", "BMG G21", 16384, 224),
    "arc pro b60": _arc("Pro B60", "BMG G21", 24480, 456),
    "arc pro b65": _arc("Pro B65", "BMG G31", 32768, 608),
    "arc pro b70": _arc("Pro B70", "BMG G31", 32768, 608),
    "780m": _amd("AMD Radeon 780M Graphics", "PHOENIX", None, None, integrated=True),
    "strix halo": _STRIX_HALO,
    "8060s": _STRIX_HALO,
    "ryzen ai max+ 395": _STRIX_HALO,
}
"""By name, lower case, without its maker and what drivers add."""

_OTHER_SIZES = {
    "mi50": (16,), "arc a770": (8,), "strix halo": (32, 64, 96), "8060s": (32, 64, 96),
    "ryzen ai max+ 395": (32, 64, 96),
}  # fmt: skip
"""GB of memory that these come with too."""

_BARE = {re.sub(r"^(rx|arc pro|arc) | ", "", name): name for name in _CARDS}
_BARE |= {name.replace(" ", ""): name for name in _CARDS}
"""The same without spaces, and also without what a series is called: 7900xtx, b580."""

_MACS: dict[str, tuple[int, float]] = {
    "m1": (16, 68), "m1 pro": (32, 200), "m1 max": (64, 400), "m1 ultra": (128, 800), "m2": (24, 100),
    "m2 pro": (32, 200), "m2 max": (96, 400), "m2 ultra": (192, 800), "m3": (24, 100), "m3 pro": (36, 150),
    "m3 max": (128, 400), "m3 ultra": (512, 819), "m4": (32, 120), "m4 pro": (64, 273), "m4 max": (128, 546),
    "m5": (32, 153), "m5 pro": (64, 307), "m5 max": (128, 614),
}  # fmt: skip
"""The most memory that each Apple chip comes with, GB, which its name alone means; and its bandwidth, GB/s."""

_MAC = re.compile(r"(?:apple )?(m[1-9](?: (?:pro|max|ultra))?)(?: \(?([0-9]{1,4}) ?gb\)?)?")
_METAL_WORDS = re.compile(r"\b(apple|mac|macbook|metal)\b")
_VULKAN_WORDS = re.compile(r"\b(amd|radeon|instinct|rx|ryzen|strix|intel|arc|iris|vulkan)\b")
_INTEGRATED = re.compile(r"\b(strix|ryzen|8060s|8050s|iris|[678][0-9]0m)\b|arc graphics")
_BESIDE = re.compile(
    r"^(?:amd |intel )?(?:radeon |instinct )?(?:mi60 / )?(?:(?:ai )?pro (?=[wrv]))?|(?: graphics)?(?: \(.*\))?$"
)


def find_other(name: str) -> OtherCard | None:
    """The GPU that ``name`` means if it is none for CUDA; None when the name does not tell.

    >>> find_other("M2 Ultra").backend, find_other("7900 XTX") == find_other("AMD Radeon RX 7900 XTX")
    ('MTL', True)
    """
    words = " ".join(name.lower().replace("(r)", "").replace("(tm)", "").split())
    mac = _MAC.fullmatch(words)
    if mac:
        chip, given = mac[1], mac[2]
        most, bandwidth = _MACS.get(chip, (0, None))
        gb = int(given) if given else most
        total = gb * 1024 * (3 if gb >= _SMALL_MAC_GB else 2) // (4 if gb >= _SMALL_MAC_GB else 3)
        chip = " ".join(word.capitalize() for word in chip.split())
        says = f"{chip} is taken for the one with the most memory, {gb} GB; {chip} {gb // 2}GB names another"
        assumed = says if most and not given else ""
        return OtherCard(f"Apple {chip}", METAL, total or None, bandwidth=bandwidth, assumed=assumed, machine_gb=gb)
    plain = _BESIDE.sub("", words)
    plain = _BARE.get(plain.replace(" ", ""), plain)
    card, others = _CARDS.get(plain), _OTHER_SIZES.get(plain, ())
    if card is not None:
        assumed = size_assumed(
            name, card.machine_gb if card.machine_gb else round((card.total_mib or 0) / 1024), others
        )
        return replace(card, assumed=assumed) if assumed else card
    if _METAL_WORDS.search(words):
        return OtherCard(name, METAL)
    if _VULKAN_WORDS.search(words) and "nvidia" not in words:
        return OtherCard(name, VULKAN, None, _INTEGRATED.search(words) is not None)
    return None


def named_cards() -> Iterator[tuple[str, OtherCard]]:
    """Every known card and chip, by the name that ``--gpu`` takes."""
    seen: set[OtherCard] = set()
    for name, card in _CARDS.items():
        if card not in seen:
            seen.add(card)
            yield _SPELLED.get(name, name.upper().replace("ARC PRO", "Arc Pro").replace("ARC", "Arc")), card
    for chip in _MACS:
        name = " ".join(word.capitalize() for word in chip.split())
        found = find_other(name)
        if found is not None:
            yield name, found


_SPELLED = {"strix halo": "Strix Halo", "mi300x": "MI300X"}
