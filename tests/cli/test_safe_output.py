"""Names that files, logs, drivers and people give reach no terminal as they are, and secrets reach nobody."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from memplan.cli import main
from memplan.cli.streams import safe
from memplan.cli.terminal import MOST, one_line

pytestmark = pytest.mark.slow

HOSTILE = "a\x1b]0;owned\x07b\x1b[2J\u202egnp.\u2066c\x9b31md\x7f\re"
SECRET = "sk-never-shown"
SECRETS = ("--api-key", SECRET, "--hf-token", SECRET, "-hft", SECRET)
SMALL = ("qwen3-30b-a3b", "--gpu", "2*RTX 3090", "-c", "4096", "-np", "1")
LOG = Path(__file__).parents[2] / "examples" / "unfused.log"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Both streams."""
    main(list(words))
    said = capsys.readouterr()
    return said.out + said.err


def test_only_visible_characters_and_line_ends_are_written() -> None:
    assert safe("é█\n" + HOSTILE) == "é█\na ]0;owned b [2J gnp. c 31md  e"
    assert safe("\x1b[1;31mred\x1b[0m\x1b[8mhidden", colours=True) == "\x1b[1;31mred\x1b[0m [8mhidden"


def test_an_error_has_a_length() -> None:
    assert one_line("a\n b") == "a b"
    line = one_line("x" * 9 * MOST + "; mend it")
    assert len(line) < MOST and line.endswith("mend it")


def test_no_name_commands_the_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / HOSTILE
    folder.mkdir()
    model = str(folder / f"{HOSTILE}.gguf")
    assert main(["header", "deepseek-v4-flash", "-o", model]) == 0
    log = folder / "x.log"
    log.write_text(LOG.read_text().replace("NVIDIA", HOSTILE.replace("\r", "")))
    rig = tmp_path / "rig.json"
    rig.write_text('{"gpus": [{"name": "x\\u001b[2J\\u202ey", "total_mib": 24000}]}')
    lines = [
        ("header", model, "-o", str(folder / "no" / "such")),
        ("header", model, "-o", str(folder / "again.gguf")),
        ("estimate", model, "--gpu", "RTX 3090", "-c", "4096"),
        ("estimate", model, "--gpu", HOSTILE),
        ("estimate", model, "--rig", str(rig)),
        ("estimate", str(folder), HOSTILE),
        ("estimate", model, HOSTILE, "--gpu", "RTX 3090"),
        ("estimate", model, "--gpu", "RTX 3090", "-ot", f"{HOSTILE}=CPU"),
        ("estimate", model, "--gpu", "RTX 3090", "-" + HOSTILE),
        ("sweep", model, "--gpu", "RTX 3090", "--over", "ub=256,512", "-a", HOSTILE),
        ("compare", model, "--gpu", "RTX 3090", "--with", "-ub 256", "-a", HOSTILE),
        ("plan", model, "--gpu", "RTX 3090", "-c", "4096"),
        *(("plan", model, "--gpu", "RTX 3090", "-c", "4096", "--format", style) for style in ("sh", "ini", "args")),
        ("diagnose", str(log)),
        ("diagnose", str(folder / HOSTILE)),
        ("releases", HOSTILE),
        ("models", HOSTILE),
        (HOSTILE,),
    ]
    for line in lines:
        said = run(capsys, *line)
        assert said, line
        assert all(char.isprintable() or char == "\n" for char in said), (line, said)
        assert "a fault in memplan" not in said


def test_no_secret_is_shown_or_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text(f"$ llama-server -m /m.gguf -c 4096 {' '.join(SECRETS)}\n" + LOG.read_text())
    picture = tmp_path / "x.svg"
    lines: list[tuple[str, ...]] = [
        ("estimate", *SMALL, *SECRETS),
        ("estimate", *SMALL, *SECRETS, "--json"),
        ("estimate", *SMALL, f"--api-key={SECRET}"),
        ("estimate", *SMALL, f"--api_key={SECRET}"),
        ("estimate", f"llama-server --api-key {SECRET} '", *SMALL),
        ("sweep", *SMALL, *SECRETS, "--over", "ub=256,512"),
        ("sweep", *SMALL, *SECRETS, "--over", "ub=256,512", "--json"),
        ("compare", *SMALL, *SECRETS, "--with", "-ub 256"),
        ("explain", *SMALL, *SECRETS),
        ("plot", *SMALL, *SECRETS, "--over", "ub=256,512", "-o", str(picture)),
        ("preset", *SMALL, *SECRETS, "--fit"),
        ("diagnose", str(log)),
        ("diagnose", str(log), "--json"),
        *(("plan", *SMALL, *SECRETS, "--format", style) for style in ("args", "sh", "ini", "json", "table")),
    ]
    for line in lines:
        said = run(capsys, *line)
        assert said and SECRET not in said, line
    assert SECRET not in picture.read_text()
    assert "--api-key and --hf-token and -hft left out" in run(capsys, "plan", *SMALL, *SECRETS, "--format", "sh")


def test_a_password_in_an_address_is_not_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for endpoint in (
        f"https://me:{SECRET}@host",
        f"me:{SECRET}@host",
        f"ftp://:{SECRET}@host/",
        f"https://h/?{SECRET}",
    ):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        said = run(capsys, "estimate", "hf:owner/repo/m.gguf", "--gpu", "RTX 3090", "--offline")
        assert said and SECRET not in said, endpoint
    monkeypatch.delenv("HF_ENDPOINT")
    for model in (f"https://me:{SECRET}@host/m.gguf", f"https://host/m.gguf?sig={SECRET}"):
        said = run(capsys, "estimate", model, "--gpu", "RTX 3090", "--offline")
        assert said and SECRET not in said, model


NAMES = ["a b", "$(touch owned)", "`touch owned`", "a'b\"c", "a;touch owned", "-rf", "!!", "a&b|c>owned", "é~*?[x]"]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_is_safe_to_run(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / f"{name}.gguf"
    assert main(["header", "deepseek-v4-flash", "-o", str(model)]) == 0
    with model.open("r+b") as file:  # as large as if its weights were there
        file.truncate(model.stat().st_size + (1 << 20))
        file.seek(0, os.SEEK_END)
        file.write(b"weights")
    line = (str(model), "--gpu", "RTX 3090", "-c", "4096", "-np", "1", "-a", name, "-cmoe", "--format")
    server = tmp_path / "bin" / "llama-server"
    server.parent.mkdir()
    server.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    server.chmod(0o755)
    environment = {**os.environ, "PATH": f"{server.parent}:{os.environ['PATH']}", "MODEL": str(model)}
    capsys.readouterr()
    for style, before in (("sh", ""), ("args", 'llama-server -m "$MODEL" ')):
        assert main(["plan", *line, style]) == 0
        text = before + capsys.readouterr().out
        done = subprocess.run(["sh", "-c", text], cwd=tmp_path, env=environment, capture_output=True, text=True)
        words = done.stdout.splitlines()
        assert (done.returncode, done.stderr) == (0, ""), text
        assert words[:2] == ["-m", str(model)] and words[words.index("-a" if "-a" in words else "--alias") + 1] == name
    assert not (tmp_path / "owned").exists()
