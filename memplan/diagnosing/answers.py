"""Estimates for the loads of a log, remembered: a service that restarts finds other free memory, and little else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from memplan.backends.devices import Rig
from memplan.errors import LogError
from memplan.estimator import answer, model_of, workshop_of
from memplan.llama.override_use import WeightUse
from memplan.llama.placement import Placement, place, place_layers, select_devices, split_points
from memplan.notes import settings_notes
from memplan.question import Question
from memplan.result import Estimate

MOST: Final = 60
"""Estimates that are made for one log: a load that failed takes some dozen, another one or two."""

MOST_NODES: Final = 700_000
"""Nodes of their graphs together: some six seconds at most, where nothing is known of one from another."""

_REFUSED: Final = 20_000
"""Nodes that an estimate without a graph counts as."""

MOST_PLACED: Final = 500_000
"""Tensors that are placed to find where weights lie: a second or two at most; a guess takes a dozen of a model."""


class TooMuchWork(LogError):
    """More is asked about a log than is done for one."""


@dataclass(slots=True)
class Answers:
    """What was asked before. Two rigs that differ in free memory alone share an answer if layers lie alike on both."""

    _known: dict[object, tuple[Estimate, WeightUse]] = field(default_factory=dict)
    _rigs: dict[object, Rig] = field(default_factory=dict)
    spent: int = 0
    """Nodes of the estimates so far."""
    placed: int = 0
    """Tensors that were placed without one."""

    def ask(self, question: Question, *, seeking: bool = False) -> Estimate:
        """The estimate. Raises what ``memplan.estimate`` raises, and TooMuchWork.

        ``seeking``: it is one of many guesses, for which half of what can be done is kept free.
        """
        shape = _shape(question)
        key = (question.with_(rig=shape[0]), shape)
        known = self._known.get(key)
        if known is None:
            parts = 2 if seeking else 1
            if len(self._known) >= MOST // parts or self.spent >= MOST_NODES // parts:
                raise TooMuchWork("the log takes more estimates than are made for one; cut out the load in question")
            # planners are kept with a rig: the first of this shape has made some
            found = answer(question.with_(rig=self._rigs.setdefault(shape, question.rig)))
            known = self._known[key] = found.estimate, found.weight_use
            self.spent += max(found.estimate.nodes) or _REFUSED
        estimate, use = known
        devices = tuple(replace(d, free=gpu.free) for d, gpu in zip(estimate.devices, question.rig.gpus, strict=True))
        if devices == estimate.devices:
            return estimate
        moved = replace(estimate, devices=devices)
        return replace(moved, notes=settings_notes(moved, use))

    @property
    def places(self) -> bool:
        """Whether more tensors may be placed."""
        return self.placed < MOST_PLACED

    def weights(self, question: Question) -> Mapping[str, int] | None:
        """Bytes of a model's weights by buffer type; None where llama.cpp would not take them.

        Raises MemplanError for flags that cannot be.
        """
        model = model_of(question)
        self.placed += len(model.tensors.tensors)
        placed = place(model.tensors.tensors, model.hparams.n_layer_all, question.flags, workshop_of(question).machine)
        return placed.model if isinstance(placed, Placement) else None


def _shape(question: Question) -> tuple[Rig, tuple[int, ...]]:
    """What of a rig decides the buffers: its GPUs but for what is free on them, and which layer lies where."""
    flags, rig = question.flags, question.rig
    if question.draft is not None:
        return rig, ()  # its layers go by what is free, too
    bare = replace(rig, gpus=tuple(replace(gpu, free=0) for gpu in rig.gpus))
    machine = workshop_of(question.with_(rig=bare)).machine
    gpus = tuple(replace(device, free=gpu.free) for device, gpu in zip(machine.gpus, rig.gpus, strict=True))
    devices = select_devices(flags, replace(machine, gpus=gpus))
    n_layers = model_of(question).hparams.n_layer_all
    n_gpu_layers = flags.n_gpu_layers if flags.n_gpu_layers >= 0 else n_layers + 1
    return bare, tuple(place_layers(n_layers, n_gpu_layers, devices, split_points(devices, flags.tensor_split)))
