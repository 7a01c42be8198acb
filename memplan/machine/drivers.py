"""GPUs as their drivers tell: NVIDIA's by NVML, AMD's by Linux's sysfs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from memplan.backends.cards import CONTEXT_MIB, find_card
from memplan.backends.visible import visible
from memplan.machine.detected import Found

_MIB = 1 << 20
_AMD = "0x1002"


def nvidia_gpus(host: tuple[int | None, int | None] = (None, None)) -> tuple[list[Found], list[str]]:
    """NVIDIA's GPUs by NVML, and notes about them; none when nvidia-ml-py or the driver is not there.

    ``host``: for GPUs that share the host's memory, which NVML gives no figures for.
    """
    try:
        import pynvml
    except ImportError:
        return [], []
    nvml: Any = pynvml
    try:
        nvml.nvmlInit()
    except Exception:  # NVMLError's leaves, and OSError from the loader
        return [], []
    try:
        found = [_nvidia(nvml, index, host) for index in range(int(nvml.nvmlDeviceGetCount()))]
    except Exception:
        return [], []
    finally:
        nvml.nvmlShutdown()
    gpus, notes = _visible(found)
    if gpus:
        notes.append(
            f"figures are the driver's, less {CONTEXT_MIB} MiB for a CUDA context; llama-server --list-devices is exact"
        )
    if len({gpu.description for gpu in gpus}) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        notes.append(
            "different GPUs in PCI order; llama.cpp puts the fastest first unless CUDA_DEVICE_ORDER=PCI_BUS_ID is set"
        )
    return gpus, notes


def _nvidia(nvml: Any, index: int, host: tuple[int | None, int | None]) -> tuple[str, Found]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    name = _text(nvml.nvmlDeviceGetName(handle))
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        total, free = int(memory.total), int(memory.free)
    except Exception:  # not supported where memory is unified
        total, free = host[0] or 0, host[1] or 0
    card = find_card(name)
    if card is not None and card.reported and abs(card.total_mib * _MIB - total) < total // 20:
        total = card.total_mib * _MIB  # what CUDA says, a little less than NVML
    free = max(0, min(free, total) - CONTEXT_MIB * _MIB)
    return _text(nvml.nvmlDeviceGetUUID(handle)), Found(name, total, free, "CUDA", (int(major), int(minor)))


def _visible(found: list[tuple[str, Found]]) -> tuple[list[Found], list[str]]:
    """Those that CUDA_VISIBLE_DEVICES leaves, in its order."""
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return [gpu for _, gpu in found], []
    gpus = [found[i][1] for i in visible(wanted, [uuid for uuid, _ in found])]
    return gpus, [f"CUDA_VISIBLE_DEVICES leaves {len(gpus)} of {len(found)} GPUs"] if len(gpus) < len(found) else []


def amd_gpus(root: Path = Path("/")) -> list[Found]:
    """AMD's GPUs by sysfs; an APU has little memory of its own, so what it may take of the host's counts too."""
    found = []
    try:
        cards = [path for path in (root / "sys/class/drm").iterdir() if re.fullmatch(r"card[0-9]{1,4}", path.name)]
        cards.sort(key=lambda path: int(path.name[4:]))
    except OSError:
        return []
    for card in cards:
        device = card / "device"
        total = _number(device / "mem_info_vram_total")
        if _word(device / "vendor") != _AMD or not total:
            continue
        used = _number(device / "mem_info_vram_used") or 0
        name = _word(device / "product_name") or "Radeon"
        name = name if name.upper().startswith("AMD") else f"AMD {name}"
        shared, shares = _number(device / "mem_info_gtt_total") or 0, False
        if shared > total and total < 17 << 30:
            total += shared
            used += _number(device / "mem_info_gtt_used") or 0
            shares = True
        found.append(Found(name, total, max(0, total - used), "ROCm", shares_host=shares))
    return found


def _text(text: Any) -> str:
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)


def _word(path: Path) -> str:
    try:
        return " ".join(path.read_text(encoding="utf-8", errors="replace").split())[:100]
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    word = _word(path)
    return int(word) if word.isascii() and word.isdigit() else None
