"""Every example in every command's help is run, as it stands there."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest

from memplan.cli import main
from memplan.cli.commands import COMMANDS, command_options
from memplan.models.catalogue import MODELS
from memplan.models.raw import header_file
from memplan.outfile import write_atomically
from memplan.releases import RELEASES
from tests.cli.test_verify import fit_params
from tests.gguf import writer

pytestmark = pytest.mark.slow

TOP = Path(__file__).parents[2]


@cache
def help_of(command: str) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        assert main([command, "--help"]) == 0
    return out.getvalue()


def examples(command: str) -> list[str]:
    _, _, text = help_of(command).partition("Examples:")
    lines = re.split(r"[;\n]", text.partition("\n\n")[0])
    return [line.strip() for line in lines if line.strip().startswith("memplan ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that examples speak of."""
    where = tmp_path_factory.mktemp("examples")
    made = header_file("deepseek-v4-flash")
    for name in ("model.gguf", "flash.gguf"):
        write_atomically(where / name, made.data)
    shutil.copy(TOP / "tests/data/logs/good-v0.5.0.log", where / "log.txt")
    projector = writer.header([("general.architecture", "str", "clip")], [("v.patch_embd.weight", (64, 64), "f16")])
    (where / "mmproj.gguf").write_bytes(projector)
    for name in ("examples", "presets"):
        (where / name).symlink_to(TOP / name)
    (where / "build" / "bin").mkdir(parents=True)
    if sys.platform != "win32":
        fit_params(where / "build" / "bin")
    return where


def interrupted(server: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.thorough
@pytest.mark.parametrize("command", COMMANDS)
def test_examples(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("memplan.diagnosing.measure.find_program", lambda name, given="": given or str(
        folder / "build/bin/llama-fit-params"
    ))  # fmt: skip
    monkeypatch.setattr("memplan.page.core.pyodide_core", lambda folder: {})
    monkeypatch.setattr("memplan.page.server.PageServer.serve_forever", interrupted)
    monkeypatch.setattr("webbrowser.open", lambda address: True)
    lines = examples(command)
    assert lines, f"memplan {command} --help has no examples"
    for line in lines:
        words = shlex.split(line)
        assert words[:2] == ["memplan", command] or command == "header"
        assert main(words[1:]) == 0, (line, capsys.readouterr().err)
        assert capsys.readouterr().out or command in ("header", "page")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_complete_and_fits_a_terminal(command: str) -> None:
    text = help_of(command)
    assert text.startswith("Usage: memplan")
    assert max(map(len, text.splitlines())) <= 84
    assert "Exit status: 0" in text


def test_every_command_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(re.search(rf"^  {command} ", out, re.MULTILINE) for command in COMMANDS)


# --- shell completion ---


def completed(line: list[str], shell: str = "bash") -> list[str]:
    """What is offered for the last word of ``line``."""
    asked = {"_TYPER_COMPLETE_ARGS": " ".join(line), "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    if shell == "bash":
        asked = {"COMP_WORDS": "\n".join(line), "COMP_CWORD": str(len(line) - 1)}
    out = io.StringIO()
    with redirect_stdout(out), patch.dict(os.environ, {"_MEMPLAN_COMPLETE": f"complete_{shell}", **asked}):
        assert main([]) == 0
    return [word for word in out.getvalue().splitlines() if word]


def test_completion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep.gguf").touch()
    assert completed(["memplan", "est"]) == ["estimate"]
    assert set(completed(["memplan", ""])) >= set(COMMANDS)
    flags = completed(["memplan", "estimate", "m", "--n-cpu"])
    assert set(flags) == {"--n-cpu-moe", "--n-cpu-ffn", "--n-cpu-moe-draft"}
    assert completed(["memplan", "diagnose", "x", "--al"]) == ["--all", "--alias"]
    assert set(completed(["memplan", "estimate", "deep"])) >= {"deepseek-v4-flash", "deepseek-v4-pro", "deep.gguf"}
    assert completed(["memplan", "completion", ""]) == ["bash", "zsh", "fish"]
    assert completed(["memplan", "preset", ""]) == ["list", "show"]
    assert completed(["memplan", "preset", "show", "8x-rtx-3090.deepseek-v4-f"])[-1].endswith("flash-mxfp4")
    assert completed(["memplan", "preset", "--fit", "deepseek-v4-p"]) == ["deepseek-v4-pro"]
    assert completed(["memplan", "devices", ""]) == []
    releases = completed(["memplan", "estimate", "m", "--llama", "v"])
    assert set(releases) == {release.name for release in RELEASES if release.name.startswith("v")}
    assert completed(["memplan", "estimate", "m", "--app", ""]) == ["server", "cli"]
    assert completed(["memplan", "plan", "m", "--format", "i"]) == ["ini"]
    assert completed(["memplan", "estimate", "m", "--without-op", "LIGHT"]) == ["LIGHTNING_INDEXER"]
    assert completed(["memplan", "estimate", "m", "--path", "indexer=f"]) == ["indexer=fused"]


def test_values_of_llama_servers_flags() -> None:
    assert completed(["memplan", "estimate", "m", "-ctk", "q4"]) == ["q4_0", "q4_1"]
    assert completed(["memplan", "plan", "m", "--cache-type-v", "bf"]) == ["bf16"]
    assert completed(["memplan", "estimate", "m", "-fa", "o"]) == ["on", "off"]
    assert completed(["memplan", "estimate", "m", "-c", ""]) == []


def test_words_as_bash_parts_them() -> None:
    releases = completed(["memplan", "estimate", "m", "--llama", "v"])
    assert completed(["memplan", "estimate", "m", "--llama", "=", "v"]) == releases
    assert completed(["memplan", "estimate", "deepseek-v4-flash", ":"]) == list(MODELS["deepseek-v4-flash"].recipes)
    assert completed(["memplan", "estimate", "deepseek-v4-flash-dspark", ":"]) == ["mxfp4"]
    assert completed(["memplan", "estimate", "m", ":"]) == []
    assert completed(["memplan", "estimate", ":", "x"]) == []
    assert completed(["memplan", "estimate", "deepseek-v4-flash", ":", "mx"]) == ["mxfp4"]
    assert completed(["memplan", "estimate", "deepseek-v4-flash:mx"]) == ["deepseek-v4-flash:mxfp4"]


def test_cards_whose_names_have_blanks() -> None:
    assert completed(["memplan", "estimate", "m", "--gpu", '"RTX 309']) == ["RTX 3090 Ti", "RTX 3090"]
    assert completed(["memplan", "estimate", "m", "--gpu", "2*RTX5"]) == []
    assert r"2*RTX\ 5090" in completed(["memplan", "estimate", "m", "--gpu", "2*RTX"])
    assert any("RTX 3090 Ti" in line for line in completed(["memplan", "estimate", "m", "--gpu", ""], "fish"))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_are_sound(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_MEMPLAN_COMPLETE=complete_{shell}" in script
    if shutil.which(shell):
        done = subprocess.run([shell, "-n", "-c", script], capture_output=True, text=True, timeout=30)
        assert (done.returncode, done.stderr) == (0, "")
    if shell == "bash" and shutil.which(shell):
        (tmp_path / "memplan").write_text(f'#!/bin/sh\nPYTHONPATH="{TOP}" exec "{sys.executable}" -m memplan "$@"\n')
        (tmp_path / "memplan").chmod(0o755)
        asks = "COMP_WORDS=(memplan plan m --llama v0.4); COMP_CWORD=4; _memplan_completion memplan; echo $COMPREPLY"
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        command = [shell, "-c", f"{script}\n{asks}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
        assert (done.stdout, done.stderr) == ("v0.4.0\n", "")


def test_completion_options_are_real(capsys: pytest.CaptureFixture[str]) -> None:
    for options in command_options().values():
        assert "--help" in options
        assert all(re.fullmatch(r"--?[a-z][a-z0-9.-]*", option, re.IGNORECASE) for option in options)
    assert {"--gpu", "--rig", "--json"} <= set(command_options()["estimate"])
    own = {"--server", "--vulkaninfo", "--known", "-o", "--output", "--force", "--json", "-h", "--help"}
    assert set(command_options()["devices"]) == own
    for command in ("devices", "header", "completion"):
        for option in command_options()[command]:
            assert main([command, "--help", option]) in (0, 2)
            assert "unknown option" not in capsys.readouterr().err, (command, option)


def test_an_unknown_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in capsys.readouterr().err
