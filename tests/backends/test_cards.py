from __future__ import annotations

import pytest

from memplan.backends.cards import CARDS, CONTEXT_MIB, MIB, find_card
from memplan.backends.devices import Gpu
from memplan.backends.known import known_cards, near_names
from memplan.errors import RigError
from memplan.rig import parse_gpu_spec


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("RTX 3090", "RTX 3090"),
        ("3090", "RTX 3090"),
        ("NVIDIA GeForce RTX 3090", "RTX 3090"),
        ("nvidia geforce rtx3090ti", "RTX 3090 Ti"),
        ("rtx-4060-ti", "RTX 4060 Ti"),
        ("pro 6000", "RTX PRO 6000"),
        ("RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("RTX A6000", "A6000"),
        ("Tesla P40", "P40"),
        ("a100", "A100 80GB"),
        ("V100", "V100"),
    ],
)
def test_names(name: str, card: str) -> None:
    found = find_card(name)
    assert found is not None and found.name == card


def test_every_name_of_every_card_means_it() -> None:
    described: set[str] = set()
    for card in CARDS:
        own = () if card.description in described else (card.description,)  # a driver does not tell added memory
        described.add(card.description)
        for name in (card.name, *own, *card.aliases):
            assert find_card(name) is card, name


@pytest.mark.parametrize(
    ("name", "near"), [("RTX 3900", "RTX 3090"), ("RTX 50900", "RTX 5090"), ("4090 ti", "RTX 4070 Ti")]
)
def test_near_misses(name: str, near: str) -> None:
    assert find_card(name) is None
    assert near in near_names(name)


def test_nothing_near() -> None:
    assert find_card("toaster") is None and near_names("toaster") == []
    assert find_card("") is None and near_names("") == []


def test_as_a_device() -> None:
    card = find_card("RTX 4090")
    assert card is not None
    assert card.gpu() == Gpu("NVIDIA GeForce RTX 4090", 24210 * MIB, (24210 - CONTEXT_MIB) * MIB, (8, 9), sms=128)
    assert card.gpu(total=24000 * MIB, free=1).free == 1
    assert card.gpu(free=24500 * MIB).total == 24500 * MIB
    assert card.gpu().cc == 890


@pytest.mark.parametrize(
    ("total", "free", "cc"), [(0, 0, (8, 6)), (10, 11, (8, 6)), (10, -1, (8, 6)), (10, 5, (0, 0)), (10, 5, (8, 10))]
)
def test_impossible_devices(total: int, free: int, cc: tuple[int, int]) -> None:
    with pytest.raises(RigError, match="card"):
        Gpu("a card", total, free, cc)


def test_every_known_card_can_be_asked_for_by_the_name_that_is_listed() -> None:
    cards = known_cards()
    assert {card.maker for card in cards} == {"NVIDIA", "AMD", "Intel", "Apple"}
    assert len({card.name for card in cards}) == len(cards) > 90
    for card in cards:
        (gpu,) = parse_gpu_spec(card.name if card.total_mib else f"{card.name}:60000")
        assert gpu.backend == card.backend and gpu.total == (card.total_mib or 60000) * MIB, card.name
        assert near_names(card.name) == []
