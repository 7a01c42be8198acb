"""Which of a rig's GPUs llama.cpp sees, and what it takes for free on them, by the environment that it starts in.

Follows CUDA's own reading of ``CUDA_VISIBLE_DEVICES``, ``ggml_vk_instance_init`` (ggml-vulkan.cpp) and
``ggml_backend_cuda_device_get_memory`` (ggml-cuda.cu), v0.5.0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from memplan.backends.devices import CUDA, ROCM, VULKAN, Gpu, Rig
from memplan.errors import RigError, shown

VARIABLES: Final = {
    CUDA: "CUDA_VISIBLE_DEVICES",
    ROCM: "HIP_VISIBLE_DEVICES",
    VULKAN: "GGML_VK_VISIBLE_DEVICES",
}
"""The variable that picks and orders each backend's devices."""

UNIFIED: Final = "GGML_CUDA_ENABLE_UNIFIED_MEMORY"
"""Counts by being there, whatever it is set to."""


def visible(wanted: str, uuids: Sequence[str]) -> list[int]:
    """The devices that ``CUDA_VISIBLE_DEVICES`` leaves, in its order; ``uuids``: that of each, empty where not known.

    As CUDA has it, what follows a wrong entry, or one that was named before, is not seen either.
    """
    seen: list[int] = []
    for word in map(str.strip, wanted.split(",")):
        prefix = word if len(word) > 3 else "none"
        matches = [i for i, uuid in enumerate(uuids) if word == str(i) or (uuid and uuid.startswith(prefix))]
        if len(matches) != 1 or matches[0] in seen:
            break
        seen += matches
    return seen


def rig_seen(rig: Rig, environment: Mapping[str, str]) -> tuple[Rig, list[str]]:
    """The rig as a program sees it that starts with these variables, and what to say of it.

    Raises RigError for devices that are named by what a rig does not know.
    """
    gpus: list[Gpu] = []
    notes: list[str] = []
    for backend in dict.fromkeys(gpu.backend for gpu in rig.gpus):
        own = [gpu for gpu in rig.gpus if gpu.backend == backend]
        variable = VARIABLES.get(backend, "")
        if variable in environment:
            wanted = environment[variable]
            if re.search(r"GPU-|MIG-", wanted):
                raise RigError(f"{variable}={shown(wanted)}: a rig knows no UUIDs; name its cards by their numbers")
            missing = [number for number in re.findall(r"\d{1,9}", wanted) if int(number) >= len(own)]
            if missing and "-" not in wanted:
                raise RigError(
                    f"{variable}={shown(wanted)}: the rig has {len(own)} {backend} devices, numbered from 0, and no"
                    f" {missing[0]}: name all of the machine's, or those it leaves without the variable"
                )
            picked = visible(wanted, [""] * len(own))
            if picked != list(range(len(own))):
                seen = ", ".join(f"{backend}{i} is {own[j].description}" for i, j in enumerate(picked)) or "none"
                notes.append(f"{variable}={wanted} leaves {len(picked)} of {len(own)} {backend} devices: {seen}")
            own = [own[i] for i in picked]
        gpus += own
    return replace(rig, gpus=tuple(gpus)), notes


def with_unified_memory(rig: Rig, free: int | None) -> tuple[Rig, list[str]]:
    """The rig with ``GGML_CUDA_ENABLE_UNIFIED_MEMORY``, and what to say of it.

    CUDA then allocates what the driver moves between a card and the host, and Linux's builds take the host's available
    memory for what is free on each card.  ``free``: that, in bytes. Raises RigError where it is not known.
    """
    cards = [gpu for gpu in rig.gpus if gpu.backend == CUDA]
    if not cards or all(gpu.integrated for gpu in cards):
        return rig, []
    if free is None or rig.host_total is None:
        raise RigError(f"{UNIFIED}: what is free on each GPU is then what the host has available; give --host-mib")
    gpus = tuple(
        replace(gpu, total=max(gpu.total, free), free=free) if gpu.backend == CUDA else gpu for gpu in rig.gpus
    )
    own = sum(gpu.free for gpu in cards)
    note = (
        f"{UNIFIED}: each CUDA device counts the host's memory as free, and host and GPUs together hold"
        f" {rig.host_total + own >> 20:,} MiB; what a card's own memory does not hold is read over the bus, slowly"
    )
    return replace(rig, gpus=gpus, unified=True, host_total=rig.host_total + own), [note]
