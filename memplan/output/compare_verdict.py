"""What a comparison comes to: what the releases between its sides changed, and one line at the end."""

from __future__ import annotations

from memplan.comparing.result import Comparison
from memplan.output.words import MIB, host_unchecked, mib, none_short, printable
from memplan.releases import FORKS, Release, changed_between, find_release
from memplan.releases.concerns import concerning
from memplan.result import Estimate

SMALL = MIB // 10
"""Changes of fewer bytes are not counted device by device."""

BACKENDS = {"cuda": "CUDA", "metal": "MTL", "vulkan": "Vulkan", "rpc": "RPC"}
"""Backends whose switches are apart, and how their devices' names begin."""

MOST = 4
"""Devices that are named; of the others their number is said."""


def changed(c: Comparison) -> tuple[Release, ...]:
    """The releases that changed something for memory between the two sides; none if it is one release.

    In the order in which one comes by them from the first side: newest first where the second is older.
    """
    estimates = (c.before.estimate, c.after.estimate)
    devices = {device.name for e in estimates for device in e.devices}
    backends = frozenset(name for name, prefix in BACKENDS.items() if any(d.startswith(prefix) for d in devices))
    before, after = (find_release(e.llama)[0] for e in estimates)
    between = changed_between(before, after, backends)
    return between[::-1] if undone(c) else between


def changed_here(c: Comparison, release: Release) -> str:
    """What a release changed, as far as it concerns the model and the devices of the two sides."""
    estimates = (c.before.estimate, c.after.estimate)
    devices = {device.name for e in estimates for device in e.devices}
    weights = {r.name for side in (c.before, c.after) for r in side.residents if r.kind == "weight"}
    if not weights or len({e.model.architecture for e in estimates}) > 1:
        return release.changed
    return concerning(release.changed, estimates[0].model.architecture, devices, weights)


def undone(c: Comparison) -> bool:
    """Whether the second side is the older release, so that what releases changed is taken back."""
    before, after = (find_release(x.estimate.llama)[0] for x in (c.before, c.after))
    if before.build == after.build:  # a fork and what it was made from
        return before in FORKS and after not in FORKS
    return after.build < before.build


def releases_heading(c: Comparison) -> str:
    """What the words of releases are headed with."""
    if undone(c):
        older, newer = c.after.estimate.llama, c.before.estimate.llama
        return f"What releases changed for memory, newest first: {older} is older than {newer}, so this is undone"
    return "What releases changed for memory (memplan releases)"


def verdict(c: Comparison, name: str) -> str:
    """What the second side, which is called ``name``, takes more or less of, and whether it still fits; one line."""
    before, after = c.before.estimate, c.after.estimate
    refusals = (before.refused, after.refused)
    if refusals[0] is not None and refusals[1] is not None:
        return f"{name}: llama.cpp starts with neither"
    if refusals[1] is not None:
        return f"{name}: llama.cpp no longer starts: {printable(refusals[1].title)}"
    if refusals[0] is not None:
        return f"{name}: llama.cpp starts now; it {'fits' if after.fits else f'does not fit{where_short(after)}'}"
    unchecked = "; the host's memory is not checked" if host_unchecked(after) else ""
    return f"{name}: {_moved(c)}; {_fits(before, after)}{unchecked}"


def _moved(c: Comparison) -> str:
    by_device: dict[str, int] = {}
    for part in c.parts:
        by_device[part.device] = by_device.get(part.device, 0) + part.change
    if not any(part.change for part in c.parts):
        return "the same on every device"
    moved = sorted((item for item in by_device.items() if abs(item[1]) >= SMALL), key=lambda item: -abs(item[1]))
    if not moved:
        return "nearly the same on every device"
    said = [
        f"{_amount(change)} {'more' if change > 0 else 'less'} on {'the host' if name == 'host' else name}"
        for name, change in moved[:MOST]
    ]
    rest = moved[MOST:]
    return ", ".join(said) + (f", and changes on {len(rest)} more" if rest else "")


def _amount(size: int) -> str:
    """Whole MiB, with a tenth where there are few."""
    size = abs(size)
    return f"{size / MIB:,.1f} MiB" if size < 10 * MIB else f"{mib(size)} MiB"


def _fits(before: Estimate, after: Estimate) -> str:
    if after.fits:
        return f"{'still fits' if before.fits else 'fits now'}{', but is tight' if after.tight else ''}"
    when = ", once slots are full: llama.cpp starts" if after.starts else ""
    return f"{'no longer fits' if before.fits else 'still does not fit'}{where_short(after)}{when}"


def where_short(estimate: Estimate) -> str:
    """Which memory is too small for settings that do not fit, and by how much: " on CUDA0 (40 MiB short)"."""
    short = estimate.shortages
    if not short:
        return f": {none_short(estimate)}"
    names = [f"{name} ({mib(size, up=True)} MiB short)" for name, size in short]
    if len(names) > MOST:
        names[MOST:] = [f"{len(names) - MOST} more"]
    return f" on {names[0]}" if len(names) == 1 else f" on {', '.join(names[:-1])} and {names[-1]}"
