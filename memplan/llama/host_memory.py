"""How weights come into the host's memory, as pages of the file or read, and what a copy to a GPU holds meanwhile.

Follows src/llama-model.cpp (``load_tensors``), src/llama-model-loader.cpp (``create_tensor``, ``load_all_data``) and
ggml-vulkan-buffers.cpp (``ggml_vk_buffer_write_2d``, ``ggml_vk_ensure_sync_staging_buffer``), v0.5.0.
"""

from __future__ import annotations

from collections.abc import Sequence

from memplan.gguf.header import Header
from memplan.llama.flags import Flags
from memplan.llama.placement import Device, Placement
from memplan.llama.weights import ModelTensors
from memplan.releases import Release

REPACKED = "CPU_REPACK"
"""Weights that the CPU repacks are never pages of the file."""

_MIB = 1 << 20
_UPLOADS = 4
_DIRECT = 64 * _MIB + 2 * 4096
"""A buffer for direct reads, with a page to align at either end; read otherwise, a buffer takes 1 MiB."""


def maps_file(flags: Flags, devices: Sequence[Device], release: Release) -> bool:
    """Whether weights on the host are pages of the file; left to llama.cpp, not beside a GPU without its own memory.

    ``devices``: the GPUs in use.
    """
    if flags.load_mode == "auto" and release.mmap_asks_devices and any(d.integrated for d in devices):
        return False
    return flags.load_mode in ("auto", "mmap", "mmap+mlock")


def mapped_model(placement: Placement, tensors: ModelTensors, header: Header) -> dict[str, int]:
    """Bytes of a mapped model's buffers, by type: the host's is the range of each file that its weights span.

    Follows ``get_mapping_range`` (src/llama-model-loader.cpp, v0.5.0).
    """
    ranges: dict[int, tuple[int, int]] = {}
    for t in tensors.tensors:
        if placement.tensors[t.role] is placement.cpu.buft:
            info = header.tensors[t.name]
            first, last = ranges.get(info.shard, (info.offset, 0))
            ranges[info.shard] = min(first, info.offset), max(last, info.offset + info.nbytes)
    sizes = {name: size for name, size in placement.model.items() if name != placement.cpu.buft.name}
    span = sum(last - first for first, last in ranges.values())
    return {**sizes, "CPU_Mapped": span} if ranges else sizes


def held_while_loading(flags: Flags, placement: Placement, mapped: bool) -> int:
    """Bytes that a copy of weights to GPUs holds in the host's memory: buffers to upload from, or a whole tensor."""
    held = 0
    for device in placement.devices:
        largest = placement.largest.get(device.buft, 0)
        if not largest or device.name.startswith("MTL"):
            continue
        uploads = device.host_buft is not None and not device.remote
        if mapped:
            # Vulkan's copies go through a buffer that is as large as the tensor; other drivers read the pages
            size = largest if device.name.startswith("Vulkan") and not device.integrated else 0
        elif uploads:
            size = _UPLOADS * (_DIRECT if flags.load_mode == "dio" else _MIB)
        else:
            size = largest
        held = max(held, size)
    return held
