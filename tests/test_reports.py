"""Figures that people measured on their own machines."""

from __future__ import annotations

import pytest

from memplan.backends.devices import Gpu, Rig
from memplan.estimator import estimate
from memplan.llama.flags import parse_flags
from memplan.models.builtin import RECIPES, builtin_header

MIB = 1 << 20
ONE = Rig((Gpu("NVIDIA RTX PRO 6000", 97886 * MIB, 97486 * MIB, (12, 0)),))
FLASH = "deepseek-v4-flash"


def weights(recipe: str, *args: str) -> dict[str, float]:
    """MiB of weights by buffer type, as llama.cpp prints them."""
    flags = parse_flags(["-c", "4096", "-np", "1", *args])
    found = estimate(builtin_header(f"{FLASH}:{recipe}"), flags, ONE)
    return {name: round(use.model / MIB, 2) for name, use in found.buffers.items() if use.model}


def test_r24_every_expert_on_the_host() -> None:
    found = weights("antirez-q2", "-ngl", "99", "-cmoe")
    assert found == {"CUDA0": 7383.67, "CUDA_Host": 75314.0}
    assert int(found["CUDA0"]) == 7383  # the report has whole MiB


@pytest.mark.parametrize(("recipe", "mib"), [("antirez-q2", 82697.65), ("antirez-q4", 157001.65)], ids=["R24", "R26"])
def test_r24_r26_the_sum_of_all_tensors(recipe: str, mib: float) -> None:
    tensors = builtin_header(f"{FLASH}:{recipe}").tensors.values()
    assert round(sum(t.nbytes for t in tensors) / MIB, 2) == mib


@pytest.mark.parametrize("recipe", sorted(name for name, r in RECIPES.items() if r.embedding in ("f16", "bf16")))
def test_r25_token_embeddings_of_two_bytes_stay_on_the_host(recipe: str) -> None:
    assert weights(recipe)["CUDA_Host"] == 1010.0


def test_r30_the_whole_model_on_one_card() -> None:
    assert weights("antirez-q2") == {"CUDA0": 81687.67, "CUDA_Host": 1010.0}
