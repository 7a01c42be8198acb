"""A multimodal projector (``--mmproj``): its weights, in one buffer on one device.

Follows tools/mtmd/clip.cpp (``clip_ctx``, ``clip_model_loader::load_tensors``), tools/server/server-context.cpp
(``load_model``) and common/arg.cpp, v0.5.0. Its compute buffer, which grows with images, is not modelled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.errors import ModelError, shown
from memplan.ggml.tensor import new_tensor
from memplan.llama.allocation import buffer_bytes
from memplan.models.registry import PROJECTOR
from memplan.result import Estimate

if TYPE_CHECKING:
    from memplan.ggml.tensor import Shape
    from memplan.gguf.header import Header
    from memplan.llama.flags import Flags
    from memplan.llama.placement import Device, Machine
    from memplan.releases import Release


def with_projector(found: Estimate, header: Header, flags: Flags, machine: Machine, release: Release) -> Estimate:
    """The estimate with a projector's weights counted where they lie. Raises ModelError for a file that holds none.

    All that the file holds is taken to be loaded.
    """
    arch = header.metadata.get("general.architecture")
    if arch != PROJECTOR:
        raise ModelError(
            f"--mmproj {shown(header.name)}: architecture {shown(str(arch))} is no projector's, which is {PROJECTOR}"
        )
    device = projector_device(flags, machine, release)
    sizes = []
    for tensor in header.tensors.values():
        ne: Shape = (*tensor.shape, 1, 1, 1, 1)[:4]  # type: ignore[assignment]
        sizes.append(device.buft.alloc_size(new_tensor(tensor.type, *ne)))
    size = buffer_bytes(device.buft, sizes)
    on_host = device is machine.cpu
    devices = tuple(replace(d, projector=size if d.name == device.name else 0) for d in found.devices)
    host = replace(found.host, projector=size if on_host else 0)
    return replace(found, devices=devices, host=host, projector=(device.name, size))


def projector_device(flags: Flags, machine: Machine, release: Release) -> Device:
    """The device of ``--mmproj-device``, else the first of ``-dev``, else the first GPU with memory of its own."""
    if not flags.projector_offload or flags.projector_device == "none":
        return machine.cpu
    named = flags.projector_device
    if named is None and release.projector_follows_devices and flags.devices:
        named = flags.devices[0]
    if named is None:
        return min(machine.gpus, key=lambda d: (d.integrated, d.remote), default=machine.cpu)
    return next(d for d in machine.gpus if d.name == named)  # ``check_devices`` has seen to it
