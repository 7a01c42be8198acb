"""Write the files of presets/, or say which of them are stale: presets.py [--check] [NAME ...]

A file is for llama-server's ``--models-preset``: one model, one rig, a section for each context and number of slots.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP))

from memplan.backends.devices import Rig  # noqa: E402
from memplan.llama.flags import parse_flags  # noqa: E402
from memplan.models.builtin import builtin_header  # noqa: E402
from memplan.output.plan import ini_section, summary  # noqa: E402
from memplan.planning.plan import NoPlan, Plan, make_plan  # noqa: E402
from memplan.planning.problem import Problem, default_margins  # noqa: E402
from memplan.planning.speed import find_bandwidths  # noqa: E402
from memplan.question import Question, reserve_of  # noqa: E402
from memplan.releases import LATEST  # noqa: E402
from memplan.rig import parse_gpus  # noqa: E402

FOLDER = TOP / "presets"


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


def preset_plan(file: PresetFile, n_ctx: int, slots: int) -> Plan | NoPlan:
    """The plan of one section."""
    rig = file.rig.rig()
    bandwidth = (file.rig.gpu_bandwidth,) if file.rig.gpu_bandwidth else ()
    argv = ("-c", str(n_ctx), "-ub", str(UBATCH), "-np", str(slots), "-fa", "on", "-ctk", "f16", "-ctv", "f16")
    bandwidths = find_bandwidths(rig.gpus, bandwidth, file.rig.host)
    question = Question.of(builtin_header(file.model), parse_flags(argv), rig, LATEST)
    return make_plan(Problem(question, default_margins(question), bandwidths))


Section = tuple[int, int, Plan | NoPlan]
"""Tokens of context in all, slots, and the plan."""


def preset_text(file: PresetFile, sections: Sequence[Section]) -> str:
    """The whole file: what it is for, then a section for each context and number of slots."""
    rig = file.rig
    cards = " + ".join(rig.gpus).replace("*", " x ").split(":")[0]
    lines = [
        f"; {file.model} on {cards}, for llama-server --models-preset",
        f"; Made for llama.cpp {LATEST.name} by scripts/presets.py, which writes it anew.",
        "; Free memory was taken to be, in MiB, on each GPU, with what is left of it once the slots are full:",
    ]
    for gpu in rig.rig().gpus:
        left = reserve_of(gpu) >> 20
        lines.append(f";   {gpu.description}: {gpu.free >> 20:,} of {gpu.total >> 20:,}, at least {left:,} left")
    if rig.approximate:
        lines.append(f"; APPROXIMATE: {rig.approximate}.")
    lines.append("; Give each section of your copy its model, or name the sections after models that the server finds.")
    lines.append("version = 1")
    text = "\n".join(lines) + "\n"
    for n_ctx, slots, plan in sections:
        name = section_title(file, n_ctx, slots)
        if isinstance(plan, NoPlan):
            text += f"\n; {name}: {plan.why}\n"
            text += "".join(f";   {change.change} fits\n" for change in plan.nearest)
            continue
        comments = [*summary(plan), f"about {plan.token_ms:.0f} ms a token, by bandwidth alone", *_traded(plan)]
        text += "\n" + "".join(f"; {line}\n" for line in comments) + ini_section(plan, name, None)
    return text


def _traded(plan: Plan) -> Iterator[str]:
    """Layers on the host, and what would spare them."""
    layers = plan.shares[-1].layers if plan.shares else None
    if layers is not None:
        yield f"the first {layers[1]} layers are on the host, caches and all"
        yield from (f"  {change.change} has every layer on a GPU" for change in plan.nearest)


def section_title(file: PresetFile, n_ctx: int, slots: int) -> str:
    """A section's name: the model, the context, the slots."""
    return f"{file.model.replace(':', '-')}-{n_ctx // 1024}k-{slots}-slot{'s' * (slots > 1)}"


def make(file: PresetFile) -> str:
    """The text of one file."""
    sections = [(n_ctx, slots, preset_plan(file, n_ctx, slots)) for n_ctx, slots in SETTINGS]
    return preset_text(file, sections)


def main() -> int:
    """Write what differs; with --check only name it. The exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 when a file is stale")
    parser.add_argument("names", nargs="*", help="only these files")
    options = parser.parse_args()
    files = {file.name: file for file in preset_files()}
    stale = 0
    for name in options.names or files:
        path, text = FOLDER / f"{name}.ini", make(files[name])
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        print(f"{'stale' if options.check else 'wrote'}: {path.name}")
        if not options.check:
            FOLDER.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if not options.names:
        for path in FOLDER.glob("*.ini"):
            if path.stem not in files:
                stale += 1
                print(f"{'not made by this' if options.check else 'removed'}: {path.name}")
                if not options.check:
                    path.unlink()
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
