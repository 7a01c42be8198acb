"""A command line as people paste it: what stands before llama-server's flags, and around them.

Environment variables, programs that start others (``sudo``, ``numactl``, ``bash -c``), containers, whole scripts and
files in which a line stands are read down to the flags, the program and the environment that it gets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from memplan.errors import FlagError, shown
from memplan.llama.flag_table import words_of
from memplan.llama.flag_values import flash_attn
from memplan.llama.flag_words import arity

if TYPE_CHECKING:
    from memplan.llama.shells import Shell

PROGRAMS: Final = {"llama-server": "server", "llama-cli": "cli", "llama-completion": "cli"}
"""Programs whose flags are read, and which app they are."""

COMMANDS: Final = {"serve": "server", "server": "server", "cli": "cli", "client": "cli", "completion": "cli"}
"""The same as commands of ``llama``, which has them all (app/llama.cpp, v0.5.0)."""

_STARTERS: Final = words_of("""
    sudo doas env nohup time taskset numactl nice ionice chrt setsid stdbuf exec command caffeinate prime-run gdb strace
    perf valgrind catchsegv systemd-run systemd-inhibit screen tmux srun mpirun ssh unbuffer script watch timeout
    bash sh zsh fish dash cmd powershell pwsh start call start-process
""")
"""Programs that start the one whose name follows."""

_CONTAINERS: Final = ("docker", "podman", "nerdctl")

_OTHERS: Final = words_of("""
    ollama vllm sglang koboldcpp kobold.cpp llamafile lms ktransformers mlx_lm.server tabbyapi exllamav2 aphrodite
    llama-bench llama-perplexity llama-batched-bench llama-run llama-simple llama-quantize llama-swap llama-imatrix
    llama-fit-params llama-tts llama-embedding llama-mtmd-cli
""")
"""Programs that have a model and flags of their own."""

_ALONE: Final = words_of("""
    -d --detach -i --interactive -t --tty -it -ti -dit -itd --rm --init --privileged -P --publish-all --read-only
    --sig-proxy --no-healthcheck --oom-kill-disable --disable-content-trust -q --quiet --replace --tls-verify
""")
"""Flags of ``docker run`` that take no value; all others do."""

_FULL: Final = {
    "--server": "server", "-s": "server", "--run": "cli", "-r": "cli", "--run-legacy": "cli", "-l": "cli",
}  # fmt: skip
"""What the first word after a ``full`` image starts."""

CONTINUATIONS: Final = ("\\", "^", "`")
"""What sh, cmd and PowerShell continue a line with."""

_BEGINS: Final = re.compile(r"[-\"'&@$#(]|\w+=|(cd|set|export|if|exec)$")
"""The first word of a text that is a line, and no name with spaces."""

_ASSIGNMENT: Final = re.compile(r"([A-Z_][A-Z0-9_]*)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What a line amounts to: flags and other words in their order, and the program that gets them.

    ``app``: ``server`` or ``cli``; empty where no program is named.  ``environment``: the variables that it gets.
    """

    words: tuple[str, ...] = ()
    app: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    def within(self, environment: Mapping[str, str]) -> CommandLine:
        """The same in an environment that has these variables too."""
        return replace(self, environment={**environment, **self.environment})


def read_line(
    words: Sequence[str],
    options: Collection[str] = (),
    opened: Callable[[str], CommandLine | None] = lambda word: None,
) -> CommandLine:
    """The flags, program and environment that ``words`` amount to, whatever stands before them and between.

    ``options``: those with a value that are no flags of llama.cpp's.  ``opened``: the line that stands in the file
    that a word names, if one does. Raises FlagError for a line that starts another program than llama.cpp's, or two.
    """
    left = list(words)
    kept: list[str] = []
    environment: dict[str, str] = {}
    app = ""
    while left:
        word = left.pop(0)
        name, equals, _ = word.partition("=")
        name = name.replace("_", "-")
        if word and word.strip() in ("", *CONTINUATIONS):
            continue
        if name in options or (word.startswith("-") and not re.search(r"\s", name)):
            count = (0 if equals else 1) if name in options else arity(word) or 0
            if name in ("-fa", "--flash-attn") and left:
                flash_attn(name, left[0])  # before the next flag is taken for its value
            kept += [word, *left[:count]]
            del left[:count]
            continue
        if (line := opened(word) or read_text(word)) is not None:
            left = [*line.words, *left]
        elif (line := _started([word, *left])) is not None:
            left = list(line.words)
        else:
            kept.append(_other(word, left))
            continue
        if line.app and app:
            raise FlagError("two programs of llama.cpp in one line: give the line of one")
        app = app or line.app
        environment |= line.environment
    return CommandLine(tuple(kept), app, environment)


def read_text(text: str) -> CommandLine | None:
    """The line that a text holds, of one word or a whole script; None where it is none, as a name with spaces."""
    words = text.split()
    if len(words) < 2 or not ("\n" in text.strip() or _BEGINS.match(words[0]) or _starts(words)):
        return None
    from memplan.llama.shells import shell_of

    return read_script(text, shell_of(text), "the text")


def read_script(text: str, shell: Shell, name: str, variables: Mapping[str, str] | None = None) -> CommandLine | None:
    """The one command of a script that starts a program of llama.cpp's, or that is flags alone; None without one.

    ``name``: what to call the script.  ``variables``: what is set before it. Raises FlagError where several do.
    """
    from memplan.llama.shells import commands

    read = commands(text, shell, variables)
    started = [(command, line) for command in read if (line := _started(command.words)) is not None and line.app]
    if len(started) > 1:
        lines = " and ".join(str(command.line) for command, _ in started[:3])
        raise FlagError(f"{name} starts llama.cpp {len(started)} times, in lines {lines}: give the line that is meant")
    for command, line in started:
        return line.within(command.environment)
    if read and re.match(r"-+[A-Za-z]", read[0].words[0]):
        return CommandLine(tuple(word for command in read for word in command.words))
    return None


def program_app(word: str, words: Sequence[str]) -> str:
    """Which app ``word``, or ``llama`` with the first of ``words``, starts; empty when it is none."""
    name = _base(word)
    if name in PROGRAMS:
        return PROGRAMS[name]
    return COMMANDS.get(words[0], "") if name == "llama" and words else ""


def _base(word: str) -> str:
    return re.split(r"[/\\]", word)[-1].lower().removesuffix(".exe")


def _other(word: str, left: Sequence[str]) -> str:
    """The word, which is no part of a line's start. Raises FlagError where it can be nothing else either."""
    if word[:1] in ("\u2012", "\u2013", "\u2014", "\u2212"):
        raise FlagError(
            f"{shown(word)} begins with a dash of print, not with a hyphen: write -{word[1:].lstrip('-')[:40]}"
        )
    if os.path.exists(word):
        return word
    base = _base(word)
    if base in _OTHERS and left:
        raise FlagError(f"{shown(word)} has flags of its own: memplan reads lines of llama-server and llama-cli")
    if base in _STARTERS or base in _CONTAINERS:
        composed = "; give the compose file in its place" if "compose" in left[:1] or "compose" in base else ""
        raise FlagError(f"{shown(word)}: what follows starts neither llama-server nor llama-cli{composed}")
    return word


def _started(words: Sequence[str], *, contained: bool = False) -> CommandLine | None:
    """The line whose first words are variables, programs that start others, or the program itself; None for another.

    ``contained``: whether it is run in a container, which starts no other.
    """
    environment: dict[str, str] = {}
    started = False
    for i, word in enumerate(words):
        rest = words[i + 1 :]
        if app := program_app(word, rest):
            return CommandLine(tuple(rest[_base(word) == "llama" :]), app, environment)
        if started and (line := read_text(word)) is not None and line.app:
            return CommandLine((*line.words, *rest), line.app, line.environment).within(environment)
        if assigned := _ASSIGNMENT.fullmatch(word):
            environment[assigned[1]] = assigned[2]
            if not started and not (rest and (_ASSIGNMENT.fullmatch(rest[0]) or _starts(rest))):
                return CommandLine(tuple(rest), "", environment)
        elif _base(word) in _CONTAINERS and not contained:
            line = _container(rest)
            return line and line.within(environment)
        elif not started and _base(word) not in _STARTERS:
            return None
        else:
            started = True
    return None


def _starts(words: Sequence[str]) -> bool:
    """Whether the first word may stand before a program, or is one."""
    return _base(words[0]) in (*_STARTERS, *_CONTAINERS) or bool(program_app(words[0], words[1:]))


def _outside(word: str, volumes: Mapping[str, str]) -> str:
    """What a file in a container is called outside, where that is known and it is there."""
    for inside, outside in volumes.items():
        file = f"{outside.rstrip('/')}/{word.removeprefix(inside).lstrip('/')}"
        if word.startswith(f"{inside.rstrip('/')}/") and os.path.exists(file):
            return file
    return word


def _container(words: Sequence[str]) -> CommandLine | None:
    """The line of ``docker run [OPTIONS] IMAGE [COMMAND]``, or of ``docker exec``; None for other commands."""
    if "run" not in words[:2]:
        return _started(words, contained=True) if words[:1] == ["exec"] else None
    left = list(words[words.index("run") + 1 :])
    environment: dict[str, str] = {}
    volumes: dict[str, str] = {}
    entrypoint, gpus = "", ""
    while left and left[0].startswith("-"):
        option, equals, value = left.pop(0).partition("=")
        if not equals and option not in _ALONE and left:
            value = left.pop(0)
        if option in ("-e", "--env") and "=" in value:
            variable, _, text = value.partition("=")
            environment[variable] = text
        elif option in ("-v", "--volume") and ":" in value:
            outside, inside = value.split(":")[:2]
            volumes[inside] = outside
        elif option == "--entrypoint":
            entrypoint = value
        elif option == "--gpus":
            gpus = value
    return container_line(left[0], entrypoint, left[1:], environment, gpus, volumes) if left else None


def container_line(
    image: str,
    entrypoint: str,
    words: Sequence[str],
    environment: Mapping[str, str],
    gpus: str = "",
    volumes: Mapping[str, str] = MappingProxyType({}),
) -> CommandLine | None:
    """The line that a container of ``image`` runs; None for an image that is not llama.cpp's.

    Its images start llama-server, those of the tag ``light`` llama-cli, and ``full`` what the first word says
    (.devops/*.Dockerfile and tools.sh, v0.5.0).  ``gpus``: as ``--gpus`` of docker takes it.  ``volumes``: folders in
    the container, and which they are outside: files that are there are named so.
    """
    words = [_outside(word, volumes) for word in words]
    devices = re.search(r"device=(\d{1,3}(?:,\d{1,3})*)", gpus)
    count = int(gpus) if re.fullmatch(r"\d{1,2}", gpus, re.ASCII) else None
    seen = sorted(map(int, devices[1].split(","))) if devices else None if count is None else range(count)
    if seen is not None:  # a container counts its GPUs anew, in the machine's order
        environment = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, seen)), **environment}
    line = _started([*filter(None, [entrypoint]), *words], contained=True)
    if line is not None and line.app:
        return line.within(environment)
    if entrypoint or "llama" not in image.lower():
        return None
    tag = image.rpartition(":")[2]
    if tag.startswith("full"):
        app = _FULL.get(words[0] if words else "", "")
        return CommandLine(tuple(words[1:]), app, environment) if app else None
    return CommandLine(tuple(words), "cli" if tag.startswith("light") else "server", environment)
