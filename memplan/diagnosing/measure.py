"""llama.cpp's own numbers for a model and flags: ``llama-fit-params``, or llama-server's pass without memory.

(tools/fit-params/fit-params.cpp and common/fit.cpp: common_fit_print, v0.5.0.)
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from memplan.diagnosing.lines import clean
from memplan.diagnosing.loads import Loads
from memplan.diagnosing.reader import read_line
from memplan.errors import ProgramError, shown
from memplan.llama.flag_fields import same_setting
from memplan.llama.flag_words import normalized, split_words
from memplan.machine.llama_server import (
    command_of,
    end_program,
    find_all_in_one,
    find_program,
    run_program,
    start_program,
)

FIT_PARAMS: Final = "llama-fit-params"
SERVER: Final = "llama-server"
TIMEOUT: Final = 120.0
"""Seconds in which a program measures; it takes a few."""

_MIB: Final = 1 << 20
_MAX_LINES: Final = 100_000
_MAX_LINE: Final = 1 << 16
_MAX_BYTES: Final = 32 << 20
_ROW: Final = re.compile(r"^([A-Za-z]\w*) (\d{1,9}) (\d{1,9}) (\d{1,9}) *$", re.MULTILINE)
_VERSION: Final = re.compile(r"version: (?:v?(\d+\.\d+\.\d+)\S* )?\(?(?:build )?(\d{1,6})\b", re.ASCII)
_OWN_WORDS: Final = re.compile(r"^version: |^built with |llama|ggml", re.MULTILINE)
"""What a program of llama.cpp's says of itself, also where it fails."""

_NOT_RUN: Final = 126
"""Exit statuses from this on are those of the shell and the loader: the program did not run."""

_LEAST_BUILD: Final = 100
"""Builds of a shallow clone count from 1: their number tells nothing."""

_TELLING: Final = re.compile(r"GGML_ASSERT\(.*|\berror\b.*|what\(\):.*", re.IGNORECASE)
_DEBUGGER: Final = re.compile(r"^(?:#\d+ |\[|\d+\t|Using host libthread)")

# what decides memory and llama-fit-params takes; it has no --kv-unified
_TAKEN: Final = same_setting(
    "-c", "-b", "-ub", "-fa", "-ctk", "-ctv", "-ngl", "-sm", "-mg", "-ts", "-ot", "-cmoe", "-ncmoe", "-ncffn", "-dev",
    "-nkvo", "--no-op-offload", "--swa-full", "--no-host", "--no-repack", "--override-kv",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measured:
    """llama.cpp's answer. ``buffers``: MiB, rounded down, by device and ``Host``: weights, caches, compute.

    ``partial``: only compute buffers, in MiB with two digits, are known.
    """

    program: str
    version: str
    """Its build, as ``b11200``, or its tag; empty when it does not say."""
    command: tuple[str, ...]
    buffers: dict[str, tuple[float, float, float]]
    partial: bool = False


class NoFigures(ProgramError):
    """A program ended without figures. ``command``: how it was run.  ``said``: why, in its words."""

    def __init__(self, program: str, command: Sequence[str], said: str) -> None:
        super().__init__(f"{os.path.basename(program)}: no figures: {said}")
        self.command, self.said = tuple(command), said


def find_measurer(given: str) -> str:
    """The program to ask: the one ``given``, llama-fit-params on PATH or beside llama-server, llama, or llama-server.

    Raises ProgramError when there is none.
    """
    if given:
        return find_program(FIT_PARAMS, given) or given
    found = find_program(FIT_PARAMS)
    if found:
        return found
    server = find_program(SERVER)
    if server is not None:
        name = FIT_PARAMS + (".exe" if server.lower().endswith(".exe") else "")
        beside = Path(os.path.realpath(server)).with_name(name)
        if os.access(beside, os.X_OK):
            return str(beside)
    found = find_all_in_one() or server
    if found is None:
        raise ProgramError(f"neither {FIT_PARAMS} nor {SERVER} is on PATH; name one of them with --program FILE")
    return found


def is_server(program: str) -> bool:
    """Whether it is llama-server, which gives compute buffers alone."""
    return SERVER in os.path.basename(program).lower()


def version_of(program: str) -> str:
    """The build of a llama.cpp program, as ``b11200``, or its tag; empty when it does not say."""
    status, out, err = run_program([program, "--version"])
    match = _VERSION.search(err + "\n" + out)
    if match is None:
        name = os.path.basename(program)
        if 0 <= status < _NOT_RUN and not _OWN_WORDS.search(err + "\n" + out):
            first = next((line for line in (err + "\n" + out).splitlines() if line.strip()), "nothing")
            raise ProgramError(f"{name} is not a llama.cpp program: --version says {shown(first, 80)}; name another")
        if status:
            raise ProgramError(f"{name} --version: {_why(err or out, status)}")
        return ""
    if int(match[2]) < _LEAST_BUILD:
        return f"v{match[1]}" if match[1] else ""
    return f"b{match[2]}"


def taken_flags(argv: Sequence[str]) -> Iterator[str]:
    """The flags of ``argv`` that decide memory and that llama-fit-params takes, with their values."""
    for words in split_words(argv):
        if normalized(words[0]) in _TAKEN:
            yield from words


def measure(program: str, model: str, argv: Sequence[str], n_parallel: int) -> Measured:
    """Ask ``program`` about a model file and flags. Raises NoFigures when it gives none, or another ProgramError."""
    version = version_of(program)
    flags = [*taken_flags(argv), "-np", str(n_parallel)]
    if is_server(program):
        return _ask_server(program, version, model, flags)
    command = [*command_of(program, FIT_PARAMS), "-m", model, *flags, "--fit-print", "on"]
    status, out, err = run_program(command, TIMEOUT)
    rows = {m[1]: (float(m[2]), float(m[3]), float(m[4])) for m in _ROW.finditer(out)}
    if status or "Host" not in rows:
        raise NoFigures(program, command, _why(err + "\n" + out, status))
    return Measured(program, version, tuple(command), rows)


def _ask_server(program: str, version: str, model: str, flags: Sequence[str]) -> Measured:
    """llama-server measures before it loads, with ``--fit on``: read along, and end it before it loads."""
    command = [program, "-m", model, *flags, "--fit", "on", "-v", "--host", "127.0.0.1", "--port", "0"]
    loads, last = Loads(), ""
    with start_program(command, subprocess.STDOUT) as process:
        timer = threading.Timer(TIMEOUT, end_program, [process])
        timer.start()
        try:
            for number, line in enumerate(_lines(process)):
                text = clean(line)
                last = text.strip() or last
                read_line(loads, text)
                load = loads.current
                loading = "load_tensors: loading model tensors" in text and not load.dry
                if (load.dry and load.copies is not None) or loading or load.failures or number > _MAX_LINES:
                    break
        finally:
            timer.cancel()
            end_program(process, 5.0)
    load = loads.current
    if not (load.dry and load.compute):
        said = load.failures[0].said if load.failures else last
        why = f"it did not measure before loading: {shown(said, 120)}; give {FIT_PARAMS} with --program"
        raise NoFigures(program, command, why)
    sizes = {name: (0.0, 0.0, mib) for name, mib in load.compute.items()}
    return Measured(program, version, tuple(command), sizes, partial=True)


def _lines(process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """What it prints, in lines: none is endless, nor are all together."""
    left = _MAX_BYTES
    while process.stdout is not None and left > 0 and (line := process.stdout.readline(_MAX_LINE)):
        left -= len(line)
        yield line


def _why(text: str, status: int) -> str:
    """The line that tells why a program ended: an assertion, an error, or the last that is no debugger's."""
    lines = [clean(line.encode()).strip() for line in text.splitlines() if line.strip() and not _DEBUGGER.match(line)]
    telling = next((match[0] for line in lines if (match := _TELLING.search(line))), lines[-1] if lines else "")
    return shown(telling, 200) if telling else f"exit status {status}"
