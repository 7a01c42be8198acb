"""Arguments of the library in the wrong place: which one is wrong is said, not what it lacked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import memplan

FLAGS = memplan.parse_flags(["-c", "512", "-np", "1"])
RIG = memplan.parse_gpus(["RTX PRO 6000"])
MODEL = memplan.read_model("deepseek-v4-flash")
NAME: Any = "deepseek-v4-flash"


@pytest.mark.parametrize("function", [memplan.estimate, memplan.explain])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((MODEL, RIG, FLAGS), "flags must come from memplan.parse_flags; this is of type Rig"),
        ((NAME, FLAGS, RIG), "header must come from memplan.read_model; this is of type str"),
        ((MODEL, FLAGS, ["RTX 3090"]), "memplan.parse_gpus or memplan.load_rig; this is of type list"),
        ((MODEL, ["-c", "1"], RIG), "flags must come from memplan.parse_flags; this is of type list"),
        ((MODEL, FLAGS, RIG, 5), "this is of type int"),
    ],
)
def test_arguments_in_the_wrong_place(function: Callable[..., Any], arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(TypeError) as caught:
        function(*arguments)
    assert said in str(caught.value)


def test_a_sweep_says_the_same() -> None:
    with pytest.raises(TypeError, match="header must come from"):
        memplan.sweep(NAME, [], RIG, ["np=1"])
    with pytest.raises(memplan.FlagError, match="give a list of axes"):
        memplan.sweep(MODEL, [], RIG, "np=1")
    with pytest.raises(memplan.FlagError, match="give a list of words"):
        memplan.sweep(MODEL, "-c 512", RIG, ["np=1"])


@pytest.mark.parametrize("model", [None, 5, b"m.gguf"])
def test_what_names_no_model(model: Any) -> None:
    with pytest.raises(TypeError, match="a model is a path, an address or a built-in name"):
        memplan.read_model(model)
