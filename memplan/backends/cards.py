"""Well-known NVIDIA cards: memory as CUDA reports it, compute capability, and the names people use for them.

``reported`` cards carry a total that llama.cpp printed on such a card ("VRAM: 24210 MiB"), to within 1 MiB. The others
are derived: from nvidia-smi's totals or the nominal size, either of which can exceed CUDA's figure by some hundred MiB.
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
    """A model of GPU; ``description`` as CUDA names it, ``total_mib`` as CUDA reports it (see ``reported``)."""

    name: str
    description: str
    total_mib: int
    compute_capability: tuple[int, int]
    reported: bool
    aliases: tuple[str, ...] = ()

    def gpu(self, total: int | None = None, free: int | None = None) -> Gpu:
        """This card as a device of a rig; ``total`` and ``free`` in bytes, where they are known better."""
        if total is None:
            total = max(self.total_mib * MIB, free or 0)
        if free is None:
            free = max(total - CONTEXT_MIB * MIB, 0)
        return Gpu(self.description, total, free, self.compute_capability)


def _geforce(name: str, mib: int, cc: tuple[int, int], reported: bool, *aliases: str) -> Card:
    return Card(name, f"NVIDIA GeForce {name}", mib, cc, reported, aliases)


def _nvidia(name: str, mib: int, cc: tuple[int, int], reported: bool, *aliases: str) -> Card:
    return Card(name, f"NVIDIA {name}", mib, cc, reported, aliases)


def _tesla(name: str, mib: int, cc: tuple[int, int], reported: bool, *aliases: str) -> Card:
    return Card(name, f"Tesla {name}", mib, cc, reported, aliases)


_PASCAL, _VOLTA, _TURING, _AMPERE_DC, _AMPERE = (6, 1), (7, 0), (7, 5), (8, 0), (8, 6)
_ADA, _HOPPER, _BLACKWELL_DC, _BLACKWELL = (8, 9), (9, 0), (10, 0), (12, 0)

CARDS: tuple[Card, ...] = (
    _geforce("RTX 5090", 32606, _BLACKWELL, True),
    _geforce("RTX 5080", 15880, _BLACKWELL, True),
    _geforce("RTX 5070 Ti", 16302, _BLACKWELL, True),
    _geforce("RTX 5070", 12226, _BLACKWELL, True),
    _geforce("RTX 5060 Ti", 16311, _BLACKWELL, True, "RTX 5060 Ti 16GB"),
    _geforce("RTX 5060", 8150, _BLACKWELL, True),
    _geforce("RTX 4090", 24210, _ADA, True),
    _geforce("RTX 4080 SUPER", 16375, _ADA, True),
    _geforce("RTX 4080", 16375, _ADA, True),
    _geforce("RTX 4070 Ti SUPER", 16375, _ADA, True),
    _geforce("RTX 4070 Ti", 12282, _ADA, False),
    _geforce("RTX 4070 SUPER", 12282, _ADA, False),
    _geforce("RTX 4070", 11903, _ADA, True),
    _geforce("RTX 4060 Ti", 16380, _ADA, True, "RTX 4060 Ti 16GB"),
    _geforce("RTX 4060", 8188, _ADA, False),
    _geforce("RTX 3090 Ti", 24142, _AMPERE, True),
    _geforce("RTX 3090", 24268, _AMPERE, True),
    _geforce("RTX 3080 Ti", 12288, _AMPERE, False),
    _geforce("RTX 3080", 10239, _AMPERE, True, "RTX 3080 10GB"),
    _geforce("RTX 3070", 8191, _AMPERE, True),
    _geforce("RTX 3060", 12288, _AMPERE, True, "RTX 3060 12GB"),
    _geforce("RTX 2080 Ti", 11264, _TURING, False),
    _geforce("GTX 1080 Ti", 11264, _PASCAL, False),
    Card(
        "RTX PRO 6000",
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        97886,
        _BLACKWELL,
        True,
        ("RTX PRO 6000 Blackwell", "RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX 6000 PRO", "6000 PRO"),
    ),
    Card("RTX PRO 5000", "NVIDIA RTX PRO 5000 Blackwell", 48935, _BLACKWELL, False, ("RTX PRO 5000 Blackwell",)),
    Card("RTX PRO 4500", "NVIDIA RTX PRO 4500 Blackwell", 32623, _BLACKWELL, False, ("RTX PRO 4500 Blackwell",)),
    Card("RTX 6000 Ada", "NVIDIA RTX 6000 Ada Generation", 49140, _ADA, False),
    Card("RTX 5000 Ada", "NVIDIA RTX 5000 Ada Generation", 32760, _ADA, False),
    Card("RTX 4000 Ada", "NVIDIA RTX 4000 Ada Generation", 20475, _ADA, False),
    Card("A6000", "NVIDIA RTX A6000", 48670, _AMPERE, False, ("RTX A6000",)),
    Card("A5000", "NVIDIA RTX A5000", 24564, _AMPERE, False, ("RTX A5000",)),
    _nvidia("A40", 46068, _AMPERE, False),
    _nvidia("A10", 23028, _AMPERE, False),
    _nvidia("A10G", 23028, _AMPERE, False),
    _nvidia("L4", 23034, _ADA, False),
    _nvidia("L40", 46068, _ADA, False),
    _nvidia("L40S", 45467, _ADA, True),
    Card("A100 80GB", "NVIDIA A100-SXM4-80GB", 81920, _AMPERE_DC, False, ("A100", "A100 80GB PCIe", "A100-PCIE-80GB")),
    Card("A100 40GB", "NVIDIA A100-SXM4-40GB", 40960, _AMPERE_DC, False, ("A100-PCIE-40GB", "A100 40GB PCIe")),
    Card("H100", "NVIDIA H100 80GB HBM3", 81081, _HOPPER, True, ("H100 80GB", "H100 SXM", "H100 PCIe", "H100 SXM5")),
    _nvidia("H200", 143771, _HOPPER, False, "H200 SXM", "H200 141GB"),
    _nvidia("B200", 183359, _BLACKWELL_DC, False),
    Card("V100", "Tesla V100-SXM2-32GB", 32510, _VOLTA, False, ("V100 32GB", "V100-PCIE-32GB", "V100S-PCIE-32GB")),
    Card("V100 16GB", "Tesla V100-SXM2-16GB", 16160, _VOLTA, False, ("V100-PCIE-16GB",)),
    _tesla("P40", 24438, _PASCAL, False),
    Card("P100", "Tesla P100-PCIE-16GB", 16276, (6, 0), False, ("P100 16GB", "P100-SXM2-16GB")),
    _tesla("T4", 14912, _TURING, True),
)
"""Each name once; where a card came in two sizes, the plain name means the larger one that is common."""

_DROPPED = frozenset({"nvidia", "geforce", "tesla", "quadro", "generation"})


def _key(name: str) -> str:
    words = re.findall(r"[a-z]+|[0-9]+", name.lower())
    return "".join(w for w in words if w not in _DROPPED)


@lru_cache(maxsize=1)
def _index() -> dict[str, Card]:
    index: dict[str, Card] = {}
    for card in CARDS:
        for name in (card.name, card.description, *card.aliases):
            key = _key(name)
            index.setdefault(key, card)
            if key.startswith(("rtx", "gtx")):
                index.setdefault(key[3:], card)
    return index


def find_card(name: str) -> Card | None:
    """The card that ``name`` means, or None; case, spaces, dashes and vendor words do not matter.

    >>> find_card("3090") is find_card("NVIDIA GeForce RTX 3090")
    True
    """
    return _index().get(_key(name))


def suggest(name: str) -> list[str]:
    """Names of up to three cards that ``name`` may have been meant for, the nearest first."""
    from difflib import get_close_matches

    index, wanted = _index(), _key(name)
    letters = wanted[:1].isalpha()  # a number alone is near to too much
    near = get_close_matches(wanted, [key for key in index if key[:1].isalpha() == letters], n=12, cutoff=0.6)
    return list(dict.fromkeys(index[key].name for key in near))[:3]
