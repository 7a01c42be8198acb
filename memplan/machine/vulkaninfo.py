"""What ``vulkaninfo`` says of Vulkan's devices: their drivers' limits, and how much memory they have.

Its text, or its JSON (``vulkaninfo --json``, which tells nothing of memory). Devices that compute on the CPU are left
out, as ggml-vulkan leaves them out (``ggml_vk_instance_init``).
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from memplan.backends.devices import VULKAN, Gpu
from memplan.backends.vulkan_limits import VulkanLimits
from memplan.errors import ProgramError, RigError, shown
from memplan.infile import read_input
from memplan.machine.llama_server import run_program
from memplan.rig import make_gpu

_MAX_FILE: Final = 16 << 20
"""Bytes of a file that is read: what is said of one device takes some 100 KiB."""

_MAX_SIZE: Final = 1 << 50
_LINE: Final = re.compile(r"^\s*(\w+)\s*=\s*(.*?)\s*$")
_HEAP: Final = re.compile(r"^\s*memoryHeaps\[([0-9]{1,3})\]:")
_WHO: Final = "deviceName"
_NEEDED: Final = ("minStorageBufferOffsetAlignment", "minMemoryMapAlignment", "maxStorageBufferRange", "maxBufferSize")
_READ: Final = frozenset(
    {*_NEEDED, _WHO, "deviceType", "driverName", "shaderFloat16", "shader64BitIndexing", "VK_EXT_shader_64bit_indexing"}
)

_Said = dict[str, Any]
"""What is said of one device, by Vulkan's own names; ``memoryHeaps``: (bytes, budget, usage, device-local)."""

_Heap = tuple[int, int | None, int, bool]


@dataclass(frozen=True, slots=True)
class VulkanDevice:
    """A device; ``total``, ``free``: bytes as ggml-vulkan counts them, None where nothing is said of memory."""

    name: str
    limits: VulkanLimits
    integrated: bool
    total: int | None
    free: int | None

    def gpu(self) -> Gpu:
        """As a device of a rig; memory that is not said is the known card's. Raises RigError where it is none's."""
        try:
            gpu = make_gpu(self.name, self.total, self.free, None, VULKAN, self.integrated)
        except RigError:
            said = f"{shown(self.name)}: nothing is said of its memory; give vulkaninfo's text, without --json"
            raise RigError(said) from None
        return Gpu(self.name, gpu.total, gpu.free, backend=VULKAN, integrated=self.integrated, limits=self.limits)


def load_vulkaninfo(path: str | Path) -> list[VulkanDevice]:
    """The devices in a file of what ``vulkaninfo`` said. Raises RigError, naming the file."""
    name = shown(os.fspath(path))
    try:
        data = read_input(path, _MAX_FILE)
    except (OSError, ValueError) as error:
        raise RigError(f"{name}: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > _MAX_FILE:
        raise RigError(f"{name}: larger than {_MAX_FILE} bytes, so not from vulkaninfo")
    try:
        return parse_vulkaninfo(data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8", "replace"))
    except RigError as error:
        raise RigError(f"{name}: {error}") from None


def ask_vulkaninfo() -> list[VulkanDevice]:
    """The devices of this machine; none where ``vulkaninfo`` is not installed or does not answer."""
    program = shutil.which("vulkaninfo")
    if program is None:
        return []
    try:
        return parse_vulkaninfo(run_program([program])[1])
    except (ProgramError, RigError):
        return []


def parse_vulkaninfo(text: str) -> list[VulkanDevice]:
    """The devices in ``vulkaninfo``'s text or JSON. Raises RigError when it is neither, or has none."""
    found = list(_json(text) if text.lstrip("\ufeff \t\r\n")[:1] in ("{", "[") else _text(text))
    if not found:
        raise RigError("no device in it: give what vulkaninfo, without --summary, or vulkaninfo --json prints")
    devices = [_device(said) for said in found if not _is(said, "CPU", 4)]
    if not devices:
        raise RigError("no GPU in it, only what computes on the CPU")
    return devices


def _device(said: _Said) -> VulkanDevice:
    name = str(said[_WHO])[:200]
    missing = [key for key in _NEEDED if key not in said]
    if missing:
        raise RigError(f"{shown(name)}: {missing[0]} is not said; give the whole output of a newer vulkaninfo")
    align, map_align, largest, max_buffer = (_number(said[key]) for key in _NEEDED)
    if min(align, map_align, largest, max_buffer) < 1 or align & (align - 1) or map_align & (map_align - 1):
        raise RigError(f"{shown(name)}: alignments and limits of no device")
    limits = VulkanLimits(
        align=align,
        map_align=map_align,
        range=largest,
        max_buffer=min(max_buffer, _MAX_SIZE),
        idx64=_true(said.get("shader64BitIndexing", "VK_EXT_shader_64bit_indexing" in said)),
        fp16=_true(said.get("shaderFloat16", False)),
        driver=f"its driver, as vulkaninfo says ({str(said.get('driverName', 'unnamed'))[:60]})",
    )
    integrated = _is(said, "INTEGRATED", 1)
    total, free = _memory(said.get("memoryHeaps", ()), integrated)
    return VulkanDevice(name, limits, integrated, total, free)


def _memory(heaps: Any, integrated: bool) -> tuple[int | None, int | None]:
    """Bytes in all and free: of the device's own heaps, of all for an integrated GPU.

    Follows ``ggml_backend_vk_get_device_memory``.
    """
    counted: list[_Heap] = [heap for heap in heaps if heap[3] or integrated]
    total = sum(size for size, *_ in counted)
    if not 0 < total < _MAX_SIZE:
        return None, None
    free = sum(size if budget is None else max(0, budget - usage) for size, budget, usage, _ in counted)
    return total, min(free, total)


def _is(said: _Said, kind: str, number: int) -> bool:
    """Whether a device is of a kind, by ``VkPhysicalDeviceType``'s word or number."""
    type = str(said.get("deviceType", ""))
    return kind in type or type == str(number)


def _number(value: Any) -> int:
    """A number as text, decimal or hexadecimal, or as JSON has it; 0 for what is none."""
    if isinstance(value, (int, float)):
        return int(value) if 0 <= value < 1 << 64 else 0
    word = re.match(r"0x[0-9a-fA-F]{1,16}\b|[0-9]{1,20}\b", str(value))
    return int(word[0], 0 if word[0][1:2] in "xX" and len(word[0]) > 1 else 10) if word else 0


def _true(value: Any) -> bool:
    return value is True or str(value).lower() in ("true", "1", "yes")


# --- text -------------------------------------------------------------------------------------------------------------


def _text(text: str) -> Iterator[_Said]:
    """Each device: what stands between the heading of its properties and the next one's."""
    for part in re.split(r"^VkPhysicalDeviceProperties:\s*$", text, flags=re.MULTILINE)[1:]:
        said: _Said = {}
        heaps: dict[int, dict[str, Any]] = {}
        heap: dict[str, Any] | None = None
        for line in part.splitlines():
            start = _HEAP.match(line)
            if start:
                heap = heaps.setdefault(int(start[1]), {})
            elif re.match(r"^\s*memoryTypes", line):
                heap = None
            elif heap is not None and "DEVICE_LOCAL" in line:
                heap["local"] = True
            else:
                pair = _LINE.match(line)
                if pair and heap is not None and pair[1] in ("size", "budget", "usage"):
                    heap.setdefault(pair[1], pair[2])
                elif pair and pair[1] in _READ:
                    said.setdefault(pair[1], pair[2])
                elif line.strip().startswith("VK_EXT_shader_64bit_indexing"):
                    said.setdefault("VK_EXT_shader_64bit_indexing", True)
        if _WHO in said:
            said["memoryHeaps"] = [
                (
                    _number(h.get("size", 0)),
                    _number(h["budget"]) if "budget" in h else None,
                    _number(h.get("usage", 0)),
                    bool(h.get("local")),
                )
                for h in heaps.values()
            ]
            yield said


# --- JSON -------------------------------------------------------------------------------------------------------------


def _json(text: str) -> Iterator[_Said]:
    """One device an object, or several in a list; names of Vulkan are looked for wherever they stand."""
    try:
        data = json.loads(text.lstrip("\ufeff"))
    except (ValueError, RecursionError):
        raise RigError("not JSON to its end") from None
    for part in data if isinstance(data, list) else [data]:
        said: _Said = {}
        waiting: list[Any] = [part]
        while waiting:
            node = waiting.pop()
            if isinstance(node, list):
                waiting += reversed(node)
            elif isinstance(node, dict):
                if isinstance(node.get("extensionName"), str):
                    said.setdefault(node["extensionName"], True)
                for key, value in node.items():
                    if key == "memoryHeaps" and isinstance(value, list):
                        said.setdefault(key, [_json_heap(heap) for heap in value if isinstance(heap, dict)])
                    elif key in _READ and not isinstance(value, (dict, list)):
                        said.setdefault(key, value)
                waiting += [value for value in reversed(node.values()) if isinstance(value, (dict, list))]
        if _WHO in said:
            yield said


def _json_heap(heap: dict[str, Any]) -> _Heap:
    flags = heap.get("flags", 0)
    local = "DEVICE_LOCAL" in str(flags) or (isinstance(flags, int) and bool(flags & 1))
    return _number(heap.get("size", 0)), None, 0, local
