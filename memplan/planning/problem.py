"""What a plan has to solve, and one answer to it that fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from memplan.backends.devices import Rig
from memplan.errors import BadHyperParameter
from memplan.estimator import model_of
from memplan.llama.flag_fields import same_setting
from memplan.llama.flags import DEFAULT_FIT_TARGET, Flags
from memplan.planning.layout import Layout
from memplan.planning.speed import Bandwidths, find_bandwidths
from memplan.question import Question
from memplan.result import Estimate
from memplan.rig import MIB

MOST_LAYERS: Final = 140
"""Layers of the longest model that is planned: more than any has, and some seconds where all are unlike."""


def check_layers(question: Question) -> None:
    """Raises BadHyperParameter for a model of more layers than are planned."""
    n_layer = model_of(question).hparams.n_layer
    if n_layer > MOST_LAYERS:
        raise BadHyperParameter(f"{n_layer} layers: what would fit is looked for up to {MOST_LAYERS}")


@dataclass(frozen=True, slots=True)
class Problem:
    """A question whose flags the user fixed, bytes to leave on each of the rig's GPUs, and how fast memory is."""

    question: Question
    margins: tuple[int, ...]
    bandwidths: Bandwidths

    @classmethod
    def of(cls, question: Question, margins: Sequence[int] | None = None) -> Problem:
        """With the rig's own bandwidths and, if no ``margins`` are given, the default ones. Raises FlagError."""
        rig = question.rig
        chosen = default_margins(question) if margins is None else tuple(margins)
        return cls(question, chosen, find_bandwidths(rig.gpus, (), rig.host_bandwidth, rig.unified))

    @property
    def flags(self) -> Flags:
        """llama-server's flags."""
        return self.question.flags

    @property
    def rig(self) -> Rig:
        """The GPUs."""
        return self.question.rig

    def with_words(self, *words: str) -> Problem:
        """The same with more of llama-server's words."""
        return replace(self, question=self.question.with_words(*words))

    def with_flags(self, flags: Flags) -> Problem:
        """The same with other flags."""
        return replace(self, question=replace(self.question, flags=flags))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout that fits: its flags, its exact estimate, and its price (``LayerPartitioner.price``)."""

    layout: Layout
    args: tuple[str, ...]
    estimate: Estimate
    price: float

    @property
    def weights(self) -> int:
        """Bytes of weights on GPUs."""
        return gpu_weights(self.estimate)

    @property
    def compute(self) -> int:
        """Bytes of all GPUs' compute buffers."""
        return sum(device.compute for device in self.estimate.devices)


def gpu_weights(found: Estimate) -> int:
    """Bytes of weights on GPUs."""
    return sum(device.model for device in found.devices)


def leaves_margins(found: Estimate, margins: Sequence[int]) -> bool:
    """Whether llama.cpp starts, the host's memory is enough, and every GPU in use keeps its margin."""
    return fits_gpus(found, margins) and not found.host_lacks


def fits_gpus(found: Estimate, margins: Sequence[int]) -> bool:
    """Whether llama-server starts, and every GPU in use keeps its margin."""
    if found.refused is not None or found.draft_refused is not None:
        return False
    return all(d.used == 0 or d.left >= margin for d, margin in zip(found.devices, margins, strict=True))


def default_margins(question: Question) -> tuple[int, ...]:
    """Bytes to leave on each GPU: what ``--fit-target`` says where it is given, else the reserve.

    As in llama.cpp, GPUs for which several values say nothing keep the default.
    """
    if not same_setting("--fit-target") & question.flags.given:
        return question.reserves
    mibs, gpus = question.flags.fit_target, len(question.rig.gpus)
    return tuple(mib * MIB for mib in (*mibs, *(mibs if len(mibs) == 1 else DEFAULT_FIT_TARGET) * gpus)[:gpus])
