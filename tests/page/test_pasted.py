"""Pasted command lines become what the form holds."""

from __future__ import annotations

import re

import pytest

from memplan.errors import FlagError, RigError
from memplan.page.pasted import FIELDS, read_pasted


def fields(text: str) -> dict[str | None, list[str]]:
    return {flag["field"]: flag["words"] for flag in read_pasted(text)["flags"]}


def test_a_llama_server_line_as_people_paste_it() -> None:
    found = read_pasted(
        "CUDA_VISIBLE_DEVICES=0 sudo ./build/bin/llama-server -m /models/Qwen3-30B-A3B-Q8_0.gguf \\\n"
        "  --ctx-size 65536 --parallel 1 -fa on -ot 'exps=CPU' --api-key secret --mlock"
    )
    assert found["model"] == "/models/Qwen3-30B-A3B-Q8_0.gguf" and found["builtin"] == "qwen3-30b-a3b:q8_0"
    assert [(flag["field"], flag["words"]) for flag in found["flags"]] == [
        ("-c", ["--ctx-size", "65536"]),
        ("-np", ["--parallel", "1"]),
        ("-fa", ["-fa", "on"]),
        (None, ["-ot", "exps=CPU"]),
        (None, ["--mlock"]),
    ]
    assert found["notes"] == []
    assert found["left_out"] == ["--api-key"] and "secret" not in str(found)
    assert (found["gpus"], found["host_mib"], found["llama"]) == (None, None, None)


def test_the_environment_leaves_some_of_the_cards() -> None:
    line = "CUDA_VISIBLE_DEVICES=2,0 llama-server -m a.gguf"
    found = read_pasted(line, ["2*RTX 3090", "RTX 5090::30000"])
    assert found["gpus"] == ["RTX 5090::30000", "RTX 3090"]
    assert found["notes"] == [
        "CUDA_VISIBLE_DEVICES=2,0 leaves 2 of 3 CUDA devices: CUDA0 is NVIDIA GeForce RTX 5090, CUDA1 is NVIDIA"
        " GeForce RTX 3090"
    ]
    with pytest.raises(RigError, match="no 2"):
        read_pasted(line, ["2*RTX 3090"])


def test_memplan_s_own_options_stand_among_the_other_flags() -> None:
    found = read_pasted("memplan estimate deepseek-v4-flash --filled 1000 --path indexer=unfused --mlock")
    assert [flag["words"] for flag in found["flags"] if flag["field"] is None] == [
        ["--mlock"], ["--filled", "1000"], ["--path", "indexer=unfused"],
    ]  # fmt: skip


def test_a_memplan_line_fills_the_machine_too() -> None:
    line = "memplan estimate gpt-oss-20b --gpu '2*RTX 3090' --gpu 'RTX 5090' --host-mib 65536 --llama v0.4.0 -c 8192"
    found = read_pasted(line)
    assert (found["model"], found["builtin"]) == ("gpt-oss-20b", "gpt-oss-20b:mxfp4")
    assert found["gpus"] == ["2*RTX 3090", "RTX 5090"]
    assert (found["host_mib"], found["llama"]) == (65536, "v0.4.0")


def test_what_stands_before_the_program_counts() -> None:
    found = read_pasted("LLAMA_ARG_CTX_SIZE=8192 nohup llama-cli -m a.gguf &")
    assert found["app"] == "cli" and found["flags"] == [{"field": "-c", "words": ["--ctx-size", "8192"]}]
    assert read_pasted("memplan estimate gpt-oss-20b --app cli -c 8192")["app"] == "cli"


def test_a_line_for_the_host_alone() -> None:
    assert read_pasted("memplan estimate gpt-oss-20b --no-gpu")["gpus"] == []


def test_flags_alone_and_names_on_hubs() -> None:
    assert read_pasted("-hf o/r:Q4_K_M -c 4096")["model"] == "hf:o/r:Q4_K_M"
    assert fields("-cmoe --spec-type draft-mtp -md drafter.gguf").keys() == {None, "--spec-type", "-md"}
    assert set(FIELDS) > fields("-ctk q8_0 -ctv q8_0 -ub 256 -b 512 -ngl 20 -ncmoe 3").keys()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("llama-server -m 'a.gguf", "no closing quotation"),
        ("llama-server --bogus 1", "unknown flag '--bogus'"),
        ("llama-server -c twelve", "-c 'twelve'"),
        ("llama-server -m a.gguf b.gguf", "more than one model"),
        ("memplan estimate gpt-oss-20b --gpu", "--gpu needs a value"),
        ("memplan estimate gpt-oss-20b --host-mib x", "--host-mib 'x'"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(line: str, said: str) -> None:
    with pytest.raises(FlagError, match=re.escape(said)):
        read_pasted(line)
