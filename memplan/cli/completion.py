"""``memplan completion``: what a shell needs to complete memplan's command lines.

The words come from each command's own help and from llama-server's flags, so there is no list to keep true.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from typing import Final

from memplan.cli.commands import DIRECT
from memplan.cli.options import read_options
from memplan.errors import FlagError, shown

HELP: Final = """\
Usage: memplan completion SHELL

  Print what completes memplan's commands, options, llama-server's flags and
  built-in models in a shell: bash, zsh or fish.

Options:
  -h, --help         print this

Examples:
  memplan completion bash
  memplan completion zsh
  memplan completion fish

  To have it in every shell, add to ~/.bashrc:  eval "$(memplan completion bash)"
  to ~/.zshrc, after compinit:  eval "$(memplan completion zsh)"
  or write it to ~/.config/fish/completions/memplan.fish

Exit status: 0 printed, 2 bad input (one line says what).
"""

TYPER: Final[Mapping[str, str]] = {
    "models": "List the built-in models and their recipes.",
    "releases": "List the releases of llama.cpp that --llama takes exactly.",
}
"""The commands that are typer's."""


def run(argv: Sequence[str]) -> int:
    """Print the script; the exit status. Raises MemplanError."""
    options = read_options(argv, "completion", names=("SHELL",))
    if options.help:
        sys.stdout.write(HELP)
        return 0
    shell = options.names[0]
    if shell not in SHELLS:
        raise FlagError(f"shell {shown(shell)}: must be one of {', '.join(SHELLS)}")
    sys.stdout.write(SHELLS[shell]())
    return 0


@cache
def words() -> Mapping[str, tuple[str, ...]]:
    """The options of every command, each as it is written."""
    found: dict[str, tuple[str, ...]] = {}
    for command in DIRECT:
        out = io.StringIO()
        with redirect_stdout(out):
            import_module(f"memplan.cli.{command}").run(["--help"])
        text = out.getvalue()
        # the left column of the options, and flags in lists
        own = re.findall(r"(?<![\w-])(--?[a-z][a-z0-9-]*)", re.sub(r"\[?llama-server's flags\]?", "", text))
        takes_flags = "llama-server's flags" in text
        found[command] = tuple(dict.fromkeys([*own, *(_flags() if takes_flags else ())]))
    return found | dict.fromkeys(TYPER, ("--json", "--help"))


def _flags() -> list[str]:
    from memplan.llama.flag_table import ARITY

    return sorted(ARITY)


def _models() -> list[str]:
    from memplan.models.builtin import MODELS

    return list(MODELS)


def _bash() -> str:
    cases = "\n".join(f"        {command}) words='{' '.join(options)}';;" for command, options in words().items())
    return f"""\
_memplan() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} words=
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W '{" ".join(words())} --help --version' -- "$cur"))
        return
    fi
    case ${{COMP_WORDS[1]}} in
{cases}
    esac
    case $cur in
        -*) COMPREPLY=($(compgen -W "$words" -- "$cur"));;
        *) COMPREPLY=($(compgen -W '{" ".join(_models())}' -- "$cur") $(compgen -f -- "$cur"));;
    esac
}}
complete -o filenames -F _memplan memplan
"""


def _zsh() -> str:
    cases = "\n".join(f"        {command}) found=({' '.join(options)});;" for command, options in words().items())
    return f"""\
#compdef memplan
_memplan() {{
    local -a found
    if (( CURRENT == 2 )); then
        compadd -- {" ".join(words())} --help --version
        return
    fi
    case $words[2] in
{cases}
    esac
    if [[ $PREFIX == -* ]]; then
        compadd -- $found
    else
        compadd -- {" ".join(_models())}
        _files
    fi
}}
compdef _memplan memplan
"""


def _fish() -> str:
    lines = []
    for command, about in {**DIRECT, **TYPER}.items():
        about = about.replace("'", "\\'")
        lines.append(f"complete -c memplan -n __fish_use_subcommand -f -a {command} -d '{about}'")
    for command, options in words().items():
        seen = f"-n '__fish_seen_subcommand_from {command}'"
        for option in options:
            kind = "-l" if option.startswith("--") else "-s" if len(option) == 2 else "-o"
            lines.append(f"complete -c memplan {seen} {kind} {option.lstrip('-')}")
    models = " ".join(_models())
    lines.append(f"complete -c memplan -n 'not __fish_use_subcommand' -a '{models}'")
    return "\n".join(lines) + "\n"


SHELLS: Final[Mapping[str, Callable[[], str]]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
"""What makes each shell's script."""
