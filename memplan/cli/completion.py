"""``memplan completion``: what a shell needs to complete memplan's command lines.

The words come from each command's own help and from llama-server's flags, so there is no list to keep true.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from memplan.cli.commands import DIRECT, TYPER
from memplan.cli.known_options import command_options
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

  To have it in every shell, add to ~/.bashrc: eval "$(memplan completion bash)"
  to ~/.zshrc, after compinit: eval "$(memplan completion zsh)"
  or write it to ~/.config/fish/completions/memplan.fish

Exit status: 0 printed, 2 bad input (one line says what).
"""


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


def _models() -> list[str]:
    from memplan.models.catalogue import MODELS

    return list(MODELS)


def _named() -> list[str]:
    """The models with each of their recipes."""
    from memplan.models.builtin import builtin_names

    return list(builtin_names())


def _values() -> Mapping[str, str]:
    """What may follow an option, where that is one of a few words."""
    from memplan.cli.estimate import PATHS
    from memplan.models.paths import path_names
    from memplan.releases import FORKS, RELEASES

    path = "auto fused unfused"
    releases = " ".join(("latest", *(release.name for release in (*reversed(RELEASES), *FORKS))))
    named = " ".join(f"{name}={way}" for name in path_names() for way in path.split())
    return {"--llama": releases, "--app": "server cli", "--path": named, **dict.fromkeys(PATHS[1:], path)}


def _instead() -> Mapping[str, str]:
    """What may follow a command that takes no model in that place."""
    return {"completion": " ".join(SHELLS), "preset": "list show", "devices": "", "models": "", "releases": ""}


_LATER: Final = ("preset",)
"""Commands that take a model further on."""


def _bash() -> str:
    of = command_options()
    cases = "\n".join(f"        {command}) words='{' '.join(options)}';;" for command, options in of.items())
    values = "\n".join(f"        {option}) offer '{text}'; return;;" for option, text in _values().items())
    instead = "\n".join(
        f"        {command}:2) offer '{text}'; return;;" for command, text in _instead().items() if text
    )
    nothing = "|".join(f"{command}:*" for command in _instead() if command not in _LATER)
    # bash parts words at colons and equals signs, unless COMP_WORDBREAKS was changed
    return f"""\
_memplan() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} at=$COMP_CWORD words=
    offer() {{ COMPREPLY=($(compgen -W "$1" -- "$cur")); }}
    COMPREPLY=()
    if [ "$at" -eq 1 ]; then
        offer '{" ".join(of)} --help --version'
        return
    fi
    case $cur in
        :|=) cur=;;
        *) at=$((at - 1));;
    esac
    case ${{COMP_WORDS[at]}} in
        :) cur=${{COMP_WORDS[at-1]}}:$cur; offer '{" ".join(_named())}'; COMPREPLY=("${{COMPREPLY[@]#*:}}"); return;;
        =) at=$((at - 1));;
    esac
    case ${{COMP_WORDS[at]}} in
{values}
    esac
    case ${{COMP_WORDS[1]}} in
{cases}
    esac
    case $cur in
        -*) offer "$words"; return;;
    esac
    case ${{COMP_WORDS[1]}}:$COMP_CWORD in
{instead}
        {nothing}) return;;
    esac
    case $cur in
        *:*) offer '{" ".join(_named())}';;
        *) COMPREPLY=($(compgen -W '{" ".join(_models())}' -- "$cur") $(compgen -f -- "$cur"));;
    esac
}}
complete -o filenames -F _memplan memplan
"""


def _zsh() -> str:
    of = command_options()
    cases = "\n".join(f"        {command}) found=({' '.join(options)});;" for command, options in of.items())
    values = "\n".join(f"        {option}) compadd -- {text}; return;;" for option, text in _values().items())
    instead = "\n".join(
        f"        {command}:3) compadd -- {text}; return;;" for command, text in _instead().items() if text
    )
    nothing = "|".join(f"{command}:*" for command in _instead() if command not in _LATER)
    return f"""\
#compdef memplan
_memplan() {{
    local -a found
    if (( CURRENT == 2 )); then
        compadd -- {" ".join(of)} --help --version
        return
    fi
    case $words[CURRENT-1] in
{values}
    esac
    case $words[2] in
{cases}
    esac
    if [[ $PREFIX == -* ]]; then
        compadd -- $found
        return
    fi
    case $words[2]:$CURRENT in
{instead}
        {nothing}) return;;
    esac
    compadd -- {" ".join((*_models(), *_named()))}
    _files
}}
compdef _memplan memplan
"""


def _fish() -> str:
    lines = []
    for command, about in {**DIRECT, **TYPER}.items():
        about = about.replace("'", "\\'")
        lines.append(f"complete -c memplan -n __fish_use_subcommand -f -a {command} -d '{about}'")
    values = _values()
    for command, options in command_options().items():
        seen = f"-n '__fish_seen_subcommand_from {command}'"
        for option in options:
            kind = "-l" if option.startswith("--") else "-s" if len(option) == 2 else "-o"
            after = f" -x -a '{values[option]}'" if option in values else ""
            lines.append(f"complete -c memplan {seen} {kind} {option.lstrip('-')}{after}")
    for command, text in _instead().items():
        if text:
            lines.append(f"complete -c memplan -n '__fish_seen_subcommand_from {command}' -f -a '{text}'")
    without = " ".join(command for command in _instead() if command not in _LATER)
    others = f"not __fish_use_subcommand; and not __fish_seen_subcommand_from {without}"
    lines.append(f"complete -c memplan -n '{others}' -a '{' '.join((*_models(), *_named()))}'")
    return "\n".join(lines) + "\n"


SHELLS: Final[Mapping[str, Callable[[], str]]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
"""What makes each shell's script."""
