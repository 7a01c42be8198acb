"""Arguments of the library in the wrong place: which one is wrong is said, not what it lacked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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


@pytest.mark.parametrize("ops", ["LIGHTNING_INDEXER", b"ADD", [5], [None]])
def test_ops_that_are_no_list_of_names(ops: Any) -> None:
    with pytest.raises(TypeError, match="without_ops"):
        memplan.estimate(MODEL, FLAGS, RIG, without_ops=ops)


def test_an_op_that_there_is_not() -> None:
    with pytest.raises(memplan.FlagError, match="did you mean LIGHTNING_INDEXER"):
        memplan.estimate(MODEL, FLAGS, RIG, without_ops=["LIGHTNING_INDEXR"])
    with pytest.raises(memplan.FlagError, match="computes nothing"):
        memplan.sweep(MODEL, [], RIG, ["np=1"], without_ops=["view"])


def test_flags_changed_into_nonsense() -> None:
    for wrong in (-1, 2**40, "512", 1.5, True):
        with pytest.raises(memplan.FlagError, match="n_ubatch is"):
            memplan.estimate(MODEL, replace(FLAGS, n_ubatch=wrong), RIG)  # type: ignore[arg-type]


def test_what_is_secret_is_not_kept() -> None:
    words = ["--api-key", "hidden-key", "-np", "1", "-c", "4096"]
    rig = memplan.parse_gpus(["RTX PRO 6000"])
    model = memplan.read_model("qwen3-8b")
    found = memplan.plan(model, words, rig), memplan.sweep(model, words, rig, ["np=1,2"]), memplan.parse_flags(words)
    assert "hidden" not in repr(found) and "hidden" not in repr(found[2].words())
    with pytest.raises(memplan.FlagError, match="--api-key"):
        memplan.parse_flags(["--api-key"])


WRONG: list[Any] = [None, 5, 3.5, b"x", object(), [1], [None], ["x", 2]]
CALLS: list[tuple[str, Callable[[Any], Any]]] = [
    ("header", lambda x: memplan.plan(x, [], RIG)),
    ("flags", lambda x: memplan.plan(MODEL, x, RIG)),
    ("rig", lambda x: memplan.find_limit(MODEL, ["-np", "1"], x)),
    ("release", lambda x: memplan.explain(MODEL, FLAGS, RIG, x)),
    ("release", lambda x: memplan.find_release(x)),
    ("flags", lambda x: memplan.parse_flags(x)),
    ("specs", lambda x: memplan.parse_gpus(x)),
    ("name", lambda x: memplan.find_limit(MODEL, [], RIG, x)),
    ("over", lambda x: memplan.sweep(MODEL, ["-np", "1"], RIG, x)),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: type(wrong).__name__)
@pytest.mark.parametrize(("what", "call"), CALLS)
def test_what_is_of_the_wrong_type(what: str, call: Callable[[Any], Any], wrong: Any) -> None:
    with pytest.raises((TypeError, memplan.MemplanError)):
        call(wrong)
