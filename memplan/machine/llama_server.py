"""``llama-server --list-devices``: the names and the order that llama.cpp itself uses, for every backend it has."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from typing import IO, Final

from memplan.errors import ProgramError, shown
from memplan.machine.detected import Found

TIMEOUT: Final = 30.0
"""Seconds in which a program answers a question that needs no model."""

_MIB: Final = 1 << 20
_MAX_OUTPUT: Final = 8 << 20
"""Bytes of each of a program's outputs that are read; of llama.cpp's longest answers it is some ten times the size."""

_DEVICE: Final = re.compile(r"^\s*([A-Za-z]+)(\d+): (.*) \((\d{1,9}) MiB, (\d{1,9}) MiB free\)\s*$", re.MULTILINE)
_CAPABILITY: Final = re.compile(r"^\s*Device (\d+): .*?, compute capability (\d{1,2})\.(\d)", re.MULTILINE)


ALL_IN_ONE: Final = "llama"
"""The program that has the others as its commands (app/llama.cpp)."""

_COMMANDS: Final = {"llama-server": "serve", "llama-fit-params": "fit-params"}


def find_program(name: str, given: str = "") -> str | None:
    """The path of a llama.cpp program: the one ``given``, or on PATH. Raises ProgramError when that given is none."""
    path = shutil.which(given or name)
    if given and path is None:
        raise ProgramError(f"{shown(given)}: no such program, or it may not be run; give the path of {name}")
    return path


def find_all_in_one() -> str | None:
    """The path of ``llama`` on PATH, if it is llama.cpp's."""
    path = shutil.which(ALL_IN_ONE)
    try:
        said = "".join(run_program([path, "--version"])[1:]) if path else ""
    except ProgramError:
        return None
    return path if re.search(r"^version: .*\bbuild\b", said, re.MULTILINE) else None


def command_of(program: str, name: str) -> list[str]:
    """How a program is run as ``name``: by itself, or as a command of ``llama``."""
    return [program, _COMMANDS[name]] if is_all_in_one(program) else [program]


def is_all_in_one(program: str) -> bool:
    """Whether it is ``llama``, which has the others as its commands."""
    return os.path.basename(program).lower().removesuffix(".exe") == ALL_IN_ONE


def run_program(command: list[str], timeout: float = TIMEOUT) -> tuple[int, str, str]:
    """Run a program to its end: its exit status, stdout and stderr. Raises ProgramError."""
    with start_program(command, subprocess.PIPE) as process:
        reader = _Reader(process)
        try:
            reader.wait(os.path.basename(command[0]), timeout)
        except BaseException:
            end_program(process)
            raise
    out, err = (bytes(data).decode("utf-8", "replace") for data in reader.read)
    return process.returncode, out, err


class _Reader:
    """Reads a program's outputs side by side to their ends, up to ``_MAX_OUTPUT`` bytes of each."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.read = bytearray(), bytearray()
        self._process = process
        self._moved = threading.Condition()
        streams = [(s, data) for s, data in zip((process.stdout, process.stderr), self.read, strict=True) if s]
        self._open, self._too_much = len(streams), False
        for stream, data in streams:
            threading.Thread(target=self._follow, args=(stream, data), daemon=True).start()

    def wait(self, name: str, timeout: float) -> None:
        """Wait for the program's end. Raises ProgramError after ``timeout`` seconds, or when it says too much."""
        until = time.monotonic() + timeout
        with self._moved:
            while self._open and not self._too_much:
                if not self._moved.wait(until - time.monotonic()) and time.monotonic() >= until:
                    break
            if self._too_much:
                raise ProgramError(f"{name}: more than {_MAX_OUTPUT >> 20} MiB of output: is it llama.cpp's program?")
        try:
            self._process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise ProgramError(f"{name}: no answer in {timeout:.0f} s; try it by hand") from None
        if self._open:  # what it started still writes
            raise ProgramError(f"{name}: no answer in {timeout:.0f} s; try it by hand")

    def _follow(self, stream: IO[bytes], data: bytearray) -> None:
        try:
            while len(data) <= _MAX_OUTPUT and (chunk := os.read(stream.fileno(), 1 << 16)):
                data += chunk
        except (OSError, ValueError):
            pass  # closed meanwhile
        with self._moved:
            self._open -= 1
            self._too_much |= len(data) > _MAX_OUTPUT
            self._moved.notify_all()


def start_program(command: list[str], stderr: int) -> subprocess.Popen[bytes]:
    """Start a program whose stdout is read, with a group of its own for what it starts itself. Raises ProgramError."""
    own = os.name == "posix"
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, start_new_session=own
        )  # fmt: skip
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ProgramError(f"{os.path.basename(command[0])}: cannot be run: {reason}") from None


def end_program(process: subprocess.Popen[bytes], patience: float = 0.0) -> None:
    """End a program and all that it started, at once or after ``patience`` seconds for its own end."""
    if patience:
        _signal(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
    _signal(process, getattr(signal, "SIGKILL", signal.SIGTERM))


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(OSError):
        if os.name == "posix":
            os.killpg(process.pid, number)
        else:
            process.terminate()


def list_devices(program: str) -> list[Found]:
    """The GPUs that a llama-server lists. Raises ProgramError when it cannot be run or answers something else."""
    status, out, err = run_program([*command_of(program, "llama-server"), "--list-devices"])
    if "Available devices:" not in out:
        last = ((err.strip() or out.strip()).splitlines() or [""])[-1].strip()
        why = shown(last) if last else "nothing" + (f", and exit status {status}" if status else "")
        raise ProgramError(f"{os.path.basename(program)} --list-devices: no list of devices, it says {why}")
    return parse_devices(out, err)


def parse_devices(out: str, err: str = "") -> list[Found]:
    """The GPUs in what ``--list-devices`` prints; compute capabilities from what CUDA says beside it.

    (common/arg.cpp: common_print_available_devices; ggml-cuda.cu: ggml_cuda_init, v0.5.0.)
    """
    listed = out.partition("Available devices:")[2]
    capabilities = {int(m[1]): (int(m[2]), int(m[3])) for m in _CAPABILITY.finditer(err + "\n" + out)}
    found = []
    for match in _DEVICE.finditer(listed):
        backend, index, description, total, free = match.groups()
        if int(total) > 0 and backend not in ("BLAS", "RPC"):
            capability = capabilities.get(int(index)) if backend == "CUDA" else None
            size = int(total) * _MIB
            found.append(Found(description, size, min(int(free) * _MIB, size), backend, capability))
    return found
