from __future__ import annotations

from pathlib import Path

from memplan.cli.commands import COMMANDS, command_options
from tests.test_docs import TOP, load

man = load(TOP / "scripts" / "man.py")


def test_the_page_has_every_command_and_option() -> None:
    """``python scripts/man.py`` makes it anew."""
    written = Path(man.PAGE).read_text(encoding="utf-8")
    assert [line.split()[2] for line in written.splitlines() if line.startswith(".SS ")] == list(COMMANDS)
    options = {option for options in command_options().values() for option in options} - {"-h", "--help"}
    assert [option for option in sorted(options) if man.roff(option) not in written] == []


def test_no_line_of_text_is_a_request() -> None:
    assert man.roff(".SH a-b\\c") == "\\&.SH a\\-b\\ec"
