"""Which GPUs are there: llama-server is asked first, since its names and order are the ones that matter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from memplan.backends.devices import VULKAN
from memplan.errors import ProgramError
from memplan.machine.detected import Detected, Found, detected
from memplan.machine.drivers import amd_gpus, nvidia_gpus
from memplan.machine.host import host_memory
from memplan.machine.llama_server import command_of, find_all_in_one, find_program, list_devices
from memplan.machine.vulkaninfo import ask_vulkaninfo

NOBODY = "no NVIDIA driver seen through nvidia-ml-py, no AMD GPU in sysfs"
"""Who was asked beside llama-server, for a message."""

WHAT_TO_DO = (
    'name GPUs with --gpu, as in --gpu "2*RTX 3090" (they need not be here), or have them asked: with --server FILE,'
    " the llama-server that will run, or by NVIDIA's driver (pip install 'memplan[nvml]'); --no-gpu is the host alone"
)
"""The note for a machine whose GPUs nobody sees."""


def detect(server: str = "", root: Path = Path("/")) -> Detected:
    """This machine. ``server``: the llama-server to ask; without it one on PATH, then the drivers.

    A machine without a GPU has a rig without one. Raises ProgramError when the ``server`` given cannot be asked.
    """
    host = host_memory(root)
    notes: list[str] = []
    server_says = "no llama-server on PATH"
    program = find_program("llama-server", server) or find_all_in_one()
    if program is not None:
        try:
            found = list_devices(program)
            if found or server:
                source = " ".join([*command_of(program, "llama-server"), "--list-devices"])
                if found:
                    return detected(_with_limits(found), source, host, notes)
                return detected([], f"{source} lists none", host, [*notes, WHAT_TO_DO])
            server_says = f"{program} has no GPU backend, or sees no GPU"
            notes.append(server_says)
        except ProgramError as error:
            if server:
                raise
            server_says = f"llama-server was passed over: {error}"
            notes.append(server_says)
    gpus, about = nvidia_gpus(host)
    if gpus:
        return detected(gpus, "NVML", host, notes + about)
    gpus = amd_gpus(root)
    if gpus:
        return detected(gpus, "AMD sysfs", host, notes)
    return detected([], f"{server_says}, {NOBODY}", host, [*about, WHAT_TO_DO])


def _with_limits(found: list[Found]) -> list[Found]:
    """The same, with what the drivers of Vulkan's devices say, where ``vulkaninfo`` is installed."""
    if not any(gpu.backend == VULKAN for gpu in found):
        return found
    said = {device.name: device.limits for device in ask_vulkaninfo()}
    return [replace(gpu, limits=said.get(gpu.description)) if gpu.backend == VULKAN else gpu for gpu in found]
