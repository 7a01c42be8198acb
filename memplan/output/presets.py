"""A preset file as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memplan.output.plan import ini_section, summary
from memplan.planning.plan import NoPlan, Plan
from memplan.planning.presets import PresetFile
from memplan.question import reserve_of
from memplan.releases import Release

Section = tuple[int, int, Plan | NoPlan]
"""Tokens of context in all, slots, and the plan."""


def preset_text(file: PresetFile, release: Release, sections: Sequence[Section]) -> str:
    """The whole file: what it is for, then a section for each context and number of slots."""
    rig = file.rig
    cards = " + ".join(rig.gpus).replace("*", " x ").split(":")[0]
    lines = [
        f"; {file.model} on {cards}, for llama-server --models-preset",
        f"; Made for llama.cpp {release.name} by scripts/presets.py, which writes it anew.",
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
