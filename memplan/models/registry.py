"""Architectures by name: what ``general.architecture`` says, and how its graph is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from memplan.errors import MissingKey, UnsupportedArchitecture, shown
from memplan.gguf.header import Header, names_file
from memplan.models.deepseek4.graphs import DeepSeek4

if TYPE_CHECKING:
    from memplan.llama.context import Graphs, Paths
    from memplan.llama.hparams import HParams
    from memplan.llama.kv_cache import Memory
    from memplan.llama.model_tensors import ModelTensors
    from memplan.models.deepseek4.graphs import BufferMap
    from memplan.releases import Release


class ArchitectureModel(Protocol):
    """What an architecture makes of one model's weights, for all estimates of it."""

    def at(self, memory: Memory, buffers: BufferMap, release: Release, paths: Paths) -> Graphs:
        """What builds the model's graphs with its caches, in one placement, along the paths that are asked for."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture and what makes its models."""

    name: str
    model: Callable[[HParams, ModelTensors], ArchitectureModel]


ARCHITECTURES = {a.name: a for a in (Architecture("deepseek4", DeepSeek4),)}


@names_file
def architecture(header: Header) -> Architecture:
    """The architecture that a header names.

    Raises:
        UnsupportedArchitecture: one that is not modelled.  MissingKey: there is none.
    """
    name = header.metadata.get("general.architecture")
    if name is None:
        raise MissingKey("metadata key general.architecture is missing; is this a model, and its first shard?")
    found = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if found is None:
        known = ", ".join(ARCHITECTURES)
        raise UnsupportedArchitecture(f"architecture {shown(str(name))} is not modelled; memplan knows {known}")
    return found
