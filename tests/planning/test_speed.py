from __future__ import annotations

from dataclasses import replace

import pytest

from memplan.backends.cards import CARDS
from memplan.errors import FlagError
from memplan.planning.speed import GPU_SHARE, card_bandwidth, find_bandwidths, host_bandwidth
from memplan.rig import parse_gpus


def test_every_known_card_has_a_bandwidth() -> None:
    assert [card.name for card in CARDS if card_bandwidth(card.name) is None] == []


@pytest.mark.parametrize(
    ("text", "gbs"), [("96", 96.0), ("2xDDR5-5600", 89.6), ("DDR4-3200", 51.2), ("8 x ddr4-3200", 204.8)]
)
def test_host_memory(text: str, gbs: float) -> None:
    assert host_bandwidth(text) == pytest.approx(gbs)


@pytest.mark.parametrize("text", ["", "fast", "-1", "0", "nan", "inf", "DDR9-1"])
def test_host_memory_that_is_none(text: str) -> None:
    with pytest.raises(FlagError, match="--host-bandwidth"):
        host_bandwidth(text)


def test_what_is_not_given_is_looked_up_or_assumed_and_said() -> None:
    gpus = parse_gpus(["RTX 3090", "Some Card:8000:7000:8.6"]).gpus
    found = find_bandwidths(gpus)
    assert found.gpus == (936.0, 500.0)
    assert any("Some Card" in text for text in found.assumed)
    given = find_bandwidths(gpus, [700.0], "100")
    assert given.gpus == (700.0, 700.0)
    assert not any("DDR" in text for text in given.assumed)
    assert given.gpu_ms(0, 700e6 * GPU_SHARE) == pytest.approx(1.0)
    (mac,) = parse_gpus(["M3 Max 64GB"]).gpus
    one = find_bandwidths([mac], unified=True)
    assert one.host == one.gpus[0] and "host memory: the GPU's (400 GB/s)" in one.assumed
    own = find_bandwidths([replace(gpu, bandwidth=800.0) for gpu in gpus], host=150)
    assert own.gpus == (800.0, 800.0)
    assert own.host == 150.0
    assert find_bandwidths([replace(gpus[0], bandwidth=800.0)], [700.0]).gpus == (700.0,)
    with pytest.raises(FlagError, match="3 values for 2 GPUs"):
        find_bandwidths(gpus, [1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    "text", ["0xDDR5-5600", "2xDDR5-000", "DDR4-00000", "0", "-1", "nan", "inf", "1e-320", "1e99", ""]
)
def test_a_bandwidth_that_no_time_can_be_had_from(text: str) -> None:
    with pytest.raises(FlagError, match=r"--host-bandwidth .*must be GB/s, or channels and kind"):
        host_bandwidth(text)
