"""Estimates for the loads of a log, remembered: a service that restarts finds other free memory, and little else."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from memplan.backends.devices import Rig
from memplan.estimator import ask, load_model
from memplan.gguf.header import Header
from memplan.llama.flags import Flags
from memplan.llama.override_use import WeightUse
from memplan.llama.placement import place_layers, select_devices, split_points
from memplan.notes import settings_notes
from memplan.releases import Release
from memplan.result import Estimate
from memplan.workshop import workshop


@dataclass(slots=True)
class Answers:
    """What was asked before. Two rigs that differ in free memory alone share an answer if layers lie alike on both."""

    _known: dict[tuple[object, ...], tuple[Header, Estimate, WeightUse]] = field(default_factory=dict)
    _rigs: dict[object, Rig] = field(default_factory=dict)

    def ask(self, header: Header, flags: Flags, rig: Rig, release: Release) -> Estimate:
        """The estimate. Raises what ``memplan.estimate`` raises."""
        shape = _shape(header, flags, rig, release)
        key = (id(header), flags, release, shape)
        known = self._known.get(key)
        if known is None:
            # planners are kept with a rig: the first of this shape has made some
            estimate, question = ask(header, flags, self._rigs.setdefault(shape, rig), release, ())
            known = self._known[key] = header, estimate, question.weight_use()
        _, estimate, use = known
        devices = tuple(replace(d, free=gpu.free) for d, gpu in zip(estimate.devices, rig.gpus, strict=True))
        if devices == estimate.devices:
            return estimate
        moved = replace(estimate, devices=devices)
        return replace(moved, notes=settings_notes(moved, use))


def _shape(header: Header, flags: Flags, rig: Rig, release: Release) -> tuple[object, ...]:
    """What of a rig decides the buffers: its GPUs but for what is free on them, and which layer lies where."""
    bare = replace(rig, gpus=tuple(replace(gpu, free=0) for gpu in rig.gpus))
    machine = workshop(bare, release, ()).machine
    gpus = tuple(replace(device, free=gpu.free) for device, gpu in zip(machine.gpus, rig.gpus, strict=True))
    devices = select_devices(flags, replace(machine, gpus=gpus))
    n_layers = load_model(header, flags, release).hparams.n_layer_all
    n_gpu_layers = flags.n_gpu_layers if flags.n_gpu_layers >= 0 else n_layers + 1
    return bare, tuple(place_layers(n_layers, n_gpu_layers, devices, split_points(devices, flags.tensor_split)))
