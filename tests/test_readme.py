from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from memplan.cli import main
from memplan.cli.commands import COMMANDS

TOP = Path(__file__).parent.parent
README = (TOP / "README.md").read_text(encoding="utf-8")


def block(mark: str) -> str:
    """The code block after ``<!-- mark -->``."""
    found = re.search(rf"<!-- {mark} -->\n```\w*\n(.*?)```", README, re.DOTALL)
    assert found, mark
    return found[1]


def test_the_output_shown_is_real(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    command, _, output = block("output").partition("\n")
    assert main(shlex.split(command.removeprefix("$ memplan "))) == 0
    assert capsys.readouterr().out == output


def test_the_command_to_run_asks_the_same_question() -> None:
    command = block("output").splitlines()[0].removeprefix("$ memplan ")
    assert block("run").strip().endswith(f"memplan {command}")
    assert "pytest" in block("test")


def test_the_python_example(capsys: pytest.CaptureFixture[str]) -> None:
    found = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert found
    exec(compile(found[1], "README.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["CUDA0", "CUDA1", "True"]
    assert f"\n    {int(lines[3]):,} " in README  # as the command says


def test_the_table_has_every_command() -> None:
    table = README[README.index("## Commands") : README.index("## On a real machine")]
    assert sorted(re.findall(r"`memplan (\w+)`", table)) == sorted(COMMANDS)


def test_links_lead_somewhere() -> None:
    for page in (TOP / "README.md", *sorted((TOP / "docs").glob("*.md"))):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), (page.name, target)


def test_architecture_names_every_module_at_the_top_and_no_other() -> None:
    text = (TOP / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text[text.index("## Floors") : text.index("## Rules")]
    named = set(re.findall(r"`(\w+(?:\.py|/))`", table))
    there = {f"{path.name}/" for path in (TOP / "memplan").iterdir() if (path / "__init__.py").exists()}
    there |= {path.name for path in (TOP / "memplan").glob("*.py") if not path.name.startswith("__")}
    assert {name for name in named if "/" in name or ".py" in name} >= there
