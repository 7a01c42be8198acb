"""The pages say what is so: their commands run, their outputs are real, their pictures are there."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from memplan.cli import main

pytestmark = pytest.mark.slow

TOP = Path(__file__).parent.parent
DOCS = TOP / "docs"
TASKS = (
    "first-estimate",
    "several-gpus",
    "experts-on-the-host",
    "long-context",
    "slots",
    "after-an-update",
    "reading-a-plot",
    "out-of-memory",
)


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make = load(DOCS / "make.py")
PAGES = [page for page in make.pages() if page.stem in (*TASKS, "README")]
COMMANDS = sorted({line for page in PAGES for line in make.shell_lines(page) if page.stem != "README"})
OUTPUTS = [(page.stem, *console[1:]) for page in PAGES for console in make.consoles(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("name", TASKS)
def test_each_page_starts_from_what_is_seen_and_ends_with_a_command(name: str) -> None:
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert re.match(r'# [^\n]+\n\n\*"', text)
    assert list(make.shell_lines(DOCS / f"{name}.md"))
    assert len("".join(line for line in text.splitlines(keepends=True) if not line.startswith("| "))) < 6000
    assert f"docs/{name}.md" in (TOP / "README.md").read_text(encoding="utf-8")


def test_the_table_of_changes_is_that_of_the_releases() -> None:
    page = (DOCS / "after-an-update.md").read_text(encoding="utf-8")
    assert make.CHANGES in page and make.with_table(page) == page


@pytest.mark.thorough
@pytest.mark.parametrize("line", COMMANDS)
def test_commands_run(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if line.endswith(".png"):
        pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    if "examples/" in line:
        shutil.copytree(TOP / "examples", tmp_path / "examples")
    status = main(shlex.split(line)[1:])
    out, err = capsys.readouterr()
    if line.startswith("memplan plot ") and line.endswith(".png"):
        # how far it fits
        name, _, answer = err.partition(": ")
        assert name == line.split()[-1] and "fits" in answer and err.count("\n") == 1
        err = ""
    if line.endswith("--format args"):  # flags alone on stdout; what must be known of them beside
        assert err.startswith("memplan: not checked: the host") and err.count("\n") == 1
        err = ""
    assert (status, err) in ((0, ""), (1, "")) if "--check" in line else (status, err) == (0, "")
    if line.endswith(".png"):
        made = (tmp_path / line.split()[-1]).read_bytes()
        reference = (DOCS / "images" / line.split()[-1]).read_bytes()
        # width and height: pixels depend on the version that draws
        assert struct.unpack(">II", made[16:24]) == struct.unpack(">II", reference[16:24])
    else:
        assert out


@pytest.mark.parametrize(
    ("page", "command", "shown"), OUTPUTS, ids=[f"{page}:{command}" for page, command, _ in OUTPUTS]
)
def test_outputs_are_real(
    page: str, command: str, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(shlex.split(command)[1:]) == 0
    assert make.shortened(capsys.readouterr().out, shown) == shown


def test_every_picture_is_made_by_the_script_and_shown() -> None:
    there = {path.name for path in (DOCS / "images").iterdir()}
    assert there == {*make.pictures(), make.PAGE}
    shown = "".join(page.read_text(encoding="utf-8") for page in make.pages())
    assert all(f"images/{name})" in shown for name in there)


def example(name: str, *args: str) -> str:
    command = [sys.executable, "-W", "error", str(TOP / "examples" / f"{name}.py"), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, cwd=TOP)
    # where a picture is drawn, how far it fits
    assert all(": fits " in line for line in done.stderr.splitlines())
    return done.stdout


def test_examples_run() -> None:
    assert "fits (exact)" in example("estimate")
    assert example("sweep_to_csv").splitlines()[1] == "16384,1,16384,18835,True"
    assert "lost in" in example("explain")
    assert example("plan").startswith("llama-server -m ")


def test_the_example_that_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert example("plot", str(tmp_path)).count(".png") == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.png", "two.png"]
