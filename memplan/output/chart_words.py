"""What a picture says in words: its title, every setting, how far it fits, and what else to know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from memplan.llama.flag_fields import same_setting
from memplan.output.words import MIB, card_name, host_notes, mib, none_short, outside_notes, printable
from memplan.result import Estimate
from memplan.sweeping.axes import Axis, Value
from memplan.sweeping.effective import is_unfused, remarks
from memplan.sweeping.sweep import Sweep

TIMES = "\N{MULTIPLICATION SIGN}"
DOT = "  \N{MIDDLE DOT}  "

THROUGHOUT = "fits throughout"
IN_PART = "fits at some values"
TIGHT = "is tight at best"
NOWHERE = "does not fit"
REFUSED = "does not start"
"""Verdicts on a line that ends nowhere."""


def title_of(axis: Axis, sweep: Sweep, first: Estimate) -> str:
    """The question: what is varied along the bottom, of which model, on which GPUs."""
    swept = {other.name for other in sweep.axes}
    where = "" if "gpu" in swept else f" on {rig_name(first)}"
    what = "How much context fits?" if axis.is_context else f"How much memory for which {axis_label(axis)}?"
    return f"{what} {model_name(first)}{where}"


def model_name(estimate: Estimate) -> str:
    """The model's file, without folders and ending."""
    return printable(estimate.model.path.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".gguf"))


def rig_name(estimate: Estimate) -> str:
    """The GPUs in words: twice RTX 3090 + RTX 5090."""
    cards = [card_name(device.description) for device in estimate.devices]
    runs = [(card, len(list(run))) for card, run in groupby(cards)]
    return " + ".join(f"{count}{TIMES} {card}" if count > 1 else card for card, count in runs) or "the host alone"


def subtitle_of(sweep: Sweep, others: Sequence[Axis], first: Estimate, given: Sequence[str]) -> str:
    """Every setting that stays the same."""
    swept = {axis.name for axis in sweep.axes}
    single = [axis for axis in others if len(axis.values) == 1]
    words = [word for axis in single for word in axis.words(axis.values[0])]
    program = "llama.cpp" if "app" in swept and "app" not in {a.name for a in single} else f"llama-{first.flags.app}"
    releases = {point.estimate.llama for point in sweep.points}
    parts = [f"{program} {first.llama}" if len(releases) == 1 else program]
    parts.append(printable(" ".join([*given, *words])))
    spelt = same_setting("-np") & ({flag for axis in sweep.axes for flag in axis.flags} | first.flags.given)
    if first.flags.app == "server" and not spelt:
        parts.append(f"{first.flags.n_parallel} slots")
    if not any(axis.is_path for axis in sweep.axes):
        parts += [f"GPUs without {op}" for op in first.without_ops]
    parts += [value_label(axis, axis.values[0], first) for axis in single if axis.name == "gpu" or axis.is_path]
    return DOT.join(part for part in parts if part)


def value_label(axis: Axis, value: Value, estimate: Estimate) -> str:
    """One value in words, as llama.cpp takes it."""
    if is_unfused(axis, value, estimate):
        return f"{axis.label('unfused')} ({estimate.llama} has none)"
    return printable(axis.label(value))


def axis_label(axis: Axis) -> str:
    """The flags of an axis."""
    return " ".join(axis.flags) or axis.name


def x_label_of(axis: Axis, sweep: Sweep) -> str:
    """What runs along the bottom; of a context, how slots share it."""
    if not axis.is_context:
        return axis_label(axis)
    # where slots are varied, a note says it
    started = [point.estimate for point in sweep.points if point.estimate.refused is None]
    varied = any("-np" in same_setting(flag) for other in sweep.axes for flag in other.flags)
    slots = [] if varied else [e.flags for e in started if e.flags.n_parallel > 1]
    shared = {flags.kv_unified for flags in slots}
    how = {True: ", shared by all slots", False: ", of which each slot has its part"}
    return "tokens of context (-c)" + (how[shared.pop()] if len(shared) == 1 else "")


def notes_of(sweep: Sweep) -> list[str]:
    """What llama.cpp refuses or takes otherwise, and what is not counted, not checked or not exact."""
    estimates = [point.estimate for point in sweep.points]
    refused = Counter(e.refused.message for e in estimates if e.refused is not None)
    notes = [
        f"llama.cpp does not start at {n} of {len(estimates)} points: {printable(said)}" for said, n in refused.items()
    ]
    notes += remarks(sweep.axes, [(point.values, point.estimate) for point in sweep.points])
    notes += outside_notes(estimates)
    notes += host_notes(estimates)
    return notes + [f"not exact: {why}" for why in dict.fromkeys(e.approximate for e in estimates if e.approximate)]


def shortage(estimate: Estimate) -> str:
    """Where memory is short and by how much, in GiB; or which GPU keeps less than its reserve."""
    short = estimate.shortages
    if estimate.fits and estimate.tight:
        least = min(estimate.tight, key=lambda device: device.spare)
        return f"{least.name} has {least.left // MIB:,} MiB left, less than its reserve of {mib(least.reserve)}"
    if not short:
        return none_short(estimate)
    more = f", and {len(short) - 2} more" if len(short) > 2 else ""
    return f"{', '.join(f'{name} is {gib(size)} short' for name, size in short[:2])}{more}"


def in_short(labels: Sequence[str], verdicts: Sequence[str], answers: Sequence[str]) -> str:
    """All lines' answers in one line."""
    if len(answers) == 1:
        return answers[0]
    each = "; ".join(f"{label}: {verdict}" for label, verdict in zip(labels, verdicts, strict=True))
    if len(answers) <= 4 and len(each) <= 200:
        return each
    said = []
    for start, verb in (("fits to ", "fit to"), ("fits from ", "fit from")):
        ends = [int(verdict.removeprefix(start).replace(",", "")) for verdict in verdicts if verdict.startswith(start)]
        between = f"{min(ends):,}" if len(set(ends)) == 1 else f"{min(ends):,} ... {max(ends):,}" if ends else ""
        said += [f"{len(ends)} {verb} {between}"] * bool(ends)
    verbs = {
        THROUGHOUT: "fit throughout",
        IN_PART: "fit at some",
        TIGHT: "are tight at best",
        NOWHERE: "do not fit",
        REFUSED: "do not start",
    }
    said += [f"{verdicts.count(verdict)} {verb}" for verdict, verb in verbs.items() if verdict in verdicts]
    return f"of {len(answers)} lines {', '.join(said)}"


def gib(size: int) -> str:
    """Bytes in GiB with one decimal."""
    return f"{size / (1 << 30):,.1f} GiB"
