"""Architectures that are not modelled: weights and plain caches are placed, and nothing more is claimed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memplan.cli import main
from memplan.errors import MissingKey, ModelError
from memplan.estimator import estimate
from memplan.gguf.header import Header, Value
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.output.words import verdict_line
from memplan.planning.api import plan
from memplan.rig import parse_gpus

FLAGS = parse_flags(["-c", "8192", "-np", "1"])
RIG = parse_gpus(["RTX 3090"])


def renamed(name: str, more: dict[str, Value] | None = None) -> Header:
    """Qwen3-8B by another architecture's name, which makes nothing of weights and caches otherwise."""
    known = builtin_header("qwen3-8b:q8_0")
    keys = {key.replace("qwen3.", f"{name}."): value for key, value in known.metadata.items()}
    return replace(known, metadata={**keys, "general.architecture": name, **(more or {})})


def test_weights_and_caches_are_those_of_a_model_of_the_same_tensors() -> None:
    known, unknown = estimate(builtin_header("qwen3-8b:q8_0"), FLAGS, RIG), estimate(renamed("olmo9"), FLAGS, RIG)
    assert {name: (b.model, b.context) for name, b in unknown.buffers.items()} == {
        name: (b.model, b.context) for name, b in known.buffers.items()
    }
    assert all(b.compute == 0 for b in unknown.buffers.values())
    assert not unknown.exact
    assert unknown.approximate.startswith("architecture olmo9 is not modelled: weights and caches alone")
    assert verdict_line(unknown).startswith("compute is not modelled: ")


@pytest.mark.parametrize("key", ["ssm.conv_kernel", "attention.sliding_window", "attention.kv_lora_rank"])
def test_caches_of_another_kind_are_not_guessed(key: str) -> None:
    found = estimate(renamed("olmo9", {f"olmo9.{key}": 4}), FLAGS, RIG)
    assert all(b.context == 0 for b in found.buffers.values())
    assert found.approximate.startswith("architecture olmo9 is not modelled: weights alone")


def test_nothing_is_planned_or_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "deepseek-v4-flash", "--llama", "antirez", "--gpu", "H200", "-c", "4096"]) == 2
    assert "compute buffers of antirez are not modelled" in capsys.readouterr().err
    with pytest.raises(ModelError, match=r"^compute buffers of architecture olmo9 are not modelled"):
        plan(renamed("olmo9"), ["-c", "8192"], RIG)


def test_a_key_that_all_have_is_missing() -> None:
    header = renamed("olmo9")
    keys = {key: value for key, value in header.metadata.items() if key != "olmo9.block_count"}
    with pytest.raises(MissingKey, match=r"olmo9\.block_count"):
        estimate(replace(header, metadata=keys), FLAGS, RIG)
