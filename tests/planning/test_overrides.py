from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan.llama.patterns import compile_pattern
from memplan.planning.overrides import fold, matched, write_overrides
from tests.golden import builtin

NAMES = tuple(builtin("flash-antirez-q2").tensors)
KINDS = ("gate", "up", "down")


def experts(layers: set[int], kinds: tuple[str, ...] = KINDS, buffer: str = "CPU") -> dict[str, str]:
    return {f"blk.{il}.ffn_{kind}_exps.weight": buffer for il in layers for kind in kinds}


@given(st.sets(st.integers(0, 130), min_size=1), st.sets(st.integers(0, 130)))
def test_folded_numbers_match_exactly_those_meant(numbers: set[int], others: set[int]) -> None:
    search = compile_pattern(rf"^{fold(numbers, numbers | others)}$")
    assert {n for n in numbers | others if search(str(n))} == numbers


@pytest.mark.parametrize(
    ("numbers", "among", "pattern"),
    [
        ({7}, range(43), "7"),
        (set(range(8, 22)), range(43), "([89]|1.|2[01])"),
        (set(range(20, 43)), range(43), "[2-4]."),
        (set(range(10)), range(43), "."),
        ({12, 22, 32}, range(43), "[1-3]2"),
        ({3, 5}, range(43), "[35]"),
    ],
)
def test_ranges_are_folded(numbers: set[int], among: range, pattern: str) -> None:
    assert fold(numbers, among) == pattern


@pytest.mark.parametrize(
    ("wanted", "rules"),
    [
        ({}, ""),
        (experts(set(range(43))), "exps=CPU"),
        (experts(set(range(43)), ("up",)), "up_exps=CPU"),
        (experts(set(range(12, 32))), r"\.(1[2-9]|2.|3[01])\..*exps=CPU"),
        (experts({3}, ("down",), "CUDA1"), r"\.3\.ffn_down_exps=CUDA1"),
    ],
)
def test_patterns(wanted: dict[str, str], rules: str) -> None:
    assert ",".join(f"{pattern}={buffer}" for pattern, buffer in write_overrides(wanted, NAMES)) == rules


places = st.dictionaries(
    st.tuples(st.integers(0, 42), st.sampled_from(KINDS)), st.sampled_from(["CPU", "CUDA0", "CUDA11"]), max_size=40
)


@settings(max_examples=40, deadline=None)
@given(places)
def test_patterns_match_exactly_the_tensors_meant(chosen: dict[tuple[int, str], str]) -> None:
    wanted = {f"blk.{il}.ffn_{kind}_exps.weight": buffer for (il, kind), buffer in chosen.items()}
    rules = write_overrides(wanted, NAMES)
    assert matched(rules, NAMES) == wanted
    assert not any("," in pattern or "=" in pattern for pattern, _ in rules)


def test_whole_layers_and_the_rest_of_one() -> None:
    wanted = {**experts(set(range(20, 43))), **experts({19}, ("down", "up"))}
    rules = write_overrides(wanted, NAMES)
    assert matched(rules, NAMES) == wanted
    assert sum(len(pattern) for pattern, _ in rules) < 60
    assert all(re.search("exps", pattern) for pattern, _ in rules)
