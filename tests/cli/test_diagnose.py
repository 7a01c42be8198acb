from __future__ import annotations

import io
import json
import shlex
import sys
from pathlib import Path

import pytest

from memplan.cli import main
from memplan.diagnosing import diagnosis
from memplan.diagnosing.answers import Answers
from memplan.diagnosing.diagnosis import diagnose as explain
from memplan.diagnosing.log import Load
from memplan.diagnosing.result import Diagnosis, Given

LOGS = Path(__file__).parent.parent / "data" / "logs"
GOOD = str(LOGS / "good-v0.5.0.log")
FAILED = (
    Path(GOOD).read_text().partition("llama_kv_cache")[0]
    + "llama_init_from_model: DeepSeek4 does not support different K (q8_0) and V (f16) cache types\n"
)


def test_a_report(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "log").write_text(FAILED)
    assert main(["diagnose", str(tmp_path / "log"), "-ctk", "q8_0"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "cause (k-v-types-differ): " in out
    assert "to fix it: give -ctk and -ctv the same type" in out
    assert max(map(len, out.splitlines())) <= 110


def test_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["diagnose", GOOD, "--check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "CUDA0      weights      81,687.67      81,687.67" in lines
    assert "they agree" in lines


def test_a_command_line_is_wrapped_as_a_shell_takes_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["diagnose", GOOD, "-b", "1024"]) == 0
    out = capsys.readouterr().out
    command = out[out.index("predicted with: ") :].partition("\n- ")[0]
    assert len(command.splitlines()) > 1 and max(map(len, command.splitlines())) <= 60
    assert shlex.split(command.replace("\\\n", ""))[2:] == diagnosis_words(GOOD, "-b", "1024", capsys=capsys)


def diagnosis_words(*words: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["diagnose", *words, "--json"]) == 0
    args: list[str] = json.loads(capsys.readouterr().out)["loads"][0]["args"]
    return args


def test_json_and_stdin(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    data = Path(GOOD).read_bytes() + FAILED.encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert main(["diagnose", "-", "--json", "--all", "--check"]) == 1
    first, second = json.loads(capsys.readouterr().out)["loads"]
    assert (first["cause"]["kind"], first["agrees"], first["failed"]) == ("nothing-wrong", True, None)
    assert second["failed"]["said"].startswith("DeepSeek4 does not support")


def test_loads_that_are_the_same_are_explained_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def counted(load: Load, said: Given | None = None, answers: Answers | None = None) -> Diagnosis:
        asked.append(load.line)
        return explain(load, said, answers)

    monkeypatch.setattr(diagnosis, "diagnose", counted)
    short = FAILED
    (tmp_path / "log").write_text(short * 20 + Path(GOOD).read_text() + short * 20)
    assert main(["diagnose", str(tmp_path / "log"), "--check"]) == 1
    out = capsys.readouterr().out
    assert (len(asked), out.count("cause (")) == (2, 2)
    lines = short.count("\n")
    start = asked[0] - 19 * lines - Path(GOOD).read_text().count("\n") - 20 * lines  # the last is asked about first
    assert out.startswith(f"load 1 of 41, line {start}: ") and f"\nload 21 of 41, line {asked[1]}: " in out
    # programs get every load
    assert main(["diagnose", str(tmp_path / "log"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["loads"]
    assert [len(found), found[0]["line"], found[1]["line"]] == [41, start, start + lines]
    assert f"\nthe same load 40 times, the last from line {found[40]['line']} on\n" in out
    assert found[0] | {"line": 0} == found[40] | {"line": 0} != found[20] | {"line": 0}


def test_loads_of_which_the_same_is_said_are_shown_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    good = Path(GOOD).read_text()
    logs = [good.replace("97250 MiB free", f"{97250 - n} MiB free") for n in range(5)]
    (tmp_path / "log").write_text("".join(logs))
    assert main(["diagnose", str(tmp_path / "log")]) == 0
    out = capsys.readouterr().out
    assert (out.count("cause ("), out.count("the same load 5 times")) == (1, 1)


def test_loads_that_differ_in_one_thing_are_explained_each(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "log").write_text(FAILED + FAILED.replace("q8_0", "q4_0"))
    assert main(["diagnose", str(tmp_path / "log"), "-ctk", "q8_0"]) == 0
    out = capsys.readouterr().out
    assert out.count("cause (") == 2 and "the same load" not in out


@pytest.mark.slow
def test_a_command_line_after_the_log(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "build: 11200 (abc)\nggml_gallocr_reserve_n_impl: failed to allocate CUDA0 buffer of size 433158272\n"
    )
    line = ["-m", "deepseek-v4-flash", "-c", "4096", "-np", "1", "--gpu", "RTX PRO 6000", "--json"]
    for program, app in ((["llama-server"], "server"), (["llama", "serve"], "server"), (["./llama", "cli"], "cli")):
        words = line if app == "server" else [word for word in line if word not in ("-np", "1")]
        assert main(["diagnose", str(log), *program, *words]) == 0
        (load,) = json.loads(capsys.readouterr().out)["loads"]
        assert load["model"] == "deepseek-v4-flash:antirez-q2" and load["args"][2:4] == ["-c", "4096"]


@pytest.mark.slow
def test_flags_after_the_log(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("ggml_gallocr_reserve_n_impl: failed to allocate CUDA0 buffer of size 433158272\n")
    line = ["diagnose", str(log), "llama-server", "-m", "deepseek-v4-flash", "-c", "131072", "-np", "1", "--json"]
    assert main([*line, "--gpu", "RTX PRO 6000:97886:82000", "--llama", "v0.5.0"]) == 0
    (load,) = json.loads(capsys.readouterr().out)["loads"]
    assert load["agrees"] and load["mends"] and load["model"] == "deepseek-v4-flash:antirez-q2"


def test_a_command_line_of_another_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", GOOD, "llama-server", "-m", "/models/x.gguf", "-c", "131072", "-np", "1", "--json"]) == 0
    (load,) = json.loads(capsys.readouterr().out)["loads"]
    assert load["agrees"] and load["model"] == "deepseek-v4-flash:antirez-q2"
    assert "'/models/x.gguf' is not here: the log's own model is taken, where it is known" in load["notes"]
    assert main(["diagnose", GOOD, "-m", "/models/x.gguf"]) == 2


def test_a_built_in_model_before_a_line_of_another_machine(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("alloc_tensor_range: failed to allocate CUDA0 buffer of size 43509616640\n")
    pasted = "LLAMA_ARG_N_PARALLEL=1 CUDA_VISIBLE_DEVICES=1 sudo llama-server -m /models/x.gguf -c 4096"
    given = ["-m", "deepseek-v4-flash", "--gpu", "RTX 3090", "--gpu", "RTX PRO 6000", *pasted.split()]
    assert main(["diagnose", str(log), *given, "--json"]) == 0
    (load,) = json.loads(capsys.readouterr().out)["loads"]
    assert load["model"] == "deepseek-v4-flash:antirez-q2"
    assert "'/models/x.gguf' is not here: deepseek-v4-flash is taken for it" in load["notes"]
    assert load["args"] == ["--parallel", "1", "-m", "/models/x.gguf", "-c", "4096"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ([], "which log?"),
        (["/no/such/log"], "No such file"),
        (["/"], "directory"),
        ([str(Path(__file__).with_name("conftest.py"))], "loads no model"),
        ([GOOD, "other.log"], "give one at a time (a model by -m), or all of them piped"),
        ([GOOD, "-c", "x"], "whole number"),
        ([GOOD, "--alll"], "did you mean --all"),
        ([GOOD, "-m", "nothing"], "neither a file nor a built-in model"),
        ([GOOD, "-md", "nothing"], "neither a file nor a built-in model"),
        ([GOOD, "--llama", "b1"], "older"),
        ([GOOD, "--gpu", "x"], "give its figures"),
    ],
)
def test_wrong_lines(line: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", *line]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1) and said in err
