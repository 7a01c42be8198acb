"""memplan as a process: stdout that is full, closed or unread, and interrupts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from memplan.cli import main

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MEMPLAN = f"'{sys.executable}' -W error -m memplan"
LINES = [
    "models kimi",
    "models --json",
    "releases",
    "--help",
    "-h",
    "--version",
    "completion bash",
    "plan --help",
    "estimate deepseek-v4-flash --no-gpu -c 4096 -np 1",
    "estimate deepseek-v4-flash --no-gpu -c 4096 -np 1 --json",
    "sweep deepseek-v4-flash --no-gpu -c 4096 -np 1 --over ub=256,512 --csv",
]


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=60, cwd=ROOT, env={**os.environ, **environment}
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("line", LINES)
def test_a_full_disk(line: str) -> None:
    done = shell(f"{MEMPLAN} {line} >/dev/full")
    assert done.returncode == 2
    assert done.stderr == "memplan: error: stdout cannot be written: No space left on device\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_without_a_buffer() -> None:
    done = shell(f"{MEMPLAN} models kimi >/dev/full", PYTHONUNBUFFERED="1")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("line", ["models kimi", "--help", "estimate deepseek-v4-flash --no-gpu -c 4096 -np 1"])
def test_stdout_is_closed(line: str) -> None:
    done = shell(f"{MEMPLAN} {line} >&-")
    assert done.returncode == 2
    assert done.stderr == "memplan: error: stdout is closed: the answer cannot be written\n"


def test_what_prints_nothing_needs_no_stdout(tmp_path: Path) -> None:
    done = shell(f"{MEMPLAN} header deepseek-v4-flash -o {tmp_path}/f.gguf >&-")
    assert (done.returncode, [p.name for p in tmp_path.iterdir()]) == (0, ["f.gguf"])


def test_stderr_is_closed_or_full(tmp_path: Path) -> None:
    assert shell(f"{MEMPLAN} estimate nothing --no-gpu 2>&-").stdout == ""
    assert shell(f"{MEMPLAN} estimate nothing --no-gpu 2>&-").returncode == 2
    if os.path.exists("/dev/full"):
        assert shell(f"{MEMPLAN} header deepseek-v4-flash -o {tmp_path}/f.gguf 2>/dev/full").returncode == 0


@pytest.mark.parametrize("line", ["models kimi", "releases", "--help", "completion bash", "estimate --help"])
def test_nobody_reads(line: str) -> None:
    done = shell(f"{MEMPLAN} {line} | true; echo ${{PIPESTATUS[0]}}")
    assert (done.stdout, done.stderr) == ("141\n", "")


INTERRUPTED = """
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from memplan.cli import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("memplan.cli.dispatch", ["models"]),
        ("memplan.errors", ["estimate"]),
        ("memplan.cli.commands", ["estimate"]),
        ("memplan.cli.estimate", ["estimate"]),
        ("memplan.cli.app", ["models"]),
        ("memplan.cli.command", ["plan"]),
        ("typer", ["models"]),
        ("memplan.models.builtin", ["models"]),
        ("memplan.estimator", ["estimate", "deepseek-v4-flash", "--no-gpu"]),
    ],
)
def test_an_interrupt_while_loading(module: str, line: list[str]) -> None:
    command = [sys.executable, "-c", INTERRUPTED, module, *line]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_nothing_is_loaded_before_main() -> None:
    code = "import sys; before = set(sys.modules); import memplan.cli; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert set(eval(done.stdout)) <= {"__future__", "memplan", "memplan.cli"}


@pytest.mark.parametrize(
    ("line", "same"),
    [
        (["-h"], ["--help"]),
        (["help"], ["--help"]),
        (["models", "-h"], ["models", "--help"]),
        (["releases", "-h"], ["releases", "--help"]),
        (["help", "models"], ["models", "--help"]),
        (["help", "plan"], ["plan", "--help"]),
    ],
)
def test_ways_to_ask_for_help(line: list[str], same: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line) == 0
    asked = capsys.readouterr()
    assert main(same) == 0
    assert asked.out == capsys.readouterr().out != ""
    assert asked.err == ""


def test_help_for_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "estimat"]) == 2
    assert "No such command" in capsys.readouterr().err


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    for line in ("plot deepseek-v4-flash --no-gpu -o f.png", "header deepseek-v4-flash -o f.gguf", "estimate f.gguf"):
        (tmp_path / "gone").mkdir()
        done = shell(f"cd {tmp_path}/gone; rmdir ../gone; PYTHONPATH={ROOT} {MEMPLAN} {line}")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert "fault" not in done.stderr
