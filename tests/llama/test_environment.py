from __future__ import annotations

import pytest

from memplan.errors import FlagError
from memplan.llama.environment import PREFIX, environment_flags
from memplan.llama.flag_table import ARITY, REMOVED
from memplan.llama.flags import parse_flags

BUILD = 11200


def flags(build: int = BUILD, /, **variables: str) -> list[str]:
    return environment_flags({PREFIX + name: value for name, value in variables.items()}, build)[0]


def notes(build: int = BUILD, /, **variables: str) -> list[str]:
    return environment_flags({PREFIX + name: value for name, value in variables.items()}, build)[1]


def test_every_variable_stands_for_a_flag() -> None:
    from memplan.llama.environment import _VARIABLES

    assert [flag for flag in _VARIABLES.values() if flag not in ARITY and flag not in REMOVED] == []


def test_variables_are_read_in_the_order_of_llama_cpps_table() -> None:
    words = flags(N_CPU_MOE="2", OVERRIDE_TENSOR="a=CPU", CTX_SIZE="4096", N_PARALLEL="2")
    assert words == [
        "--ctx-size", "4096", "--parallel", "2", "--override-tensor", "a=CPU", "--n-cpu-moe", "2"
    ]  # fmt: skip
    assert parse_flags([*words, "-c", "1024"]).n_ctx == 1024


def test_a_switch_counts_when_it_is_on_and_its_negation_by_being_there() -> None:
    assert flags(CPU_MOE="1", SWA_FULL="enabled") == ["--swa-full", "--cpu-moe"]
    assert flags(CPU_MOE="0", SWA_FULL="yes", NO_HOST="") == []
    assert flags(KV_OFFLOAD="on") == ["--kv-offload"]
    assert flags(KV_OFFLOAD="off") == ["--no-kv-offload"]
    assert flags(KV_OFFLOAD="on", NO_KV_OFFLOAD="") == ["--no-kv-offload"]
    assert flags(NO_CPU_MOE="1") == []  # no negation is known of it


def test_variables_that_newer_builds_do_not_read() -> None:
    assert flags(10852, NO_MMAP="1", MLOCK="on") == ["--mlock", "--no-mmap"]
    assert flags(10909, NO_MMAP="1", MLOCK="on") == []
    assert notes(10909, NO_MMAP="1") == ["LLAMA_ARG_NO_MMAP is not read by llama.cpp any more: give the flag, -lm none"]


def test_what_is_read_and_what_is_not_is_said() -> None:
    assert notes(CTX_SIZE="4096") == ["read as llama-server reads its environment: LLAMA_ARG_CTX_SIZE=4096"]
    (note,) = notes(BATCH_SIZE="1024", THREADS="8")
    assert note == "LLAMA_ARG_BATCH_SIZE is no variable of llama-server's, which does not read it: LLAMA_ARG_BATCH is"


@pytest.mark.parametrize(
    ("variables", "said"),
    [({"CTX_SIZE": ""}, "LLAMA_ARG_CTX_SIZE is set to nothing"), ({"KV_UNIFIED": "yes"}, "must be one of on, enabled")],
)
def test_values_that_llama_server_would_not_take(variables: dict[str, str], said: str) -> None:
    with pytest.raises(FlagError, match=said):
        flags(**variables)
