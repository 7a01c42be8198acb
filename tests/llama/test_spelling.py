from __future__ import annotations

import pytest

from memplan.llama.flag_table import ARITY
from memplan.llama.flags import parse_flags
from memplan.llama.spelling import _CAME, spelled_for


@pytest.mark.parametrize(
    ("given", "build", "written"),
    [
        ("--no-mmap -c 1", 11200, "-lm none -c 1"),
        ("--mlock", 10909, "-lm mlock"),
        ("--no_mmap", 10909, "-lm none"),
        ("--no-mmap --mlock", 10852, "--no-mmap --mlock"),
        ("-lm none", 11200, "-lm none"),
        ("-lm none", 10103, "--no-mmap"),
        ("-lm mmap+mlock -c 1", 9840, "--mmap --mlock -c 1"),
        ("--load-mode auto", 9840, ""),
        ("-lm dio", 9840, "--direct-io"),
        ("-ncffn 3", 10605, "-ncffn 3"),
    ],
)
def test_a_line_as_another_build_takes_it(given: str, build: int, written: str) -> None:
    words, notes = spelled_for(given.split(), build, "bN")
    assert " ".join(words) == written
    assert bool(notes) == (written != given or "-ncffn" in given)
    assert parse_flags(words).load_mode in (parse_flags(given.split()).load_mode, "mlock")


def test_what_is_said_of_it() -> None:
    assert spelled_for(["--no-mmap", "--no-mmap"], 11200, "v0.5.0")[1] == [
        "--no-mmap went with b10909: written -lm none, as llama-server v0.5.0 takes it"
    ]
    assert spelled_for(["-ncffn", "3"], 10605, "b10605")[1] == [
        "llama-server b10605 takes no -ncffn, which came with b10662"
    ]
    assert spelled_for(["-lm", "none"], 9840, "b9840")[1] == [
        "llama-server b9840 takes no -lm, which came with b10108: written --no-mmap"
    ]


def test_every_flag_here_is_known() -> None:
    assert set(_CAME) <= set(ARITY)
