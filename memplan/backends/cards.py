"""Well-known NVIDIA cards: memory as CUDA reports it, compute capability, and the names people use for them.

``reported`` cards carry a total that llama.cpp printed on such a card ("VRAM: 24210 MiB"), to within 1 MiB, or PyTorch,
which asks CUDA the same (``get_device_properties``). The others are derived: from a card of the same memory, from
nvidia-smi's totals or from the nominal size; the last two can exceed CUDA's figure by some hundred MiB.
A card's total also varies by some hundred MiB with driver, operating system and ECC, so for an exact answer give the
figures of ``llama-server --list-devices``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from memplan.backends.devices import Gpu

MIB = 1 << 20

CONTEXT_MIB = 400
"""MiB that a card without a display is short of its total once its CUDA context is there: what ``free`` is by default.

llama.cpp's logs show 160 to 520 MiB for different cards and drivers.
"""


@dataclass(frozen=True, slots=True)
class Card:
    """A model of GPU; ``description`` as CUDA names it, ``total_mib`` as CUDA reports it (see ``reported``).

    ``sms``: multiprocessors: CUDA cores of NVIDIA's data sheets, by 128, or by 64 for V100, T4, A100, P100 and RTX 20.
    ``bandwidth``: the memory's peak, GB/s, of the same data sheets; of two versions the slower.  ``integrated``: its
    memory is the host's.
    """

    name: str
    description: str
    total_mib: int
    compute_capability: tuple[int, int]
    sms: int
    bandwidth: int
    reported: bool
    aliases: tuple[str, ...] = ()
    integrated: bool = False

    @property
    def other_sizes(self) -> tuple[int, ...]:
        """GB of memory that this card is sold with too."""
        return _OTHER_SIZES.get(self.name, ())

    def gpu(self, total: int | None = None, free: int | None = None) -> Gpu:
        """This card as a device of a rig; ``total`` and ``free`` in bytes, where they are known better."""
        if total is None:
            total = max(self.total_mib * MIB, free or 0)
        if free is None:
            free = max(total - CONTEXT_MIB * MIB, 0)
        return Gpu(
            self.description,
            total,
            free,
            self.compute_capability,
            integrated=self.integrated,
            sms=self.sms,
            machine=total if self.integrated else 0,
        )


def _geforce(name: str, mib: int, cc: tuple[int, int], sms: int, gbs: int, reported: bool, *aliases: str) -> Card:
    return Card(name, f"NVIDIA GeForce {name}", mib, cc, sms, gbs, reported, aliases)


def _nvidia(name: str, mib: int, cc: tuple[int, int], sms: int, gbs: int, reported: bool, *aliases: str) -> Card:
    return Card(name, f"NVIDIA {name}", mib, cc, sms, gbs, reported, aliases)


def _tesla(name: str, mib: int, cc: tuple[int, int], sms: int, gbs: int, reported: bool, *aliases: str) -> Card:
    return Card(name, f"Tesla {name}", mib, cc, sms, gbs, reported, aliases)


_OTHER_SIZES = {
    "RTX 5060 Ti": (8,), "RTX 4060 Ti": (8,), "RTX 3080": (12,), "RTX 3060": (8,), "RTX PRO 5000": (72,),
    "A100 80GB": (40,), "H100": (94,), "H20": (141,), "GH200": (144,), "V100": (16,), "P100": (12,),
}  # fmt: skip
"""By name, of NVIDIA's data sheets."""


def size_assumed(name: str, taken: int, others: tuple[int, ...]) -> str:
    """Which memory, GB, was taken for a card whose ``name`` says none, though there are others; else empty."""
    if not others or re.search(r"[0-9] ?gi?b", name, re.IGNORECASE):
        return ""
    return (
        f"{name} is taken for one with {taken} GB; there are some with {', '.join(map(str, others))} GB:"
        " NAME:TOTAL_MIB says which"
    )


_PASCAL, _VOLTA, _TURING, _AMPERE_DC, _AMPERE = (6, 1), (7, 0), (7, 5), (8, 0), (8, 6)
_ADA, _HOPPER, _BLACKWELL_DC, _BLACKWELL = (8, 9), (9, 0), (10, 0), (12, 0)

CARDS: tuple[Card, ...] = (
    _geforce("RTX 5090", 32606, _BLACKWELL, 170, 1792, True),
    _geforce("RTX 5080", 15880, _BLACKWELL, 84, 960, True),
    _geforce("RTX 5070 Ti", 16302, _BLACKWELL, 70, 896, True),
    _geforce("RTX 5070", 12226, _BLACKWELL, 48, 672, True),
    _geforce("RTX 5060 Ti", 16311, _BLACKWELL, 36, 448, True, "RTX 5060 Ti 16GB"),
    _geforce("RTX 5060", 8150, _BLACKWELL, 30, 448, True),
    _geforce("RTX 4090", 24210, _ADA, 128, 1008, True),
    _geforce("RTX 4080 SUPER", 16375, _ADA, 80, 736, True),
    _geforce("RTX 4080", 16375, _ADA, 76, 717, True),
    _geforce("RTX 4070 Ti SUPER", 16375, _ADA, 66, 672, True),
    _geforce("RTX 4070 Ti", 12282, _ADA, 60, 504, False),
    _geforce("RTX 4070 SUPER", 12282, _ADA, 56, 504, False),
    _geforce("RTX 4070", 11903, _ADA, 46, 504, True),
    _geforce("RTX 4060 Ti", 16380, _ADA, 34, 288, True, "RTX 4060 Ti 16GB"),
    _geforce("RTX 4060", 8188, _ADA, 24, 272, False),
    _geforce("RTX 3090 Ti", 24142, _AMPERE, 84, 1008, True),
    _geforce("RTX 3090", 24268, _AMPERE, 82, 936, True),
    _geforce("RTX 3080 Ti", 12288, _AMPERE, 80, 912, False),
    _geforce("RTX 3080", 10239, _AMPERE, 68, 760, True, "RTX 3080 10GB"),
    _geforce("RTX 3070", 8191, _AMPERE, 46, 448, True),
    _geforce("RTX 3060", 12288, _AMPERE, 28, 360, True, "RTX 3060 12GB"),
    _geforce("RTX 2080 Ti", 11264, _TURING, 68, 616, False),
    Card("RTX 4090 48GB", "NVIDIA GeForce RTX 4090", 49140, _ADA, 128, 1008, False),
    Card("RTX 3080 20GB", "NVIDIA GeForce RTX 3080", 20480, _AMPERE, 68, 760, False),
    Card("RTX 2080 Ti 22GB", "NVIDIA GeForce RTX 2080 Ti", 22528, _TURING, 68, 616, False),
    _geforce("GTX 1080 Ti", 11264, _PASCAL, 28, 484, False),
    Card(
        "RTX PRO 6000",
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        97886,
        _BLACKWELL,
        188,
        1792,
        True,
        ("RTX PRO 6000 Blackwell", "RTX 6000 PRO", "6000 PRO"),
    ),
    Card(
        "RTX PRO 6000 Max-Q",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        97288,
        _BLACKWELL,
        188,
        1792,
        True,
        ("RTX PRO 6000 Blackwell Max-Q", "RTX 6000 PRO Max-Q", "6000 PRO Max-Q"),
    ),
    Card(
        "RTX PRO 5000",
        "NVIDIA RTX PRO 5000 Blackwell",
        48935,
        _BLACKWELL,
        110,
        1344,
        False,
        ("RTX PRO 5000 Blackwell",),
    ),
    Card(
        "RTX PRO 4500", "NVIDIA RTX PRO 4500 Blackwell", 32623, _BLACKWELL, 82, 896, False, ("RTX PRO 4500 Blackwell",)
    ),
    Card(
        "RTX PRO 4000", "NVIDIA RTX PRO 4000 Blackwell", 24467, _BLACKWELL, 70, 672, False, ("RTX PRO 4000 Blackwell",)
    ),
    Card("RTX 6000 Ada", "NVIDIA RTX 6000 Ada Generation", 48622, _ADA, 142, 960, True),
    Card("RTX 5000 Ada", "NVIDIA RTX 5000 Ada Generation", 32760, _ADA, 100, 576, False),
    Card("RTX 4000 Ada", "NVIDIA RTX 4000 Ada Generation", 20475, _ADA, 48, 360, False),
    Card("A6000", "NVIDIA RTX A6000", 48676, _AMPERE, 84, 768, True, ("RTX A6000",)),
    Card("A5000", "NVIDIA RTX A5000", 24564, _AMPERE, 64, 768, False, ("RTX A5000",)),
    Card("RTX 8000", "Quadro RTX 8000", 48601, _TURING, 72, 672, True),
    _nvidia("A40", 45416, _AMPERE, 84, 696, True),
    _nvidia("A10", 22587, _AMPERE, 72, 600, False),
    _nvidia("A10G", 22587, _AMPERE, 80, 600, True),
    _nvidia("L4", 23034, _ADA, 58, 300, False),
    _nvidia("L20", 45467, _ADA, 92, 864, False),
    _nvidia("L40", 45467, _ADA, 142, 864, False),
    _nvidia("L40S", 45467, _ADA, 142, 864, True),
    Card(
        "A100 80GB",
        "NVIDIA A100-SXM4-80GB",
        81920,
        _AMPERE_DC,
        108,
        1935,
        True,
        ("A100", "A100 80GB PCIe", "A100-PCIE-80GB"),
    ),
    Card(
        "A100 40GB", "NVIDIA A100-SXM4-40GB", 40960, _AMPERE_DC, 108, 1555, False, ("A100-PCIE-40GB", "A100 40GB PCIe")
    ),
    Card(
        "H100",
        "NVIDIA H100 80GB HBM3",
        81081,
        _HOPPER,
        132,
        3350,
        True,
        ("H100 80GB", "H100 SXM", "H100 SXM5"),
    ),
    _nvidia("H100 PCIe", 81008, _HOPPER, 114, 2000, True),
    _nvidia("H20", 97285, _HOPPER, 78, 4000, True),
    Card("GH200", "NVIDIA GH200 480GB", 97285, _HOPPER, 132, 4000, False, ("GH200 96GB",)),
    _nvidia("H200", 143156, _HOPPER, 132, 4800, True, "H200 SXM", "H200 141GB"),
    _nvidia("B200", 182642, _BLACKWELL_DC, 148, 8000, True),
    _nvidia("B300", 275040, (10, 3), 148, 8000, False, "B300 SXM6"),
    Card("GB10", "NVIDIA GB10", 122572, (12, 1), 48, 273, False, ("DGX Spark",), integrated=True),
    Card(
        "V100",
        "Tesla V100-SXM2-32GB",
        32510,
        _VOLTA,
        80,
        900,
        False,
        ("V100 32GB", "V100-PCIE-32GB", "V100S-PCIE-32GB"),
    ),
    Card("V100 16GB", "Tesla V100-SXM2-16GB", 16160, _VOLTA, 80, 900, False, ("V100-PCIE-16GB",)),
    _tesla("P40", 24438, _PASCAL, 30, 347, False),
    Card("P100", "Tesla P100-PCIE-16GB", 16276, (6, 0), 56, 732, False, ("P100 16GB", "P100-SXM2-16GB")),
    _tesla("T4", 14912, _TURING, 40, 320, True),
)
"""Each name once; where a card came in two sizes, the plain name means the larger one that is common. Those that were
given more memory than their maker's have that after their name: drivers call them as they were."""

_DROPPED = frozenset({"nvidia", "geforce", "tesla", "quadro", "generation"})


def card_key(name: str) -> str:
    """A name without case, spaces, dashes and the words that drivers put before it."""
    words = re.findall(r"[a-z]+|[0-9]+", name.lower())
    return "".join(w for w in words if w not in _DROPPED)


@lru_cache(maxsize=1)
def _index() -> dict[str, Card]:
    index: dict[str, Card] = {}
    for card in CARDS:
        for name in (card.name, card.description, *card.aliases):
            key = card_key(name)
            index.setdefault(key, card)
            if key.startswith(("rtx", "gtx")):
                index.setdefault(key[3:], card)
    return index


def find_card(name: str) -> Card | None:
    """The card that ``name`` means, or None; case, spaces, dashes and vendor words do not matter.

    >>> find_card("3090") is find_card("NVIDIA GeForce RTX 3090")
    True
    """
    return _index().get(card_key(name))
