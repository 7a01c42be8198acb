"""Every card that memplan knows, of all makers: a list of them, and names near to one that is not there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from memplan.backends.cards import CARDS, card_key
from memplan.backends.devices import CUDA
from memplan.backends.other_cards import named_cards

_MAKERS = {
    "NVIDIA": re.compile(r"\b(nvidia|geforce|quadro|tesla|[rg]tx)\b"),
    "AMD": re.compile(r"\b(amd|radeon|instinct|ryzen|rx|mi[0-9]+x?)\b"),
    "Intel": re.compile(r"\b(intel|arc|iris)\b"),
    "Apple": re.compile(r"\b(apple|m[1-9])\b"),
}
_DROPPED = re.compile(r"\b(amd|radeon|instinct|ryzen|intel|apple|graphics)\b")


@dataclass(frozen=True, slots=True)
class KnownCard:
    """A card: the name that ``--gpu`` takes, its backend unless another is asked for, and its figures.

    ``total_mib``, ``bandwidth`` (GB/s), ``sms`` (multiprocessors) and ``compute_capability``: None where there is
    none, or where only the user knows it.
    """

    name: str
    maker: str
    backend: str
    total_mib: int | None
    bandwidth: float | None
    sms: int | None = None
    compute_capability: tuple[int, int] | None = None


@lru_cache(maxsize=1)
def known_cards() -> tuple[KnownCard, ...]:
    """All of them, by maker."""
    cards = [KnownCard(c.name, "NVIDIA", CUDA, c.total_mib, c.bandwidth, c.sms, c.compute_capability) for c in CARDS]
    others = [KnownCard(n, maker_of(c.description), c.backend, c.total_mib, c.bandwidth) for n, c in named_cards()]
    order = list(_MAKERS)
    return (*cards, *sorted(others, key=lambda card: order.index(card.maker)))


def near_names(name: str) -> list[str]:
    """Names of up to three cards that ``name`` may have been meant for, the nearest first.

    Of the same maker, where the name tells it, and of the same family: RTX, RX, Arc, ... None where it is a card's.
    """
    from difflib import get_close_matches

    index: dict[str, str] = {}
    wanted, maker = _key(name), maker_of(name)
    for card in known_cards():
        if maker not in ("", card.maker):
            continue
        key = _key(card.name)
        index.setdefault(key, card.name)
        if key.startswith(("rtx", "gtx")):
            index.setdefault(key[3:], card.name)
    if wanted in index:
        return []
    family = _family(wanted)
    keys = [key for key in index if _family(key)[:3] == family[:3]]
    return list(dict.fromkeys(index[key] for key in get_close_matches(wanted, keys, n=12, cutoff=0.6)))[:3]


def _key(name: str) -> str:
    return card_key(_DROPPED.sub("", name.lower()))


def _family(key: str) -> str:
    """The letters that a name begins with: a number alone is near to too much."""
    found = re.match(r"[a-z]*", key)
    return found[0] if found else ""


def maker_of(name: str) -> str:
    """Who makes a card of this name; empty when it does not tell."""
    words = name.lower()
    return next((maker for maker, pattern in _MAKERS.items() if pattern.search(words)), "")
