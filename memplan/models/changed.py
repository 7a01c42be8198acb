"""A built-in model with other hyper-parameters: a variant with fewer experts, or with fewer layers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from typing import Final

from memplan.errors import FlagError, shown
from memplan.gguf.header import Scalar, Value
from memplan.llama.flag_values import choice, whole
from memplan.llama.keys import MAX_NUMBER
from memplan.models.builtin_model import BuiltinModel

OPTION: Final = "--set"
"""The option whose values these are, as errors call it."""


def changed_model(model: BuiltinModel, changes: Iterable[str]) -> BuiltinModel:
    """The model with hyper-parameters replaced, each as KEY=VALUE, by GGUF's name with or without the architecture's.

    A value is of the type that the model has there; of one that layers have each their own, one for all of them or as
    many, separated by commas. Raises FlagError.
    """
    keys = dict(model.keys)
    for text in changes:
        name, equals, value = text.partition("=")
        key = name.strip().removeprefix(f"{model.arch}.")
        if not equals or not value:
            raise FlagError(f"{OPTION} {shown(text)}: must be KEY=VALUE, as in expert_count=132")
        if key not in keys:
            near = get_close_matches(key, keys, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(sorted(keys))}"
            raise FlagError(f"{OPTION} {shown(text)}: {model.name} has no such hyper-parameter; {hint}")
        if keys[key] is not model.keys[key]:
            raise FlagError(f"{OPTION} {shown(text)}: {key} is given twice; give only one")
        keys[key] = _value(f"{OPTION} {key}", value, keys[key])
    return replace(model, keys=_with_layers(model, keys))


def _with_layers(model: BuiltinModel, keys: dict[str, Value]) -> dict[str, Value]:
    """The keys with as many values of each layer as there are layers now: the first ones of the model's."""
    before, now = model.keys["block_count"], keys["block_count"]
    assert isinstance(before, int) and isinstance(now, int)
    kept = [key for key, value in keys.items() if isinstance(value, tuple) and len(value) == before]
    if kept and now > before:
        raise FlagError(
            f"{OPTION} block_count {now}: {model.name} has values of {before} layers alone, such as {kept[0]}"
        )
    return {**keys, **{key: value[: max(now, 1)] for key in kept if isinstance(value := keys[key], tuple)}}


def _value(flag: str, text: str, before: Value) -> Value:
    """A value of the same type as before."""
    if not isinstance(before, tuple):
        return _scalar(flag, text, before)
    parts = text.split(",")
    return tuple(_scalar(flag, part, before[0]) for part in (parts * len(before) if len(parts) == 1 else parts))


def _scalar(flag: str, text: str, before: Value) -> Scalar:
    if isinstance(before, bool):
        return choice(flag, text, ("true", "false")) == "true"
    if isinstance(before, int):
        return whole(flag, text, 0, MAX_NUMBER)
    if isinstance(before, float):
        try:
            return float(text)
        except ValueError:
            raise FlagError(f"{flag} {shown(text)}: must be a number") from None
    return text
