"""A command's words, sorted: memplan's own options among llama-server's flags, in any order."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from memplan.cli.commands import command_options
from memplan.errors import FlagError, shown
from memplan.llama.command_line import CommandLine, read_line
from memplan.llama.flag_table import SECRET
from memplan.llama.flag_words import arity, normalized, unknown_flag

OUTPUT: Final = ("-o", "--output", "--output-file")
"""A flag of llama.cpp's tools, which nobody means who gives it to a command that writes to stdout."""

HELP: Final = ("-h", "--help", "--usage")


@dataclass(frozen=True, slots=True)
class Known:
    """A command's own options, which come before llama-server's flags of the same name."""

    names: Mapping[str, str]
    """Each spelling, and the name that stands for them all."""
    switches: Collection[str] = ()
    """Names of those that stand alone."""
    repeated: Collection[str] = ()
    """Names of those of which each one given counts; of all others there is one."""
    command: str = ""
    """The command's name."""


@dataclass(frozen=True, slots=True)
class Words:
    """A command line, sorted."""

    own: dict[str, list[str]] = field(default_factory=dict)
    """The command's own options that were given, by name, each with its values in order."""
    names: list[str] = field(default_factory=list)
    """What stands alone, such as the model."""
    flags: list[str] = field(default_factory=list)
    """llama-server's flags with their values, in order."""
    left_out: list[str] = field(default_factory=list)
    """llama-server's flags that were given with a secret, which is neither kept nor shown."""
    line: CommandLine = field(default_factory=CommandLine)
    """The program whose command line was pasted, if one was, and its environment."""


def sort_words(argv: Sequence[str], known: Known, *, llama: bool = True) -> Words:
    """Sort ``argv`` into the command's own options, llama-server's flags with their values, and names.

    ``llama``: whether the command takes llama-server's flags. Raises FlagError for a flag that neither knows, a missing
    value, or two values for one option.
    """
    with_value = [spelled for spelled, name in known.names.items() if name not in known.switches]
    found = Words(line=read_line(argv, with_value, _opened) if llama else CommandLine(tuple(argv)))
    words = list(found.line.words)
    while words:
        word = words.pop(0)
        spelled, equals, value = word.partition("=")
        spelled = spelled.replace("_", "-")
        name = "--help" if spelled in HELP else known.names.get(spelled, "")
        if name in ("--help", *known.switches):
            if equals:
                raise FlagError(f"{shown(word)}: {spelled} takes no value, give it alone")
            found.own[name] = []
            if llama and name == "--offline":  # llama-server's own, too
                found.flags.append(name)
        elif name:
            if not equals:
                if not words:
                    raise FlagError(f"{spelled} needs a value after it")
                value = words.pop(0)
            before = found.own.setdefault(name, [])
            if before and name not in known.repeated and before[-1] != value:
                raise FlagError(f"{spelled}: given twice ({shown(before[-1])} and {shown(value)}); give only one")
            before.append(value)
        elif llama and spelled in OUTPUT:
            file = _redirected(equals, value, words)
            raise FlagError(f"{spelled}: this command writes to stdout; redirect it: > {file}")
        elif llama and (count := arity(word)) is not None:
            if normalized(word) in SECRET and words:
                found.left_out.append(word)
            else:
                found.flags.extend([word, *words[:count]])
            del words[:count]
        elif word == "--" and not llama:
            found.names.extend(words)
            break
        elif word.startswith("-") and len(word) > 1:
            raise _unknown(word, known, words if llama else None)
        elif not word:
            raise FlagError("an empty argument: is a variable of the shell not set?")
        else:
            found.names.append(word)
    return found


def _opened(word: str) -> CommandLine | None:
    """The line in a file that ``word`` names; None where it names none, or a model. Raises FlagError."""
    path = word.rpartition("#")[0]
    if word.endswith(".gguf") or not (os.path.isfile(word) or os.path.isfile(path)):
        return None
    from memplan.llama.command_file import open_line

    return open_line(word)


def _redirected(equals: str, value: str, words: Sequence[str]) -> str:
    """Where to, as a shell would be told; FILE when nothing was said."""
    name = value if equals else next((word for word in words[:1] if not word.startswith("-")), "")
    return shlex.quote(name if len(name) <= 80 and name.isprintable() else "FILE") if name else "FILE"


def _unknown(word: str, known: Known, left: Sequence[str] | None) -> FlagError:
    """The error for a flag that is nobody's here; it may be an option of another command.

    ``left``: what follows it; None where llama-server's flags are not taken.
    """
    import difflib

    name = word.partition("=")[0].replace("_", "-")
    others = [command for command, options in command_options().items() if name in options]
    if name in ("--path", "--indexer") and "--over" in known.names:
        return FlagError(f"{name} is varied here: --over indexer=unfused, or --over indexer=fused,unfused for both")
    if name.startswith("--") and arity(name) is None and others:
        of = ", ".join(others[:3]) + " and others" * (len(others) > 3)
        return FlagError(f"{name} is an option of memplan {of}, not of this command")
    if left is not None:
        return unknown_flag(word, [*known.names], left)
    near = difflib.get_close_matches(name, known.names, n=2, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else f"see memplan {known.command} --help"
    return FlagError(f"unknown option {shown(word.partition('=')[0])}; {hint}")
