from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from memplan.cli import main
from memplan.machine.detected import Found, detected
from memplan.rig_file import load_rig
from tests.cli.conftest import Engine
from tests.estimates import MIB
from tests.gguf import writer

FOUND = [
    Found("NVIDIA GeForce RTX 3090", 24268 * MIB, 23868 * MIB, "CUDA", (8, 6)),
    Found("MTT S4000", 24560 * MIB, 24000 * MIB, "MUSA"),
]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def detect(server: str = "", root: Path = Path("/")) -> object:
        return detected(FOUND, "llama-server --list-devices", (64 << 30, 60 << 30), ["something to know"])

    monkeypatch.setattr("memplan.machine.detect.detect", detect)


@pytest.mark.usefixtures("machine")
def test_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices"]) == 0
    out = capsys.readouterr().out
    assert "CUDA0       24,268    23,868  NVIDIA GeForce RTX 3090, compute capability 8.6" in out
    assert "MUSA0       24,560    24,000  MTT S4000\n" in out
    assert "host        65,536    61,440\n" in out
    assert "- something to know" in out


@pytest.mark.usefixtures("machine")
def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [gpu["name"] for gpu in found["gpus"]] == ["CUDA0", "MUSA0"]
    assert found["host"] == {"total": 64 << 30, "free": 60 << 30}


@pytest.mark.usefixtures("machine")
def test_a_rig_file(tmp_path: Path, engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rig.toml"
    assert main(["devices", "-o", str(path)]) == 0
    assert capsys.readouterr().err == f"{path}: a rig file of 2 GPUs; memplan estimate takes it with --rig\n"
    assert len(load_rig(path).gpus) == 2
    assert main(["estimate", "deepseek-v4-flash", "--rig", str(path), "--json"]) == 0
    assert main(["estimate", "deepseek-v4-flash", "--json"]) == 0
    assert engine.asked[0].rig == engine.asked[1].rig
    notes = json.loads(capsys.readouterr().out.rpartition("\n{")[2].join(("{", "")))["notes"]
    assert "not exact: MUSA is not modelled" in notes[0]
    assert "for this machine's GPUs, from llama-server --list-devices" in notes


def test_nothing_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices"]) == 0
    out = capsys.readouterr().out
    assert "no GPU found: no llama-server on PATH" in out
    assert "- name GPUs with --gpu" in out and "--server FILE" in out and "memplan[nvml]" in out
    assert main(["estimate", "deepseek-v4-flash"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert 'name them, as in --gpu "2*RTX 3090"' in err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["devices", "x"], "unexpected argument 'x'; see memplan devices --help"),
        (["devices", "--jsn"], "did you mean --json"),
        (["devices", "-o"], "-o needs a value"),
        (["devices", "--server", ""], "--server: an empty name"),
        (["devices", "-o", "/"], "not a regular file"),
        (["header"], "Missing argument 'MODEL'"),
        (["header", "deepseek-v4-flash"], "-o FILE"),
        (["header", "", "-o", "x"], "an empty argument"),
        (["header", "a", "b", "-o", "x"], "unexpected argument 'b'"),
        (["header", "nothing", "-o", "x"], "neither a file nor a built-in model"),
        (["header", "deepseek-v4-flash", "-o", "/no/such/folder/f"], "there is no folder"),
        (["header", "deepseek-v4-flash", "-o", "f", "--json"], "an option of memplan estimate, sweep, plan and others"),
    ],
)
def test_wrong_lines(line: list[str], said: str, wrong: Callable[[Sequence[str], str], None]) -> None:
    wrong(line, said)


def test_header(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, model = tmp_path / "h.gguf", tmp_path / "m.gguf"
    model.write_bytes(writer.small())
    assert main(["header", "deepseek-v4-flash", "-o", str(path)]) == 0
    assert path.stat().st_size < 100_000
    assert main(["header", str(model), "--sparse", "--no-vocab", "--output", str(path)]) == 0
    assert path.stat().st_size > 800_000 and not path.read_bytes()[-800_000:].strip(b"\0")
    assert capsys.readouterr().out == ""
