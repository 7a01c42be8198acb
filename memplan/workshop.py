"""What estimates for one rig and release share: its devices, where models lie on them, what planners found out."""

from __future__ import annotations

from memplan.backends.buffers import CPU_REPACK
from memplan.backends.cpu import CpuBackend
from memplan.backends.devices import RPC, Rig
from memplan.backends.make import make_backends
from memplan.garbage import make_room
from memplan.ggml.backend import Buffer, BufferType
from memplan.llama.context import Planners
from memplan.llama.flags import Flags
from memplan.llama.placement import Device, Machine, Placement, place, placing
from memplan.llama.refusals import Refusal
from memplan.llama.weights import ModelTensors
from memplan.models.graphs import PartBuffers
from memplan.releases import Release

KEPT_PLACEMENTS = 16
"""Placements that a workshop remembers."""


class Workshop:
    """One rig's devices with one release; ``planners``: what was found out about graphs on them."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.planners: Planners = {}
        self.weights: dict[BufferType, Buffer] = {}
        self.caches: dict[BufferType, Buffer] = {}
        self._placements: dict[tuple[object, ...], tuple[ModelTensors, Placement | Refusal, PlacedBuffers]] = {}

    def place(
        self, tensors: ModelTensors, n_layer_all: int, flags: Flags, mmap: bool = False
    ) -> tuple[Placement | Refusal, PlacedBuffers]:
        """Where a model lies with these flags, remembered for all that differ in other settings alone."""
        key = (id(tensors), n_layer_all, placing(flags), mmap)
        known = self._placements.get(key)
        if known is None or known[0] is not tensors:
            placement = place(tensors.tensors, n_layer_all, flags, self.machine, mmap)
            known = tensors, placement, PlacedBuffers(placement, self)
            make_room(self._placements, KEPT_PLACEMENTS)
            self._placements[key] = known
        return known[1:]


class PlacedBuffers:
    """Where each weight, cache and state lies, by role and layer; nowhere when the model is refused.

    ``parts``: the buffers of parts' leafs (``memplan.ggml.plan.parts``), as they are asked for.
    """

    def __init__(self, placement: Placement | Refusal, workshop: Workshop) -> None:
        self._tensors = {} if isinstance(placement, Refusal) else placement.tensors
        self._weights = workshop.weights
        self._caches = workshop.caches
        self.parts: PartBuffers = {}

    def weight(self, role: str) -> Buffer:
        """The buffer of a weight."""
        buft = self._tensors[role]
        buffer = self._weights.get(buft)
        if buffer is None:
            buffer = self._weights[buft] = Buffer(buft, weights=True)
        return buffer

    def cache(self, buft: BufferType) -> Buffer:
        """A buffer for caches and states of this type."""
        buffer = self._caches.get(buft)
        if buffer is None:
            buffer = self._caches[buft] = Buffer(buft)
        return buffer


KEPT_WORKSHOPS = 4
"""Rigs that are remembered, each with a release."""

_workshops: dict[tuple[object, ...], Workshop] = {}


def workshop(rig: Rig, release: Release, without_ops: tuple[str, ...]) -> Workshop:
    """The workshop for a rig whose GPUs refuse ``without_ops``, remembered as long as it is used again."""
    key = (rig.gpus, release, without_ops)
    found = _workshops.pop(key, None)
    if found is None:
        ops = frozenset(without_ops)
        made = make_backends(rig.gpus, release, ops)
        gpus = tuple(
            Device(
                m.backend,
                gpu.free,
                m.host_buft,
                integrated=gpu.integrated,
                pipelines=m.pipelines,
                remote=gpu.backend == RPC,
            )
            for gpu, m in zip(rig.gpus, made, strict=True)
        )
        found = Workshop(Machine(gpus, Device(CpuBackend(), extra_bufts=(CPU_REPACK,))))
    make_room(_workshops, KEPT_WORKSHOPS)
    _workshops[key] = found
    return found
