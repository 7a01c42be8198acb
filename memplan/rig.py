"""Rigs from a command line: ``--gpu`` specs and ``--rig`` files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from memplan.backends.cards import CONTEXT_MIB, find_card, suggest
from memplan.backends.devices import Gpu, Rig
from memplan.errors import RigError, shown

MAX_GPUS: Final = 16
"""``llama_max_devices()`` and ``GGML_CUDA_MAX_DEVICES``."""

MIB: Final = 1 << 20

_MAX_MIB: Final = 1 << 30
_MAX_FILE: Final = 1 << 20
_MAX_CAPABILITY: Final = 19  # 12 is today's; 86 is 8.6 without its point


def parse_gpu_spec(spec: str) -> tuple[Gpu, ...]:
    """The GPUs of ``[N*]NAME[:TOTAL_MIB[:FREE_MIB[:CC]]]``, such as ``RTX 3090`` or ``2*RTX 3090:24268:23868:8.6``.

    A known card needs no figures; an empty one (``RTX 3090::20000``) is the card's own. Raises RigError.
    """
    counted = re.fullmatch(r"\s*([0-9]{1,9})\s*[*x]\s*(.*)", spec, re.DOTALL)
    count, rest = (int(counted[1]), counted[2]) if counted else (1, spec)
    name, *figures = (part.strip() for part in rest.split(":"))
    if not name:
        raise RigError(f"--gpu {shown(spec)}: a name is missing; write [N*]NAME[:TOTAL_MIB[:FREE_MIB[:CC]]]")
    if len(figures) > 3:
        raise RigError(f"--gpu {shown(spec)}: too many colons; write [N*]NAME[:TOTAL_MIB[:FREE_MIB[:CC]]]")
    total, free, capability = (*figures, "", "", "")[:3]
    try:
        gpu = make_gpu(name, _mib("total", total), _mib("free", free), _capability(capability))
        return (gpu,) * check_count(count)
    except RigError as error:
        raise RigError(f"--gpu {shown(spec)}: {error}") from None


def parse_gpus(specs: Iterable[str]) -> Rig:
    """The rig of several ``--gpu`` specs, in device order. Raises RigError."""
    return Rig(check_gpus([gpu for spec in specs for gpu in parse_gpu_spec(spec)]))


def load_rig(path: str | Path) -> Rig:
    """The rig in a TOML or JSON file: ``gpus`` (name, total_mib, free_mib, compute_capability, count) and ``host_mib``.

    Raises RigError, naming the file and the field, when it cannot be read or is not such a file.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RigError(f"rig file {shown(str(path))}: {reason}") from None
    if len(data) > _MAX_FILE:
        raise RigError(f"rig file {shown(str(path))}: larger than {_MAX_FILE} bytes, this is no rig file")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise RigError(f"rig file {shown(str(path))}: not UTF-8 text") from None
    from memplan.rig_file import parse_rig

    try:
        return parse_rig(text, json=path.suffix.lower() == ".json" or text.lstrip().startswith("{"))
    except RigError as error:
        raise RigError(f"rig file {shown(str(path))}: {error}") from None


def make_gpu(name: str, total: int | None, free: int | None, capability: tuple[int, int] | None) -> Gpu:
    """One GPU; what is None is looked up among the known cards. ``total``, ``free``: bytes. Raises RigError."""
    if total is not None and capability is not None:
        return Gpu(name, total, max(0, total - CONTEXT_MIB * MIB) if free is None else free, capability)
    card = find_card(name)
    if card is None:
        near = suggest(name)
        hint = f"did you mean {' or '.join(near)}? Else" if near else "not a card that memplan knows:"
        raise RigError(f"{hint} give its figures: NAME:TOTAL_MIB:FREE_MIB:COMPUTE_CAPABILITY")
    gpu = card.gpu(total, free)
    return gpu if capability is None else replace(gpu, compute_capability=capability)


def check_count(count: int) -> int:
    """``count`` of a kind of GPU, if llama.cpp can hold as many. Raises RigError."""
    if not 1 <= count <= MAX_GPUS:
        raise RigError(f"{count} GPUs; llama.cpp takes 1 to {MAX_GPUS}")
    return count


def check_gpus(gpus: list[Gpu]) -> tuple[Gpu, ...]:
    """All of a rig's GPUs, if llama.cpp can hold as many. Raises RigError."""
    if len(gpus) > MAX_GPUS:
        raise RigError(f"{len(gpus)} GPUs in all; llama.cpp takes at most {MAX_GPUS}")
    return tuple(gpus)


def check_mib(field: str, mib: int, low: int = 1) -> int:
    """A size in MiB as bytes. Raises RigError when no memory is as large, or as small."""
    if not low <= mib <= _MAX_MIB:
        raise RigError(f"{field}: {mib} MiB, must be from {low} to {_MAX_MIB}")
    return mib * MIB


def check_capability(text: str) -> tuple[int, int]:
    """A compute capability: 8.6 as (8, 6). Raises RigError."""
    match = re.fullmatch(r"([0-9]{1,2})\.([0-9])", text, re.ASCII)
    if not match or int(match[1]) > _MAX_CAPABILITY:
        raise RigError(f"compute capability {shown(text)}: must be written as in 8.6")
    return int(match[1]), int(match[2])


def _mib(field: str, text: str) -> int | None:
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text, re.ASCII):
        raise RigError(f"{field} memory {shown(text)}: must be a whole number of MiB")
    return check_mib(f"{field} memory", int(text), 0 if field == "free" else 1)


def _capability(text: str) -> tuple[int, int] | None:
    return check_capability(text) if text else None
