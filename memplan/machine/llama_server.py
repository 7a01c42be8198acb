"""``llama-server --list-devices``: the names and the order that llama.cpp itself uses, for every backend it has."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from typing import Final

from memplan.errors import ProgramError, shown
from memplan.machine.detected import Found

TIMEOUT: Final = 60.0
_MIB: Final = 1 << 20
_MAX_OUTPUT: Final = 8 << 20
_DEVICE: Final = re.compile(r"^\s*([A-Za-z]+)(\d+): (.*) \((\d{1,9}) MiB, (\d{1,9}) MiB free\)\s*$", re.MULTILINE)
_CAPABILITY: Final = re.compile(r"^\s*Device (\d+): .*?, compute capability (\d{1,2})\.(\d)", re.MULTILINE)


def find_program(name: str, given: str = "") -> str | None:
    """The path of a llama.cpp program: the one ``given``, or on PATH. Raises ProgramError when that given is none."""
    path = shutil.which(given or name)
    if given and path is None:
        raise ProgramError(f"{shown(given)}: no such program, or it may not be run; give the path of {name}")
    return path


def run_program(command: list[str], timeout: float = TIMEOUT) -> tuple[int, str, str]:
    """Run a program to its end: its exit status, stdout and stderr. Raises ProgramError."""
    name = os.path.basename(command[0])
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise ProgramError(f"{name}: no answer in {timeout:.0f} s; try it by hand") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ProgramError(f"{name}: cannot be run: {reason}") from None
    out, err = (data[:_MAX_OUTPUT].decode("utf-8", "replace") for data in (done.stdout, done.stderr))
    return done.returncode, out, err


def list_devices(program: str) -> list[Found]:
    """The GPUs that a llama-server lists. Raises ProgramError when it cannot be run or answers something else."""
    status, out, err = run_program([program, "--list-devices"])
    if "Available devices:" not in out:
        last = (err.strip().splitlines() or [f"exit status {status}"])[-1]
        raise ProgramError(f"{os.path.basename(program)} --list-devices: not understood: {shown(last)}")
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
