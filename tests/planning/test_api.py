from __future__ import annotations

from typing import Any

import pytest

import memplan
from tests.planning.rigs import header

FLAGS = ("-c", "65536", "-np", "1")


def test_a_plan_from_python() -> None:
    rig = memplan.parse_gpus(["2*RTX 3090"])
    found = memplan.plan(header("flash-antirez-q2"), FLAGS, rig, [2000, 500])
    assert isinstance(found, memplan.Plan)
    again = memplan.estimate(header("flash-antirez-q2"), memplan.parse_flags([*FLAGS, *found.args]), rig)
    assert again.buffers == found.estimate.buffers
    assert [device.left >> 20 >= margin for device, margin in zip(again.devices, (2000, 500), strict=True)] == [
        True
    ] * 2


def test_nothing_fits() -> None:
    found = memplan.plan(header("flash-antirez-q2"), FLAGS, memplan.parse_gpus(["RTX 3060:12288:1500"]))
    assert isinstance(found, memplan.NoPlan)
    assert isinstance(found.nearest[0], memplan.Change)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"flags": "-c 65536"}, "a list of words"),
        ({"search": "c"}, "a list of names"),
        ({"search": ["x"]}, "must be c, ub, np or cache"),
        ({"margin_mib": -1}, "must be 0 or more"),
        ({"margin_mib": [1, 2, 3]}, "3 margins for 2 GPUs"),
    ],
)
def test_wrong_arguments(wrong: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"flags": FLAGS, "rig": memplan.parse_gpus(["2*RTX 3090"]), **wrong}
    with pytest.raises(memplan.MemplanError, match=said):
        memplan.plan(header("flash-antirez-q2"), **given)


def test_arguments_of_another_kind() -> None:
    with pytest.raises(TypeError, match="header must come from"):
        memplan.plan("flash.gguf", FLAGS, memplan.parse_gpus(["RTX 3090"]))  # type: ignore[arg-type]
