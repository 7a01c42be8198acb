"""memplan: what llama.cpp will allocate on every device with these flags, from a GGUF header alone.

This is the one public door: every name in ``__all__`` is supported, everything else may change. Names are loaded when
they are first asked for, so importing memplan costs next to nothing.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False  # typing's, without the time that importing it takes
if TYPE_CHECKING:
    from typing import Any

    from memplan.backends.devices import Gpu, Rig
    from memplan.errors import (
        BadHyperParameter,
        BadLength,
        BadMagic,
        BadTensorShape,
        BadValue,
        DuplicateKey,
        DuplicateTensor,
        FlagError,
        HeaderError,
        LogError,
        MemplanError,
        MissingKey,
        MissingShard,
        MissingTensor,
        ModelError,
        OutputError,
        ProgramError,
        RemoteError,
        RigError,
        ShardError,
        ShardMismatch,
        SourceError,
        TruncatedHeader,
        UnknownModel,
        UnknownRelease,
        UnknownTensorType,
        UnknownValueType,
        UnsupportedArchitecture,
        UnsupportedByteOrder,
        UnsupportedVersion,
    )
    from memplan.estimator import estimate
    from memplan.explaining.explain import explain
    from memplan.explaining.result import Explanation
    from memplan.gguf.header import Header, TensorInfo
    from memplan.gguf.types import GGMLType
    from memplan.llama.flags import Flags, parse_flags
    from memplan.llama.refusals import Refusal
    from memplan.models.open import open_model as read_model
    from memplan.planning.api import plan
    from memplan.planning.plan import NoPlan, Plan, Share
    from memplan.planning.probing import Change
    from memplan.releases import RELEASES, Release, find_release
    from memplan.result import BufferUse, DeviceUse, Estimate, HostUse, ModelSummary
    from memplan.rig import parse_gpus
    from memplan.rig_file import load_rig
    from memplan.sweeping.largest import Largest, find_limit
    from memplan.sweeping.sweep import Sweep, SweepPoint, sweep

__all__ = [
    "RELEASES",
    "BadHyperParameter",
    "BadLength",
    "BadMagic",
    "BadTensorShape",
    "BadValue",
    "BufferUse",
    "Change",
    "DeviceUse",
    "DuplicateKey",
    "DuplicateTensor",
    "Estimate",
    "Explanation",
    "FlagError",
    "Flags",
    "GGMLType",
    "Gpu",
    "Header",
    "HeaderError",
    "HostUse",
    "Largest",
    "LogError",
    "MemplanError",
    "MissingKey",
    "MissingShard",
    "MissingTensor",
    "ModelError",
    "ModelSummary",
    "NoPlan",
    "OutputError",
    "Plan",
    "ProgramError",
    "Refusal",
    "Release",
    "RemoteError",
    "Rig",
    "RigError",
    "ShardError",
    "ShardMismatch",
    "Share",
    "SourceError",
    "Sweep",
    "SweepPoint",
    "TensorInfo",
    "TruncatedHeader",
    "UnknownModel",
    "UnknownRelease",
    "UnknownTensorType",
    "UnknownValueType",
    "UnsupportedArchitecture",
    "UnsupportedByteOrder",
    "UnsupportedVersion",
    "__version__",
    "estimate",
    "explain",
    "find_limit",
    "find_release",
    "load_rig",
    "parse_flags",
    "parse_gpus",
    "plan",
    "read_model",
    "sweep",
]

_HOMES = {
    "memplan.estimator": ("estimate",),
    "memplan.explaining.explain": ("explain",),
    "memplan.explaining.result": ("Explanation",),
    "memplan.backends.devices": ("Gpu", "Rig"),
    "memplan.gguf.header": ("Header", "TensorInfo"),
    "memplan.gguf.types": ("GGMLType",),
    "memplan.llama.flags": ("Flags", "parse_flags"),
    "memplan.llama.refusals": ("Refusal",),
    "memplan.planning.api": ("plan",),
    "memplan.planning.nearest": ("Change",),
    "memplan.planning.plan": ("NoPlan", "Plan", "Share"),
    "memplan.releases": ("RELEASES", "Release", "find_release"),
    "memplan.result": ("BufferUse", "DeviceUse", "Estimate", "HostUse", "ModelSummary"),
    "memplan.rig": ("parse_gpus",),
    "memplan.rig_file": ("load_rig",),
    "memplan.sweeping.largest": ("Largest", "find_limit"),
    "memplan.sweeping.sweep": ("Sweep", "SweepPoint", "sweep"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def _load(name: str) -> Any:
    from importlib import import_module

    if name == "read_model":
        return import_module("memplan.models.open").open_model
    return getattr(import_module(_HOME.get(name, "memplan.errors")), name)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'memplan' has no attribute {name!r}")
    value = globals()[name] = _load(name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
