"""Headers that were changed: an answer, or one clear error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from memplan.errors import BadHyperParameter, MemplanError, MissingTensor
from memplan.estimator import estimate
from memplan.gguf.header import Header, Value
from memplan.llama.flags import parse_flags
from memplan.rig import parse_gpus
from tests.golden import stored as header

RIG = parse_gpus(["RTX 3090"])
FLAGS = parse_flags(["-c", "4096", "-np", "1"])


def changed(h: Header, key: str, value: Value) -> Header:
    return replace(h, metadata={**h.metadata, f"{h.metadata['general.architecture']}.{key}": value})


def without(h: Header, name: str) -> Header:
    return replace(h, tensors={known: t for known, t in h.tensors.items() if known != name})


def others(value: Value) -> Iterator[Value]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (0, 1, 3, value + 1)
    elif isinstance(value, tuple):
        yield from (value[:-1], tuple(reversed(value)), (value[0],) * len(value))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gemma4-e4b", "gpt-oss-20b", "step35-flash", "llama4-maverick"])
def test_any_number_gets_an_answer_or_an_error(model: str) -> None:
    h = header(model)
    for key, value in h.metadata.items():
        for other in others(value):
            try:
                estimate(replace(h, metadata={**h.metadata, key: other}), FLAGS, RIG, "v0.5.0")
            except MemplanError as fault:
                assert "\n" not in str(fault)


def test_caches_are_shared_with_layers_of_their_kind() -> None:
    with pytest.raises(BadHyperParameter, match="layers from 23 on share the caches of the last two before"):
        estimate(changed(header("gemma4-e4b"), "attention.shared_kv_layers", 19), FLAGS, RIG, "v0.5.0")


def test_a_layer_with_a_router_has_all_of_its_experts() -> None:
    name = "blk.5.ffn_down_exps.weight"
    with pytest.raises(MissingTensor, match=name):
        estimate(without(header("step35-flash"), name), FLAGS, RIG, "v0.5.0")
