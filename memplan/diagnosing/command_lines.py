"""llama.cpp's command line, when somebody put it into a log."""

from __future__ import annotations

import shlex
from typing import Final

from memplan.diagnosing.loads import Loads
from memplan.diagnosing.rules import Match, Rules
from memplan.llama.flag_words import without_secrets

_MAX_COMMANDS: Final = 500
"""Command lines that are cut into words, which takes long."""

STARTING: Final = Rules()

_BEFORE: Final = r"(?:^|[\s/\\$>#\"'])"
_COMMAND: Final = _BEFORE + r"(llama-(?:server|cli|completion|bench|fit-params)(?:\.exe)?)[\"']?\s+(-.*)$"
_OF_LLAMA: Final = _BEFORE + r"llama(?:\.exe)?[\"']?\s+(serve|server|cli)\s+(-.*)$"


@STARTING.all(("llama-", _COMMAND), ("llama serve", _OF_LLAMA), ("llama cli", _OF_LLAMA), ("llama.exe", _OF_LLAMA))
def _command(loads: Loads, m: Match) -> None:
    loads.commands += 1
    if loads.begun:
        loads.new_process()
    program = {"serve": "llama-server", "server": "llama-server", "cli": "llama-cli"}.get(m[1], m[1])
    words = without_secrets(split_command(m[2]) if loads.commands <= _MAX_COMMANDS else [])[0]
    loads.process.command = (program.removesuffix(".exe"), *words)


def split_command(text: str) -> list[str]:
    """The words of a command line in a log, where quotes may have gone already: a backslash stays what it is."""
    lexer = shlex.shlex(text.rstrip("\\ "), posix=True, punctuation_chars="")
    lexer.whitespace_split, lexer.escape, lexer.commenters = True, "", ""
    try:
        return list(lexer)
    except ValueError:  # a quote without its other half
        return text.split()
