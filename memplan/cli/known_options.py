"""memplan's own options: those that every command with llama-server's flags takes, and those of each, from its help."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Final

from memplan.cli.commands import DIRECT, TYPER

VALUES: Final = (
    "--gpu", "--rig", "--host-mib", "--llama", "--app", "--without-op", "--filled", "--reserve", "--timeout",
)  # fmt: skip
"""memplan's options that take a value."""

SWITCHES: Final = ("--no-gpu", "--json", "--check", "--no-cache")
"""memplan's options that stand alone."""

OUTPUT: Final = ("-o", "--output", "--output-file")
"""A flag of llama.cpp's tools, which nobody means who gives it to a command that writes to stdout."""


@cache
def command_options() -> Mapping[str, tuple[str, ...]]:
    """The options of every command, each as it is written."""
    from contextlib import redirect_stdout
    from importlib import import_module
    from io import StringIO

    found: dict[str, tuple[str, ...]] = {}
    for command in DIRECT:
        out = StringIO()
        with redirect_stdout(out):
            import_module(f"memplan.cli.{command}").run(["--help"])
        found[command] = _options(out.getvalue())
    return found | dict.fromkeys(TYPER, ("--json", "--help"))


def _options(text: str) -> tuple[str, ...]:
    """The options that a command takes, by its help.

    Those of the left column; where llama-server's flags are taken, with them all that stands between, which is named
    in sentences too.
    """
    column = _names("\n".join(re.findall(r"^ {1,4}(-.*?)(?: {2}|$)", text, re.MULTILINE)))
    if "llama-server's flags" not in text.partition("\n\n")[0]:
        return tuple(dict.fromkeys(column))
    from memplan.llama.flag_table import ARITY

    flags = sorted(set(ARITY) - set(OUTPUT))
    known = {*column, *flags, *VALUES, *SWITCHES}
    return tuple(dict.fromkeys([*(name for name in _names(text) if name in known), *flags]))


def _names(text: str) -> list[str]:
    return re.findall(r"(?<![\w-])(--?[a-z][a-z0-9-]*)", text)
