"""Architectures by name: what ``general.architecture`` says, each in a file of its own, read when it is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from memplan.errors import MissingKey, ModelError, UnsupportedArchitecture, shown
from memplan.gguf.header import Header, names_file
from memplan.llama.keys import Keys
from memplan.models.unmodelled import Unmodelled

if TYPE_CHECKING:
    from memplan.llama.hparams import HParams
    from memplan.models.base import Architecture
    from memplan.releases import Release

PROJECTOR = "clip"
"""What files of multimodal projectors call themselves."""

ARCHITECTURES = (
    "deepseek2",
    "deepseek32",
    "deepseek4",
    "dflash",
    "ernie4_5-moe",
    "gemma3",
    "gemma4",
    "glm-dsa",
    "glm4moe",
    "gpt-oss",
    "kimi-linear",
    "llama",
    "llama4",
    "minimax-m2",
    "minimax-m3",
    "mistral3",
    "mistral4",
    "nemotron_h",
    "nemotron_h_moe",
    "phi3",
    "qwen3",
    "qwen35",
    "qwen35moe",
    "qwen3moe",
    "qwen3next",
    "step35",
)
"""Those that are modelled; each is ``ARCHITECTURE`` of the module of its name, with ``_`` for ``-``."""


def find_architecture(name: str) -> Architecture[Any]:
    """The architecture of a name, modelled or not."""
    if name not in ARCHITECTURES:
        return Unmodelled(name)
    found: Architecture[Any] = import_module(f"memplan.models.{name.replace('-', '_')}").ARCHITECTURE
    return found


@names_file
def architecture(header: Header) -> Architecture[Any]:
    """The architecture that a header names.

    Raises:
        UnsupportedArchitecture: one of something else than language models.  MissingKey: there is none.
        ModelError: a projector's.
    """
    name = header.metadata.get("general.architecture")
    if name is None:
        raise MissingKey("metadata key general.architecture is missing; is this a model, and its first shard?")
    if name == PROJECTOR:
        raise ModelError("holds a projector, which goes with a model: give it with --mmproj")
    if name not in ARCHITECTURES and f"{name}.embedding_length" not in header.metadata:
        listed = "memplan models lists models of those that are"
        raise UnsupportedArchitecture(f"architecture {shown(str(name))} is not modelled; {listed}")
    return find_architecture(str(name)).of_file(header)


@names_file
def load_hparams(
    header: Header, kv_overrides: Iterable[tuple[str, int | float | bool | str]], release: Release
) -> HParams:
    """The hyper-parameters of ``header``'s model; ``kv_overrides``: what ``--override-kv`` puts in the file's place.

    Raises UnsupportedArchitecture, MissingKey, BadHyperParameter.
    """
    arch = architecture(header)
    hp: HParams = arch.load_hparams(Keys(header, arch.name, kv_overrides), release)
    return hp
