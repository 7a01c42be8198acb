"""A command's arguments: memplan's own options among llama-server's flags, in any order."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from memplan.cli.known_options import OUTPUT, SWITCHES, VALUES, command_options
from memplan.errors import FlagError, shown
from memplan.llama.flag_table import SECRET
from memplan.llama.flag_words import arity, normalized, unknown_flag

REPEATED: Final = ("--gpu", "--without-op", "--over", "--search", "--path")
"""Options of which each one given counts; of all others there is one."""

HELP: Final = ("-h", "--help", "--usage")

PROGRAMS: Final = {"llama-server": "server", "llama-cli": "cli", "llama-completion": "cli"}
"""Programs whose name may stand before the flags, as it does in a pasted command line; and which app they are."""

COMMANDS: Final = {"serve": "server", "server": "server", "cli": "cli", "client": "cli", "completion": "cli"}
"""The same as commands of ``llama``, which has them all (app/llama.cpp, v0.5.0)."""

_CONTINUATION: Final = re.compile(r"[\\^`]\r?\n")


@dataclass(frozen=True, slots=True)
class Arguments:
    """What was asked, before any of it is looked up."""

    model: str
    """The MODEL argument; empty when only a flag names the model."""
    flags: tuple[str, ...]
    """llama-server's flags with their values, in order."""
    gpus: tuple[str, ...]
    rig: str | None
    host_mib: str | None
    no_gpu: bool
    llama: str
    app: str
    without_ops: tuple[str, ...]
    filled: str | None
    reserve: str | None
    json: bool
    check: bool
    help: bool
    offline: bool
    """``--offline``, which is llama-server's own flag too: no network."""
    cache: bool
    """False with ``--no-cache``: headers behind addresses are neither kept nor taken from where they were kept."""
    own: Mapping[str, tuple[str, ...]]
    """The command's own options that were given, each with its values in order."""
    timeout: str = ""
    """``--timeout``: seconds that the network may take; llama-server's own flag of the name decides no memory."""
    more_models: tuple[str, ...] = ()
    """MODEL arguments after the first, where a command takes more than one."""
    left_out: tuple[str, ...] = ()
    """llama-server's flags that were given with a secret, which is neither kept nor shown."""


def parse_arguments(
    argv: Sequence[str],
    values: Sequence[str] = (),
    switches: Sequence[str] = (),
    most_models: int = 1,
    what: str = "model",
    repeated: Sequence[str] = (),
    too_many: str = "or is a flag missing?",
) -> Arguments:
    """Sort ``argv`` into memplan's own options, llama-server's flags with their values, and the model.

    ``values``, ``switches``: options of this command alone, with a value and without; they come before llama-server's
    flags of the same name.  ``what``: what MODEL is.  ``repeated``: options of which each counts, beside REPEATED.
    ``too_many``: what to do about more than ``most_models``. Raises FlagError for a flag that neither knows, a missing
    value, two values for one option, or too many models.
    """
    all_values, all_switches = (*VALUES, *values), (*SWITCHES, *switches)
    words = list(argv)
    given: dict[str, list[str]] = {}
    flags: list[str] = []
    models: list[str] = []
    secrets: list[str] = []
    program = ""
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        if word in ("\\", "^", "`"):
            continue
        if re.search(r"\s", word) and name not in all_values:
            split = _split(word)
            if split is not None:
                words = split + words
                continue
        if word in HELP:
            given.setdefault("--help", [])
        elif name in all_switches or name in HELP:
            if equals:
                raise FlagError(f"{shown(word)}: {name} takes no value, give it alone")
            given.setdefault(name, [])
        elif name in all_values:
            if not equals:
                if not words:
                    raise FlagError(f"{name} needs a value after it")
                value = words.pop(0)
            before = given.setdefault(name, [])
            if before and name not in (*REPEATED, *repeated) and before[-1] != value:
                raise FlagError(f"{name}: given twice ({shown(before[-1])} and {shown(value)}); give only one")
            before.append(value)
        elif name in OUTPUT:
            file = _redirected(equals, value, words)
            raise FlagError(f"{name}: this command writes to stdout; redirect it: > {file}")
        elif (count := arity(word)) is not None:
            if word == "--offline":
                given["--offline"] = []
            if normalized(word) in SECRET and words:
                secrets.append(word)
            else:
                flags += [word, *words[:count]]
            del words[:count]
        elif word.startswith("-") and len(word) > 1:
            raise _unknown(word, (*all_values, *all_switches))
        elif not models and not program and (app := program_app(word, words)):
            program = app
            del words[: program_words(word) - 1]
        elif not word:
            raise FlagError("an empty argument: is a variable of the shell not set?")
        else:
            models.append(word)
    if len(models) > most_models:
        raise FlagError(
            f"more than {f'one {what}' if most_models == 1 else f'{most_models} {what}s'}:"
            f" {' and '.join(map(shown, models[: most_models + 1]))}; {too_many}"
        )
    return Arguments(
        model=models[0] if models else "",
        flags=tuple(flags),
        gpus=tuple(given.get("--gpu", ())),
        rig=given.get("--rig", [None])[-1],
        host_mib=given.get("--host-mib", [None])[-1],
        no_gpu="--no-gpu" in given,
        llama=given.get("--llama", ["latest"])[-1],
        app=given.get("--app", [program or "server"])[-1],
        without_ops=tuple(given.get("--without-op", ())),
        filled=given.get("--filled", [None])[-1],
        reserve=given.get("--reserve", [None])[-1],
        json="--json" in given,
        check="--check" in given,
        help="--help" in given,
        offline="--offline" in given,
        cache="--no-cache" not in given,
        timeout=given.get("--timeout", [""])[-1],
        own={name: tuple(texts) for name, texts in given.items() if name in values or name in switches},
        more_models=tuple(models[1:]),
        left_out=tuple(dict.fromkeys(secrets)),
    )


def _redirected(equals: str, value: str, words: Sequence[str]) -> str:
    """Where to, as a shell would be told; FILE when nothing was said."""
    name = value if equals else next((word for word in words[:1] if not word.startswith("-")), "")
    return shlex.quote(name if len(name) <= 80 and name.isprintable() else "FILE") if name else "FILE"


def _unknown(word: str, known: Sequence[str]) -> FlagError:
    """The error for a flag that is nobody's here; it may be an option of another command."""
    name = word.partition("=")[0].replace("_", "-")
    others = [command for command, options in command_options().items() if name in options]
    if name in ("--path", "--indexer") and "--over" in known:
        return FlagError(f"{name} is varied here: --over indexer=unfused, or --over indexer=fused,unfused for both")
    if name.startswith("--") and arity(name) is None and others:
        return FlagError(f"{name} is an option of memplan {', '.join(others)}, not of this command")
    return unknown_flag(word, known)


def program_app(word: str, words: Sequence[str]) -> str:
    """Which app ``word``, or ``llama`` with the first of ``words``, starts; empty when it is none."""
    if name := _program(word):
        return PROGRAMS[name]
    return COMMANDS.get(words[0], "") if _base(word) == "llama" and words else ""


def program_words(word: str) -> int:
    """How many words name a program: one, or two for a command of ``llama``."""
    return 1 if _program(word) else 2


def _base(word: str) -> str:
    return re.split(r"[/\\]", word)[-1].lower().removesuffix(".exe")


def _program(word: str) -> str:
    """The llama.cpp program that ``word`` starts, with or without its path; empty when it is none."""
    name = _base(word)
    return name if name in PROGRAMS else ""


def _split(word: str) -> list[str] | None:
    """The words of a command line that was given in quotes, as a shell would split it; None for a name with spaces.

    A backslash, caret or backtick at the end of a line continues it.
    """
    text = _CONTINUATION.sub(" ", word).strip()
    if text in ("", "\\", "^", "`"):
        return []
    first, *rest = text.split(maxsplit=2)
    if not first.startswith("-") and not program_app(first, rest):
        return None
    try:
        return shlex.split(text)
    except ValueError as error:
        raise FlagError(f"a command line that begins with {shown(first)}: {str(error).lower()}") from None
