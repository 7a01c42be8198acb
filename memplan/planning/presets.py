"""Presets for common rigs: which there are, what is in a file, where the files lie.

A file of ``presets/`` is for llama-server's ``--models-preset``: one model, one rig, a section for each context and
number of slots. ``scripts/presets.py`` writes them all from what stands here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from memplan.backends.devices import Rig
from memplan.errors import SourceError, shown
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.planning.plan import NoPlan, Plan, make_plan
from memplan.planning.problem import Problem, default_margins
from memplan.planning.speed import find_bandwidths
from memplan.question import Question
from memplan.releases import Release
from memplan.rig import parse_gpus


@dataclass(frozen=True, slots=True)
class PresetRig:
    """A rig as people have it.

    ``gpus``: as ``--gpu`` takes them.  ``host``: the host's memory, as ``--host-bandwidth``.  ``approximate``: why the
    figures are not exact there; empty when they are.
    """

    name: str
    gpus: tuple[str, ...]
    host: str = "2xDDR5-5600"
    approximate: str = ""
    gpu_bandwidth: float = 0.0

    def rig(self) -> Rig:
        """Its GPUs."""
        return parse_gpus(self.gpus)


_UNIFIED = "its memory is the host's, and memplan knows {} only approximately: check with --check on the machine itself"

RIGS: tuple[PresetRig, ...] = (
    PresetRig("rtx-3090", ("RTX 3090",)),
    PresetRig("2x-rtx-3090", ("2*RTX 3090",)),
    PresetRig("4x-rtx-3090", ("4*RTX 3090",), "8xDDR4-3200"),
    PresetRig("8x-rtx-3090", ("8*RTX 3090",), "8xDDR4-3200"),
    PresetRig("rtx-4090", ("RTX 4090",)),
    PresetRig("rtx-4090-rtx-3090", ("RTX 4090", "RTX 3090")),
    PresetRig("rtx-5090", ("RTX 5090",)),
    PresetRig("2x-rtx-5090", ("2*RTX 5090",)),
    PresetRig("2x-rtx-3090-rtx-5060-ti-2x-rtx-4060-ti", ("2*RTX 3090", "RTX 5060 Ti", "2*RTX 4060 Ti")),
    PresetRig("rtx-3090-rtx-3060", ("RTX 3090", "RTX 3060")),
    PresetRig("rtx-pro-6000", ("RTX PRO 6000",)),
    PresetRig("2x-rtx-pro-6000", ("2*RTX PRO 6000",), "8xDDR5-4800"),
    PresetRig("h200", ("H200",), "8xDDR5-4800"),
    PresetRig("strix-halo-128gb", ("Strix Halo:110000:108000",), "256", _UNIFIED.format("Vulkan"), 256.0),
    PresetRig("mac-128gb", ("Apple GPU:98304:96000",), "400", _UNIFIED.format("Metal"), 400.0),
)
"""The rigs, GPUs in device order."""

MODELS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("deepseek-v4-flash:antirez-q2", tuple(rig.name for rig in RIGS)),
    (
        "deepseek-v4-flash:mxfp4",
        ("4x-rtx-3090", "8x-rtx-3090", "2x-rtx-5090", "rtx-pro-6000", "2x-rtx-pro-6000", "h200"),
    ),
    ("deepseek-v4-pro:mxfp4", ("8x-rtx-3090", "2x-rtx-pro-6000", "h200")),
)
"""Models, and the rigs that there are files for."""

SETTINGS: tuple[tuple[int, int], ...] = (
    (32768, 1),
    (65536, 1),
    (65536, 4),
    (131072, 1),
    (131072, 4),
    (262144, 1),
    (262144, 2),
    (524288, 4),
    (1048576, 1),
)
"""Tokens of context in all and slots, a section each."""

UBATCH = 512


@dataclass(frozen=True, slots=True)
class PresetFile:
    """One file: ``name`` without its ending, the model, the rig."""

    name: str
    model: str
    rig: PresetRig


def preset_files() -> Iterator[PresetFile]:
    """Every file that there should be."""
    by_name = {rig.name: rig for rig in RIGS}
    for model, rigs in MODELS:
        for rig in rigs:
            yield PresetFile(f"{rig}.{model.replace(':', '-')}", model, by_name[rig])


def preset_plan(file: PresetFile, n_ctx: int, slots: int, release: str | Release) -> Plan | NoPlan:
    """The plan of one section."""
    rig = file.rig.rig()
    bandwidth = (file.rig.gpu_bandwidth,) if file.rig.gpu_bandwidth else ()
    argv = ("-c", str(n_ctx), "-ub", str(UBATCH), "-np", str(slots), "-fa", "on", "-ctk", "f16", "-ctv", "f16")
    bandwidths = find_bandwidths(rig.gpus, bandwidth, file.rig.host)
    question = Question.of(builtin_header(file.model), parse_flags(argv), rig, release)
    return make_plan(Problem(question, default_margins(question), bandwidths))


def presets_folder() -> Path:
    """Where the files lie: in the package, or beside it in a checkout. Raises SourceError."""
    here = Path(__file__).resolve().parent.parent
    for folder in (here / "presets", here.parent / "presets"):
        if folder.is_dir():
            return folder
    raise SourceError("the presets are not installed with this copy of memplan")


def find_preset(name: str) -> Path:
    """The file of a preset, by its name or the beginning of it. Raises SourceError."""
    wanted = name.removesuffix(".ini")
    files = sorted(presets_folder().glob("*.ini"))
    exact = [file for file in files if file.stem == wanted]
    of_rig = [file for file in files if file.stem.split(".")[0] == wanted]
    found = exact or of_rig[:1] or [file for file in files if file.stem.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    if not wanted:
        raise SourceError("which preset? memplan preset list names them all")
    if found:
        more = f" and {len(found) - 4} more" if len(found) > 4 else ""
        raise SourceError(f"preset {shown(name)}: which of {', '.join(file.stem for file in found[:4])}{more}?")
    near = [file.stem for file in files if wanted.lower().replace(" ", "-") in file.stem][:4]
    hint = f"did you mean {' or '.join(near)}? " if near else "there is none; "
    raise SourceError(f"preset {shown(name)}: {hint}memplan preset list names them all")


def about(text: str) -> str:
    """The first line of a preset's header."""
    match = re.match(r"; (.*)", text)
    return match[1] if match else ""
