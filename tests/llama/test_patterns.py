from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memplan.errors import FlagError
from memplan.llama.patterns import MAX_STEPS, compile_pattern, matches
from tests.counting import lines_run

NAME = "blk.7.ffn_gate_exps.weight"


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (r"blk\.7\.ffn_(up|down|gate|gate_up)_(ch|)exps", True),
        (r"blk\.([0-6]|1[0-7])\.", False),
        ("exps", True),
        ("", True),
        ("^exps", False),
        ("^blk.*weight$", True),
        ("weigh$", False),
        ("[[:digit:]]", True),
        ("[[:alpha:]]{6}$", True),
        ("[[.k.]][[=.=]]7", True),
        ("[]", False),
        ("[^]", True),
        ("[a]]", False),
        ("]|}|exps", True),
        (r"\A|\Z", False),
        (r"\_exps\.", True),
        (r"\x62lk\u002e7", True),
        (r"\bffn_gate_exps\b", True),
        (r"\Blk\b", True),
        ("(?=blk)(?!b7)b", True),
        ("(?:ffn|attn)_gate", True),
        ("(?:^)?blk", True),
        (r"(.)f\1|(e)xp.*\2ight", True),
        (r"[\d.]+ffn", True),
        (r"[k\-z]\.7", True),
        ("[-k]|[k-]", True),
        ("f{2}n", True),
        ("f{3,}", False),
        (r"b??l+?k\.{1,2}?7", True),
        ("[é]|k", True),
        ("[é]", False),
        ("(a?){40}exps", True),
        (r"(\w|\d)*x$", False),
    ],
)
def test_search(pattern: str, found: bool) -> None:
    assert compile_pattern(pattern)(NAME) is found


REFUSED = [
    "*a",
    "a|+",
    "^*",
    "a{",
    "a{,2}",
    "a{2,1}",
    "a{99999}",
    "(a",
    "a)",
    "(?",
    "(?<n>a)",
    "(?<=a)b",
    "(?i)a",
    "[a",
]
REFUSED += ["[z-a]", r"[\d-z]", r"[a-\d]", r"[\B]", "[[:word:]]", "[[.space.]]", "\\", "a|\\", r"\1", r"(a\1)", r"\x6"]
REFUSED += [r"\u12g4", r"(.*)*(a)\2", "(" * 60 + "a" + ")" * 60]


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_std_regex_refuses_is_one_line(pattern: str) -> None:
    with pytest.raises(FlagError, match="-ot") as caught:
        compile_pattern(pattern)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "pattern", ["(.*)*x$", "(.+)+y", "([a-z]+|[a-z_.]+)*!", ".*.*.*.*.*.*.*.*!", "(a?b?c?){1000}!", "((((.*)*)*)*)*!",
     "(|)" * 24 + "[yY]", "(.?){1000}[yY]", "(.|..|...)" * 20 + "[yY]", "(.{1,50}Y?){1,50}[YZ]"],
)  # fmt: skip
def test_no_pattern_takes_forever(pattern: str) -> None:
    name = "blk.42.indexer_compressor_gate.weight.and.some.more.of.it.a"
    found = compile_pattern(pattern)
    assert not found(name)
    assert lines_run(lambda: found(name)) < MAX_STEPS


@pytest.mark.parametrize("pattern", ["((((){1000}){1000}){1000})", "((a|b)*c?)*!", "(?=(?=.*b).*a)", "a" * 70_000])
def test_what_would_take_too_much_is_refused(pattern: str) -> None:
    def refused() -> None:
        with pytest.raises(FlagError, match=r"more than|may take|read at most"):
            compile_pattern(pattern)

    assert lines_run(refused) < MAX_STEPS


def test_many_patterns_are_bounded_together() -> None:
    names = tuple(f"blk.{i}.ffn_up_exps.weight" for i in range(500))
    assert matches(("nothing", r"\.7\."), names) == ((7, 1),)
    with pytest.raises(FlagError, match="fewer, or simpler"):
        matches(tuple(f"(.|..|...|e{i}){{60}}[!?]" for i in range(200)), names)


ATOMS = st.sampled_from(
    ["b", "l", "k", ".", r"\.", "7", "[0-9]", "_", "ffn", "exps", "(b|k)", "(?:l|f)", r"\d", "[^k]"]
)
REPEATS = st.sampled_from(["", "", "*", "+", "?", "{1,2}", "{2}", "*?"])
PATTERNS = st.lists(st.tuples(ATOMS, REPEATS), max_size=8).map(lambda parts: "".join(a + r for a, r in parts))


@given(PATTERNS)
def test_agrees_with_re_where_the_grammars_do(pattern: str) -> None:
    assert compile_pattern(pattern)(NAME) == (re.search(pattern, NAME) is not None)


@given(st.text(max_size=12))
def test_any_text_is_a_pattern_or_a_flag_error(pattern: str) -> None:
    with suppress(FlagError):
        compile_pattern(pattern)(NAME)
