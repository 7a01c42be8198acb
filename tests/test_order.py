"""Answers do not depend on what was asked before them, nor on threads."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

import memplan

MODELS = [memplan.read_model(name) for name in ("deepseek-v4-flash", "qwen3-30b-a3b")]
RIGS = [memplan.parse_gpus(["RTX 3090"]), memplan.parse_gpus(["RTX 5090", "RTX 3090"])]
FLAGS = [
    memplan.parse_flags(words.split())
    for words in ("-c 4096 -np 1", "-c 4096 -np 2 -cmoe", "-c 8192 -ub 1024 -np 1 -ncmoe 9")
]
ASKED = [
    (model, flags, rig, release)
    for model in MODELS
    for flags in FLAGS
    for rig in RIGS
    for release in ("v0.5.0", "b10068")
]


def ask(i: int) -> memplan.Estimate:
    return memplan.estimate(*ASKED[i])


@pytest.mark.slow
def test_any_order_and_four_threads_give_the_same_answers() -> None:
    there = [ask(i) for i in range(len(ASKED))]
    order = random.Random(7).sample(range(len(ASKED)), len(ASKED))
    assert [ask(i) for i in order] == [there[i] for i in order]
    with ThreadPoolExecutor(4) as pool:
        again = random.Random(8).choices(range(len(ASKED)), k=len(ASKED))
        assert list(pool.map(ask, again)) == [there[i] for i in again]
