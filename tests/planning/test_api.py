from __future__ import annotations

from typing import Any

import pytest

import memplan
from tests.golden import builtin

pytestmark = pytest.mark.slow

FLAGS = ("-c", "65536", "-np", "1")


def test_a_plan_from_python() -> None:
    rig = memplan.parse_gpus(["2*RTX 3090"])
    found = memplan.plan(builtin("flash-antirez-q2"), FLAGS, rig, [2000, 500])
    assert isinstance(found, memplan.Plan)
    again = memplan.estimate(builtin("flash-antirez-q2"), memplan.parse_flags([*FLAGS, *found.args]), rig)
    assert again.buffers == found.estimate.buffers
    assert [device.left >> 20 >= margin for device, margin in zip(again.devices, (2000, 500), strict=True)] == [
        True
    ] * 2


def test_margins_are_those_of_fit_target_unless_given() -> None:
    rig = memplan.parse_gpus(["2*RTX 3090"])
    for flags, margin, least in (
        ([*FLAGS, "--fit-target", "3000,500"], None, (3000, 500)),
        ([*FLAGS, "--fit-target", "3000"], 700, (700, 700)),
        ([*FLAGS, "--fit-target", "3000,500,9"], None, (3000, 500)),
    ):
        found = memplan.plan(builtin("flash-antirez-q2"), flags, rig, margin)
        assert isinstance(found, memplan.Plan)
        left = [device.left >> 20 for device in found.estimate.devices]
        assert all(mib >= want for mib, want in zip(left, least, strict=True))
        assert min(left) < 3000


def test_nothing_fits() -> None:
    found = memplan.plan(builtin("flash-antirez-q2"), FLAGS, memplan.parse_gpus(["RTX 3060:12288:800"]))
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
        memplan.plan(builtin("flash-antirez-q2"), **given)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"flags": memplan.parse_flags(FLAGS)}, "flags must be a list of strings; this is of type Flags"),
        ({"flags": ["-c", 65536]}, "flags must be a list of strings; this is of type int"),
        ({"flags": None}, "flags must be a list of strings; this is of type NoneType"),
        ({"search": None}, "search must be a list of strings; this is of type NoneType"),
        ({"margin_mib": "1024"}, "margin_mib must be a whole number or a list of them; this is of type str"),
        ({"margin_mib": 1.5}, "margin_mib must be a whole number or a list of them; this is of type float"),
        ({"margin_mib": [1.5, 2]}, "margin_mib must be a whole number or a list of them; this is of type list"),
    ],
)
def test_arguments_of_another_type(wrong: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"flags": FLAGS, "rig": memplan.parse_gpus(["2*RTX 3090"]), **wrong}
    with pytest.raises(TypeError, match=said):
        memplan.plan(builtin("flash-antirez-q2"), **given)


def test_words_may_be_any_list() -> None:
    rig = memplan.parse_gpus(["RTX PRO 6000"])
    found = memplan.plan(builtin("flash-antirez-q2"), iter(FLAGS), rig)  # type: ignore[arg-type]
    assert isinstance(found, memplan.Plan)
    assert found.fixed == FLAGS


def test_arguments_of_another_kind() -> None:
    with pytest.raises(TypeError, match="header must come from"):
        memplan.plan("flash.gguf", FLAGS, memplan.parse_gpus(["RTX 3090"]))  # type: ignore[arg-type]
