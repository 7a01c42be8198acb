"""A model that --override-kv breaks is not said to be a bad file."""

from __future__ import annotations

import pytest

from memplan.errors import MissingKey, ModelError
from memplan.estimator import estimate
from memplan.gguf.header import Header
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.result import Estimate
from memplan.rig import parse_gpus

MEND = "; leave out --override-kv qwen3.{}"


def asked(header: Header, *overrides: str) -> Estimate:
    words = [word for override in overrides for word in ("--override-kv", f"qwen3.{override}")]
    return estimate(header, parse_flags(["-c", "256", *words]), parse_gpus(["RTX 3090"]))


@pytest.mark.parametrize("key", ["block_count", "embedding_length", "attention.key_length", "vocab_size"])
def test_the_override_is_named(key: str) -> None:
    with pytest.raises(ModelError, match=r"^qwen3-8b:\w+: (metadata|tensor) ") as caught:
        asked(builtin_header("qwen3-8b"), f"{key}=int:0")
    assert str(caught.value).endswith(MEND.format(key))


def test_a_refusal_names_it_too() -> None:
    refused = asked(builtin_header("qwen3-8b"), "block_count=int:3").refused
    assert refused is not None and refused.message.startswith("wrong number of tensors")
    assert refused.fix == MEND.format("block_count").removeprefix("; ")


def test_a_file_that_is_broken_itself_is_to_be_converted_again() -> None:
    sound = builtin_header("qwen3-8b")
    keys = {key: value for key, value in sound.metadata.items() if not key.endswith("context_length")}
    broken = Header(sound.version, keys, sound.tensors, name="x", value_types=sound.value_types)
    with pytest.raises(MissingKey, match=r"convert the model again$"):
        asked(broken, "block_count=int:0")
