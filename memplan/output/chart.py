"""What a plot shows, as data: panels of stacked bands or of lines, capacities, and marks where something ends.

Made from a sweep without any library for drawing; ``memplan.output.plot`` and ``memplan.output.terminal_plot`` draw it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from math import prod

from memplan.errors import FlagError
from memplan.output.words import card_name, printable, tokens_label
from memplan.result import DeviceUse, Estimate, HostUse
from memplan.sweeping.axes import Axis, Value
from memplan.sweeping.crossing import HOST, Crossing, crossing
from memplan.sweeping.largest import CONTEXT_STEP
from memplan.sweeping.sweep import Sweep, Sweeper, SweepPoint

BANDS = ("weights", "context", "compute")
"""What a device's memory holds, from the bottom up."""

STACK, LINES = "stack", "lines"
TIMES = "\N{MULTIPLICATION SIGN}"
MOST_PANELS = {STACK: 6, LINES: 4}
MOST_LINES = 16


@dataclass(frozen=True, slots=True)
class Series:
    """One band or line: ``ys``, bytes, at ``xs``; None where llama.cpp does not start.

    ``colour``, ``style``: which of the palette's colours and strokes; lines that share a value share a colour.
    """

    label: str
    xs: tuple[int, ...]
    ys: tuple[int | None, ...]
    colour: int = 0
    style: int = 0


@dataclass(frozen=True, slots=True)
class Capacity:
    """Memory that is free on the device, as a level: for one line, or for all when ``line`` is None."""

    bytes: int
    label: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """The last or first value that fits: at ``x``, on the level ``y`` of a capacity; ``line``: None for the stack."""

    x: int
    y: int
    label: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Panel:
    """One device: ``series`` stacked (``kind`` STACK) or side by side (LINES); ``verdict``: what is left of it."""

    device: str
    title: str
    verdict: str
    kind: str
    series: tuple[Series, ...]
    capacities: tuple[Capacity, ...]
    marks: tuple[Mark, ...]

    @property
    def levels(self) -> list[int]:
        """All heights that the series reach, bytes: of a stack, its tops."""
        if self.kind == LINES:
            return [y for series in self.series for y in series.ys if y is not None]
        columns = zip(*(series.ys for series in self.series), strict=True)
        return [sum(y or 0 for y in column) for column in columns if None not in column]


@dataclass(frozen=True, slots=True)
class Chart:
    """A whole picture.

    ``title`` asks the question, ``subtitle`` holds every setting.  ``xs``: what was asked for along the bottom.
    ``verdicts``: for each line how far it fits on all devices.  ``notes``: what else to know.
    """

    title: str
    subtitle: str
    x_label: str
    x_is_context: bool
    xs: tuple[int, ...]
    panels: tuple[Panel, ...]
    verdicts: tuple[str, ...]
    notes: tuple[str, ...]


def make_chart(sweeper: Sweeper, sweep: Sweep, x_name: str, given: Sequence[str] = ()) -> Chart:
    """The chart of a sweep along one of its axes: stacks when no other axis varies, else a line for each combination.

    Asks the sweeper for more where a device becomes too small. ``given``: the flags that stay the same, for the
    subtitle. Raises FlagError for an axis without numbers, or for too many lines.
    """
    at = sweep.axis(x_name)
    axis = sweep.axes[at]
    if not axis.is_number or len(axis.values) < 2:
        raise FlagError(f"--x {x_name}: a plot needs a setting with at least two numbers")
    check_lines(sweep.axes, axis)
    keys = list(dict.fromkeys((*p.values[:at], *p.values[at + 1 :]) for p in sweep.points))
    maker = _Maker(sweeper, sweep, at, keys)
    panels = maker.panels()
    first = sweep.points[0].estimate
    return Chart(
        title=_title(axis, sweep, first),
        subtitle=_subtitle(sweep, maker.others, first, given),
        x_label="tokens of context (-c)" if axis.is_context else _axis_label(axis),
        x_is_context=axis.is_context,
        xs=maker.xs,
        panels=tuple(panels),
        verdicts=tuple(maker.verdict(key) for key in keys),
        notes=tuple([*maker.notes, *_notes(sweep.points, axis, at)]),
    )


def check_lines(axes: Sequence[Axis], x: Axis) -> None:
    """Whether a picture of these axes can be read. Raises FlagError."""
    lines = prod(len(axis.values) for axis in axes if axis is not x)
    if lines > MOST_LINES:
        raise FlagError(f"--over: {lines} lines; a picture shows {MOST_LINES} at most")


class _Maker:
    def __init__(self, sweeper: Sweeper, sweep: Sweep, at: int, keys: Sequence[tuple[Value, ...]]) -> None:
        self.sweeper = sweeper
        self.at = at
        self.keys = keys
        self.axis = sweep.axes[at]
        self.others = [axis for axis in sweep.axes if axis is not self.axis]
        self.varied = [i for i, axis in enumerate(self.others) if len(axis.values) > 1]
        self.kind = LINES if self.varied else STACK
        self.xs = tuple(sorted(x for x in self.axis.values if isinstance(x, int)))
        self.estimates = [point.estimate for point in sweep.points]
        self.step = CONTEXT_STEP if self.axis.is_context else 1
        self.notes: list[str] = []
        self.ends: dict[tuple[tuple[Value, ...], str], Crossing | None] = {}
        for key in keys:
            for device in self.devices(self.sweeper.along(at, key).values()):
                self.ends[key, device] = crossing(self.xs, partial(self.ask, key), device, self.step)

    def ask(self, key: tuple[Value, ...], x: int) -> Estimate:
        return self.sweeper.at((*key[: self.at], x, *key[self.at :]))

    @staticmethod
    def devices(estimates: Iterable[Estimate]) -> list[str]:
        """The GPUs, and the host when its memory is known or nothing else is there."""
        found: dict[str, None] = {}
        known = False
        for e in estimates:
            found.update(dict.fromkeys(d.name for d in e.devices))
            known = known or e.host.total is not None
        return [*found, *([HOST] if known or not found else [])]

    def panels(self) -> list[Panel]:
        names = self.devices(self.estimates)
        most = MOST_PANELS[self.kind]
        if len(names) > most:
            self.notes.append(f"the {most} fullest of {len(names)} devices")
            fullest = sorted(names, key=self._least_left)[:most]
            names = [name for name in names if name in fullest]
        panels = [self._panel(name) for name in names]
        if self.kind == LINES:
            self._note_doubles(panels)
        return panels

    def _note_doubles(self, panels: Sequence[Panel]) -> None:
        """Say which lines lie under others, everywhere."""
        alike: dict[tuple[object, ...], list[str]] = {}
        for i, series in enumerate(panels[0].series):
            at_xs = [dict(zip(p.series[i].xs, p.series[i].ys, strict=True)) for p in panels]
            alike.setdefault(tuple(ys[x] for ys in at_xs for x in self.xs), []).append(series.label)
        for labels in alike.values():
            if len(labels) > 1:
                self.notes.append(f"one line for all of these: {'; '.join(labels)}")

    def verdict(self, key: tuple[Value, ...]) -> str:
        """How far one line fits, on all devices."""
        asked = {x: e for x, e in self.sweeper.along(self.at, key).items() if x in self.xs}
        if all(e.fits for e in asked.values()):
            return "fits throughout"
        if all(e.refused for e in asked.values()):
            return "does not start"
        if not any(e.fits for e in asked.values()):
            return "does not fit"
        ends = [end for (of, _), end in self.ends.items() if of == key and end is not None]
        if not ends:
            return "fits in part"
        # where one device needs more and another less, neither end says it all
        end = min(ends, key=lambda end: end.x) if ends[0].rising else max(ends, key=lambda end: end.x)
        alike = len({end.rising for end in ends}) == 1
        return end.words if alike and self.ask(key, end.x).fits else "fits in part"

    def _least_left(self, device: str) -> int:
        left = [free - use.used for free, use in (_room(e, device) for e in self.estimates) if use and free is not None]
        return min(left, default=0)

    def _panel(self, device: str) -> Panel:
        series: list[Series] = []
        capacities: list[Capacity] = []
        marks: list[Mark] = []
        for i, key in enumerate(self.keys):
            along = self.sweeper.along(self.at, key)
            uses = [_room(e, device)[1] for e in along.values()]
            line = i if self.kind == LINES else None
            own = self._capacity(along.values(), device, line)
            end = self.ends.get((key, device))
            if own and end is not None:
                marks.append(Mark(end.x, own[0].bytes, end.words, line))
            capacities += own
            xs = tuple(along)
            if self.kind == LINES:
                ys = tuple(None if use is None else use.used for use in uses)
                series.append(Series(self._label(key), xs, ys, *self._stroke(i, key)))
            else:
                for k, band in enumerate(BANDS):
                    parts = (None if use is None else (use.model, use.context, use.compute)[k] for use in uses)
                    series.append(Series(band, xs, tuple(parts), k))
        if len({capacity.bytes for capacity in capacities}) == 1:
            capacities = [Capacity(capacities[0].bytes, capacities[0].label)]
        cards = dict.fromkeys(card_name(d.description) for e in self.estimates for d in e.devices if d.name == device)
        title = "  ".join([device, " or ".join(cards)]).strip()
        verdict = self._left(device) if self.kind == STACK else ""
        return Panel(device, title, verdict, self.kind, tuple(series), tuple(capacities), tuple(marks))

    def _left(self, device: str) -> str:
        """What is left on the device with the largest value, or how much it is short."""
        x = self.xs[-1]
        free, use = _room(self.ask(self.keys[0], x), device)
        if use is None or free is None:
            return ""
        at = f"at {tokens_label(x)}" if self.axis.is_context else f"at {x:,}"
        return f"{_gib(free - use.used)} left {at}" if free >= use.used else f"{_gib(use.used - free)} short {at}"

    def _capacity(self, estimates: Iterable[Estimate], device: str, line: int | None) -> list[Capacity]:
        for e in estimates:
            if device == HOST and e.host.total is not None:
                return [Capacity(e.host.total, f"{_gib(e.host.total)} of memory", line)]
            for d in e.devices:
                if d.name == device:
                    return [Capacity(d.free, f"{_gib(d.free)} free", line)]
        return []

    def _label(self, key: tuple[Value, ...]) -> str:
        return ", ".join(printable(self.others[i].label(key[i])) for i in self.varied)

    def _stroke(self, i: int, key: tuple[Value, ...]) -> tuple[int, int]:
        """With two varied axes the first gives the colour and the second the stroke."""
        if len(self.varied) != 2:
            return i, 0
        first, second = self.varied
        return self.others[first].values.index(key[first]), self.others[second].values.index(key[second])


def _room(estimate: Estimate, device: str) -> tuple[int | None, DeviceUse | HostUse | None]:
    """What a device has free, and what is allocated there; None for what is not known."""
    if device == HOST:
        return estimate.host.total, None if estimate.refused else estimate.host
    for d in estimate.devices:
        if d.name == device:
            return d.free, None if estimate.refused else d
    return None, None


def _title(axis: Axis, sweep: Sweep, first: Estimate) -> str:
    swept = {other.name for other in sweep.axes}
    name = printable(first.model.path.replace("\\", "/").rsplit("/", 1)[-1].removesuffix(".gguf"))
    where = "" if "gpu" in swept else f" on {rig_name(first)}"
    what = "How much context fits?" if axis.is_context else f"How much memory for which {_axis_label(axis)}?"
    return f"{what} {name}{where}"


def rig_name(estimate: Estimate) -> str:
    """The GPUs in words: twice RTX 3090 + RTX 5090."""
    cards = [card_name(device.description) for device in estimate.devices]
    runs = [(card, len(list(run))) for card, run in groupby(cards)]
    return " + ".join(f"{count}{TIMES} {card}" if count > 1 else card for card, count in runs) or "the host alone"


def _subtitle(sweep: Sweep, others: Sequence[Axis], first: Estimate, given: Sequence[str]) -> str:
    swept = {axis.name for axis in sweep.axes}
    single = [axis for axis in others if len(axis.values) == 1]
    words = [word for axis in single for word in axis.words(axis.values[0])]
    program = "llama.cpp" if first.flags.app not in ("server", "cli") else f"llama-{first.flags.app}"
    releases = {point.estimate.llama for point in sweep.points}
    parts = [f"{program} {first.llama}" if len(releases) == 1 else program]
    parts.append(printable(" ".join([*given, *words])))
    spelt = {"-np", "--parallel"} & ({flag for axis in sweep.axes for flag in axis.flags} | first.flags.given)
    if first.flags.app == "server" and not spelt:
        parts.append(f"{first.flags.n_parallel} slots")
    if "indexer" not in swept:
        parts += [f"GPUs without {op}" for op in first.without_ops]
    parts += [axis.label(axis.values[0]) for axis in single if axis.name in ("gpu", "indexer")]
    return "  ·  ".join(part for part in parts if part)


def _axis_label(axis: Axis) -> str:
    return " ".join(axis.flags) or axis.name


def _notes(points: Sequence[SweepPoint], axis: Axis, at: int) -> list[str]:
    refused: dict[str, int] = {}
    for point in points:
        if point.estimate.refused is not None:
            kind = point.estimate.refused.title
            refused[kind] = refused.get(kind, 0) + 1
    notes = [f"llama.cpp does not start at {n} of {len(points)} points ({kind})" for kind, n in refused.items()]
    return notes + [f"not exact: {why}" for why in dict.fromkeys(p.estimate.approximate for p in points) if why]


def _gib(size: int) -> str:
    return f"{size / (1 << 30):,.1f} GiB"
