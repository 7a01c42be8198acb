from __future__ import annotations

from pathlib import Path

import pytest

from memplan.errors import FlagError
from memplan.llama.command_file import open_line
from memplan.llama.command_line import CommandLine, read_line

COMPOSE = r"""
x-gpu: &gpu
  deploy: {resources: {reservations: {devices: [{driver: nvidia, device_ids: ['3', '1'], capabilities: [gpu]}]}}}
services:
  db: {image: postgres, command: -c max=3}
  llama:
    <<: *gpu
    image: ghcr.io/ggml-org/llama.cpp:server-cuda
    volumes: ["./models:/models:ro"]
    environment:
      - LLAMA_ARG_CTX_SIZE=${CTX:-8192}
    command: >
      -m /models/q.gguf
      -np 1
      -ot "blk\.(1|2)\..*_exps=CPU"
"""

LIST = """
services:
  llama:
    image: llama.cpp:server
    entrypoint: ""
    environment: {LLAMA_ARG_FIT: "off"}
    command:
      - /app/llama-server
      - -c
      - 4096
"""

UNIT = r"""
[Unit]
Description=x
[Service]
Environment="CUDA_VISIBLE_DEVICES=1,0" LLAMA_ARG_CTX_SIZE=4096
Environment=MODEL=q.gguf
ExecStartPre=/bin/sleep 1
ExecStart=-/usr/bin/numactl --interleave=all /opt/llama-server -m ${MODEL} \
    -np 1 \
    -ot blk\.(1|2)\..*_exps=CPU
Restart=always
"""

PATTERN = r"blk\.(1|2)\..*_exps=CPU"


def line(tmp_path: Path, name: str, text: str) -> CommandLine:
    file, mark, part = name.partition("#")
    (tmp_path / file).write_text(text)
    found = open_line(f"{tmp_path}/{file}{mark}{part}")
    assert found is not None
    return found


def test_a_compose_file(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "q.gguf").touch()
    (tmp_path / ".env").write_text("# of compose\nCTX=16384\n")
    found = line(tmp_path, "compose.yml", COMPOSE)
    assert found.words == ("-m", f"{tmp_path}/./models/q.gguf", "-np", "1", "-ot", PATTERN)
    assert (found.app, dict(found.environment)) == (
        "server", {"CUDA_VISIBLE_DEVICES": "1,3", "LLAMA_ARG_CTX_SIZE": "16384"}
    )  # fmt: skip


def test_a_command_as_a_list(tmp_path: Path) -> None:
    assert line(tmp_path, "c.yaml", LIST) == CommandLine(("-c", "4096"), "server", {"LLAMA_ARG_FIT": "off"})


def test_of_several_services_one_is_named(tmp_path: Path) -> None:
    text = "services:\n a: {image: llama.cpp, command: -c 1}\n b: {image: x, command: sh -c 'llama-cli -c 2'}\n"
    assert line(tmp_path, "c.yml#b", text) == CommandLine(("-c", "2"), "cli", {})
    with pytest.raises(FlagError, match=r"which service\? write FILE#SERVICE; it has a, b"):
        line(tmp_path, "c.yml", text)
    with pytest.raises(FlagError, match=r"'d' is no service of it that runs llama\.cpp: a, b"):
        line(tmp_path, "c.yml#d", text)


def test_a_unit_of_systemd(tmp_path: Path) -> None:
    found = line(tmp_path, "llama.service", UNIT)
    assert found.words == ("-m", "q.gguf", "-np", "1", "-ot", PATTERN)
    assert found.environment["CUDA_VISIBLE_DEVICES"] == "1,0" and found.environment["LLAMA_ARG_CTX_SIZE"] == "4096"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.sh", 'M=q.gguf\nexec ./llama-server -m "$M" -c $((4 * 1024)) "$@"\n'),
        ("run.bat", '@echo off\r\nset "M=q.gguf"\r\nllama-server.exe ^\r\n -m %M% -c 4096 %*\r\n'),
        ("run.ps1", '$M = "q.gguf"\n& .\\llama-server.exe `\n -m $M -c 4096 @args\n'),
    ],
)
def test_scripts(name: str, text: str, tmp_path: Path) -> None:
    assert line(tmp_path, name, text) == CommandLine(("-m", "q.gguf", "-c", "4096"), "server", found_env(name))


def found_env(name: str) -> dict[str, str]:
    return {"M": "q.gguf"} if name.endswith(".bat") else {}  # all that cmd sets is for programs


def test_a_file_stands_in_the_place_of_its_line(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("llama-server -c 4096\n")
    (tmp_path / "p.ini").touch()
    found = read_line(["m.gguf", f"{tmp_path}/run.sh", "-np", "1"], (), open_line)
    assert found == CommandLine(("m.gguf", "-c", "4096", "-np", "1"), "server", {})
    assert read_line([f"{tmp_path}/p.ini#a"], (), open_line).words == ("--models-preset", f"{tmp_path}/p.ini#a")
    for word in ("none.sh", str(tmp_path), "m.gguf", ""):
        assert open_line(word) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.sh", "echo hi\n", "nothing in it starts llama-server"),
        ("a.sh", "llama-server -c 1\nllama-server -c 2\n", "starts llama.cpp 2 times, in lines 1 and 2"),
        ("a.service", "[Service]\nExecStart=/bin/true\n", "nothing in it starts"),
        ("a.yml", "services: [", "line 1: "),
        ("a.yml", "a: 1", "no services in it"),
        (
            "a.yml",
            "services: {a: 1, b: {image: 5, command: 7, environment: 3, volumes: 2, env_file: {}}}",
            "nothing in",
        ),
        ("a.yml", "{" * 5000, "a.yml"),
        ("a.sh", "\x00" * 2_000_000, "larger than any file"),
    ],
)
def test_files_without_a_line(name: str, text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(FlagError) as caught:
        line(tmp_path, name, text)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_compose_file_as_json(tmp_path: Path) -> None:
    text = '{"services": {"a": {"image": "llama.cpp:server", "command": ["-c", "1"]}}}'
    assert line(tmp_path, "c.yml", text).words == ("-c", "1")
