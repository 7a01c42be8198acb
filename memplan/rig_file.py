"""Rig files, validated with pydantic; imported only when there is one."""

from __future__ import annotations

import json as json_module
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from memplan.backends.devices import METAL, RPC, VULKAN, Gpu, Rig
from memplan.backends.vulkan_limits import VulkanLimits
from memplan.errors import RigError, printable, shown
from memplan.infile import read_input
from memplan.outfile import Kind
from memplan.rig import (
    FEW_HOST_MIB,
    FEW_MIB,
    MIB,
    check_backend,
    check_bandwidth,
    check_capability,
    check_count,
    check_gpus,
    check_mib,
    machine_memory,
    make_gpu,
    make_server,
    share_host,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


_Int = Annotated[int, Field(gt=-(10**40), lt=10**40)]
_MAX_LIMIT: Final = 1 << 48
_ALIGNMENTS: Final = [1 << i for i in range(17)]


class LimitsEntry(BaseModel):
    """What Vulkan's driver says of a device; see ``memplan.backends.vulkan_limits``. What is left out its name says."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    align: _Int | None = None
    map_align: _Int | None = None
    range: _Int | None = None
    max_buffer: _Int | None = None
    idx64: bool | Literal[0, 1] | None = None
    fp16: bool | Literal[0, 1] | None = None

    def over(self, gpu: Gpu) -> VulkanLimits:
        """These limits, and for the rest those that the GPU has by its name. Raises RigError."""
        if gpu.backend != VULKAN:
            raise RigError("limits: are those of Vulkan's driver, so only a GPU of that backend has any")
        given = self.model_dump(exclude_none=True)
        for name, value in given.items():
            if not name.endswith("align"):
                if not isinstance(value, bool) and not 0 <= value <= _MAX_LIMIT:
                    raise RigError(f"limits.{name}: {value}, must be from 0 to {_MAX_LIMIT}")
            elif value not in _ALIGNMENTS:
                raise RigError(f"limits.{name}: {value}, must be a power of two up to {_ALIGNMENTS[-1]}")
        if len(given) == len(LimitsEntry.model_fields):
            given |= {"known": True, "driver": "the rig file"}
        given |= {name: bool(given[name]) for name in ("idx64", "fp16") if name in given}
        return replace(gpu.vulkan_limits, **given)


class GpuEntry(BaseModel):
    """One kind of GPU, ``count`` times in a row; what is left out is the known card's.

    ``backend``: ``CUDA``, ``Vulkan`` or ``Metal``.  ``rpc``: ``HOST:PORT`` of the server that has it;
    ``name`` is then the card that the server has, or any other name.  ``bandwidth_gb_s``: its memory's peak, for plans.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: str = Field(min_length=1, max_length=200)
    total_mib: _Int | None = None
    free_mib: _Int | None = None
    compute_capability: float | str | None = None
    count: _Int = 1
    backend: str = ""
    integrated: bool | None = None
    rpc: str | None = None
    bandwidth_gb_s: float | None = None
    limits: LimitsEntry | None = None

    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs. Raises RigError."""
        if self.bandwidth_gb_s is None:
            return self._gpus()
        peak = check_bandwidth("bandwidth_gb_s", self.bandwidth_gb_s)
        return tuple(replace(gpu, bandwidth=peak) for gpu in self._gpus())

    def _gpus(self) -> tuple[Gpu, ...]:
        total = None if self.total_mib is None else check_mib("total_mib", self.total_mib, few=FEW_MIB)
        free = None if self.free_mib is None else check_mib("free_mib", self.free_mib, 0)
        capability = None if self.compute_capability is None else check_capability(str(self.compute_capability))
        if self.rpc is not None:
            if self.backend or self.integrated is not None:
                raise RigError("rpc: a server's device has no backend and is not integrated here")
            return (make_server(self.rpc, total, free, capability, self.name),) * check_count(self.count)
        backend = check_backend(self.backend) if self.backend else ""
        gpu = make_gpu(self.name, total, free, capability, backend, self.integrated)
        if self.limits is not None:
            gpu = replace(gpu, limits=self.limits.over(gpu))
        return (gpu,) * check_count(self.count)


class RigEntry(BaseModel):
    """A whole rig file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    gpus: list[GpuEntry] = []
    host_mib: _Int | None = None
    unified: bool | None = None
    host_bandwidth_gb_s: float | None = None


_MAX_FILE: Final = 1 << 17
"""Bytes of a rig file: one of a thousand kinds of GPUs has fewer."""

_MAX_PARTS: Final = 16
_LONG_KEY: Final = re.compile(
    rf"(?<![\w-])(?:(?:[\w-]+|\"[^\"\n]*\"|'[^'\n]*')[ \t]*\.[ \t]*){{{_MAX_PARTS}}}", re.ASCII
)
"""A dotted key of TOML with more parts than any needs; each is a table for the parser."""


def load_rig(path: str | Path) -> Rig:
    """The rig in a TOML or JSON file: ``gpus`` (name, total_mib, free_mib, compute_capability, count, backend,
    integrated, rpc, bandwidth_gb_s, limits), ``host_mib``, ``host_bandwidth_gb_s`` and ``unified``.

    Raises RigError, naming the file and the field, when it cannot be read or is not such a file.
    """
    name = shown(os.fspath(path))
    try:
        data = read_input(path, _MAX_FILE)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        reason += "; check the path" if isinstance(error, FileNotFoundError) else ""
        raise RigError(f"rig file {name}: {reason}") from None
    if len(data) > _MAX_FILE:
        raise RigError(f"rig file {name}: larger than {_MAX_FILE} bytes, so not a rig file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise RigError(f"rig file {name}: not UTF-8 text") from None
    try:
        return parse_rig(text, json=os.fspath(path).lower().endswith(".json") or text.lstrip().startswith("{"))
    except RigError as error:
        raise RigError(f"rig file {name}: {error}") from None


def parse_rig(text: str, *, json: bool) -> Rig:
    """The rig that ``text``, JSON or TOML, describes. Raises RigError, naming the field."""
    if len(text) > _MAX_FILE:
        raise RigError(f"larger than {_MAX_FILE} bytes, so not a rig file")
    if not json and _LONG_KEY.search(text):
        raise RigError(f"a key of more than {_MAX_PARTS} parts; those of a rig file have one")
    if not text.strip():
        raise RigError("is empty; describe GPUs, or write gpus = [] for none")
    try:
        data: Any = json_module.loads(text, object_pairs_hook=_once) if json else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise RigError(f"not {'JSON' if json else 'TOML'}: {_why_unread(error)}") from None
    try:
        entry = RigEntry.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise RigError(f"{_field(first['loc'])}: {_why_wrong(first['type'], first['loc'])}") from None
    if not entry.model_fields_set:
        raise RigError("says nothing; describe GPUs, or write gpus = [] for none")
    gpus: list[Gpu] = []
    for i, kind in enumerate(entry.gpus):
        try:
            gpus += kind.gpus()
        except RigError as error:
            raise RigError(f"gpus[{i}] {shown(kind.name)}: {error}") from None
    host = None if entry.host_mib is None else check_mib("host_mib", entry.host_mib, few=FEW_HOST_MIB)
    checked = check_gpus(gpus)
    if host is None and entry.unified is not False:
        host = machine_memory(checked)
    peak = entry.host_bandwidth_gb_s
    return Rig(
        checked,
        host,
        share_host(checked) if entry.unified is None else entry.unified,
        None if peak is None else check_bandwidth("host_bandwidth_gb_s", peak),
    )


def write_rig(rig: Rig, *, json: bool, about: str = "") -> str:
    """``rig`` as the text of a rig file that ``parse_rig`` reads; ``about``: a comment, in TOML."""
    kinds: list[tuple[Gpu, int]] = []
    for gpu in rig.gpus:
        if kinds and kinds[-1][0] == gpu:
            kinds[-1] = (gpu, kinds[-1][1] + 1)
        else:
            kinds.append((gpu, 1))
    entries = [_entry(gpu, count) for gpu, count in kinds]
    top: dict[str, Any] = {} if rig.host_total is None else {"host_mib": rig.host_total // MIB}
    if rig.unified:
        top["unified"] = True
    if rig.host_bandwidth is not None:
        top["host_bandwidth_gb_s"] = rig.host_bandwidth
    if json:
        return json_module.dumps({**top, "gpus": entries}, indent=2) + "\n"
    # a JSON string is a TOML one: what both escape is escaped alike
    lines = [f"# {_one_line(about)}"] if about else []
    lines += [f"{key} = {json_module.dumps(value)}" for key, value in top.items()]
    for entry in entries:
        lines += ["", "[[gpus]]", *(f"{key} = {_toml(value)}" for key, value in entry.items())]
    return "\n".join(lines) + "\n"


def is_own_rig(file: BinaryIO) -> bool:
    """Whether an open file is a rig file as ``write_rig`` writes it, not one that somebody wrote, or wrote notes in.

    Raises RigError or ValueError for what is no rig file.
    """
    text = file.read(_MAX_FILE + 1).decode()
    json = text.startswith("{")
    written = write_rig(parse_rig(text, json=json), json=json)
    first, _, rest = text.partition("\n")
    return written in (text, rest if first.startswith("# ") and not json else "")


RIG: Final = Kind("rig file as memplan writes it", is_own_rig)
"""What ``memplan devices`` writes."""


def _entry(gpu: Gpu, count: int) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": (gpu.card or gpu.description)[:200],
        "count": count,
        "total_mib": gpu.total // MIB,
        "free_mib": gpu.free // MIB,
    }
    if gpu.bandwidth is not None:
        entry["bandwidth_gb_s"] = gpu.bandwidth
    if gpu.compute_capability is not None:
        entry["compute_capability"] = "{}.{}".format(*gpu.compute_capability)
    if gpu.backend == RPC:
        return {**entry, "rpc": gpu.endpoint}
    if gpu.compute_capability is None:
        entry["backend"] = "Metal" if gpu.backend == METAL else gpu.backend
    if gpu.compute_capability is None or gpu.integrated:
        entry["integrated"] = gpu.integrated
    if gpu.limits is not None and gpu.limits.known:
        entry["limits"] = {name: getattr(gpu.limits, name) for name in LimitsEntry.model_fields}
    return entry


def _toml(value: Any) -> str:
    """A value as TOML has it: a JSON one, or a table of such."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {json_module.dumps(item)}" for key, item in value.items()) + " }"
    return json_module.dumps(value)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, none of whose keys occurs twice, as in TOML."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise RigError(f"key {shown(key)} occurs twice")
        found[key] = value
    return found


def _why_unread(error: ValueError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if "set_int_max_str_digits" in str(error):
        return "a number in it has thousands of digits"
    return _one_line(str(error) or type(error).__name__)


_OWNERS: Final[dict[type[BaseModel], str]] = {RigEntry: "a rig", GpuEntry: "a GPU", LimitsEntry: "limits"}

_KINDS = {
    "missing": "is missing",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "string_too_long": "must not be longer than 200 characters",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "is too large a number",
    "less_than": "is too large a number",
    "greater_than": "is too small a number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "literal_error": "must be true or false",
    "list_type": "must be a list",
}
"""What is wrong, by pydantic's type of an error."""


def _why_wrong(kind: str, location: tuple[int | str, ...]) -> str:
    entry: type[BaseModel] = GpuEntry if location and location[0] == "gpus" and len(location) > 1 else RigEntry
    if "limits" in location:
        entry = LimitsEntry
    keys = ", ".join(entry.model_fields)
    if kind == "extra_forbidden":
        return f"there is no such key; those of {_OWNERS[entry]} are {keys}"
    if kind == "float_type" and "compute_capability" in location:
        return "must be a number or text, as in 8.6"
    return _KINDS.get(kind, f"must be a table with some of {keys}")


def _field(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location[:3]:  # what follows are pydantic's words for the kinds that a field may have
        name = printable(str(part))[:80]
        text += f"[{part}]" if isinstance(part, int) else f".{name}" if text else name
    return text or "the file"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
