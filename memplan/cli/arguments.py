"""A command's arguments: memplan's own options among llama-server's flags, in any order."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from memplan.cli.known_options import OUTPUT, SWITCHES, VALUES, command_options
from memplan.errors import FlagError, shown
from memplan.llama.command_file import open_line
from memplan.llama.command_line import read_line
from memplan.llama.flag_table import SECRET
from memplan.llama.flag_words import arity, normalized, unknown_flag

REPEATED: Final = ("--gpu", "--without-op", "--over", "--search", "--path")
"""Options of which each one given counts; of all others there is one."""

HELP: Final = ("-h", "--help", "--usage")


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
    pasted: bool = False
    """Whether a program of llama.cpp's is named: the flags are a whole command line."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that stand before the program in a pasted command line."""
    notes: tuple[str, ...] = ()
    """What to say of the environment with every estimate."""


def parse_arguments(
    argv: Sequence[str],
    values: Sequence[str] = (),
    switches: Sequence[str] = (),
    most_models: int = 1,
    what: str = "model",
    repeated: Sequence[str] = (),
    too_many: str = "or is a flag missing?",
    environ: Mapping[str, str] = os.environ,
) -> Arguments:
    """Sort ``argv`` into memplan's own options, llama-server's flags with their values, and the model.

    ``values``, ``switches``: options of this command alone, with a value and without; they come before llama-server's
    flags of the same name.  ``what``: what MODEL is.  ``repeated``: options of which each counts, beside REPEATED.
    ``too_many``: what to do about more than ``most_models``.  ``environ``: the environment in which llama-server would
    start. Raises FlagError for a flag that neither knows, a missing value, two values for one option, or too many
    models.
    """
    all_values, all_switches = (*VALUES, *values), (*SWITCHES, *switches)
    line = read_line(argv, all_values, open_line)
    words = list(line.words)
    given: dict[str, list[str]] = {}
    flags: list[str] = []
    models: list[str] = []
    secrets: list[str] = []
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
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
            raise _unknown(word, (*all_values, *all_switches), words)
        elif not word:
            raise FlagError("an empty argument: is a variable of the shell not set?")
        else:
            models.append(word)
    if len(models) > most_models:
        raise FlagError(
            f"more than {f'one {what}' if most_models == 1 else f'{most_models} {what}s'}:"
            f" {' and '.join(map(shown, models[: most_models + 1]))}; {too_many}"
        )
    llama = given.get("--llama", ["latest"])[-1]
    of_environment, notes = _environment({**environ, **line.environment}, llama)
    flags, model = _with_preset([*of_environment, *flags], models[0] if models else "")
    return Arguments(
        model=model,
        flags=tuple(flags),
        gpus=tuple(given.get("--gpu", ())),
        rig=given.get("--rig", [None])[-1],
        host_mib=given.get("--host-mib", [None])[-1],
        no_gpu="--no-gpu" in given,
        llama=llama,
        app=given.get("--app", [line.app or "server"])[-1],
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
        pasted=bool(line.app),
        environment=line.environment,
        notes=tuple(notes),
    )


def _with_preset(flags: list[str], model: str) -> tuple[list[str], str]:
    """The same where ``--models-preset`` is given, with what its section says. Raises FlagError."""
    if not any(word.replace("_", "-").startswith("--models-preset") for word in flags):
        return flags, model
    from memplan.llama.preset_file import with_preset

    return with_preset(flags, model)


def _environment(variables: Mapping[str, str], llama: str) -> tuple[list[str], list[str]]:
    """The flags that llama-server's variables stand for, and what to say of them. Raises FlagError, UnknownRelease."""
    if not any(name.startswith("LLAMA_ARG_") for name in variables):
        return [], []
    from memplan.llama.environment import environment_flags
    from memplan.releases import find_release

    return environment_flags(variables, find_release(llama)[0].build)


def _redirected(equals: str, value: str, words: Sequence[str]) -> str:
    """Where to, as a shell would be told; FILE when nothing was said."""
    name = value if equals else next((word for word in words[:1] if not word.startswith("-")), "")
    return shlex.quote(name if len(name) <= 80 and name.isprintable() else "FILE") if name else "FILE"


def _unknown(word: str, known: Sequence[str], left: Sequence[str]) -> FlagError:
    """The error for a flag that is nobody's here; it may be an option of another command."""
    name = word.partition("=")[0].replace("_", "-")
    others = [command for command, options in command_options().items() if name in options]
    if name in ("--path", "--indexer") and "--over" in known:
        return FlagError(f"{name} is varied here: --over indexer=unfused, or --over indexer=fused,unfused for both")
    if name.startswith("--") and arity(name) is None and others:
        return FlagError(f"{name} is an option of memplan {', '.join(others)}, not of this command")
    return unknown_flag(word, known, left)
