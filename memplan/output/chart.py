"""What a plot shows, as data: panels of stacked bands or of lines, capacities, and marks where something ends.

Made from a sweep without any library for drawing; ``memplan.output.plot`` and ``memplan.output.terminal_plot`` draw it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

from memplan.errors import FlagError
from memplan.llama.memory.kv import CELL_PADDING
from memplan.output import chart_words as words
from memplan.output.chart_words import gib
from memplan.output.strokes import stroke_of
from memplan.output.table import BESIDE, PARTS
from memplan.output.words import card_name, printable, tokens_label
from memplan.result import DeviceUse, Estimate, HostUse
from memplan.sweeping.axes import Axis, Value
from memplan.sweeping.crossing import HOST, Crossing, crossing
from memplan.sweeping.sweep import Sweep, Sweeper

BANDS = {name: field for field, *_, name in PARTS}
"""What a device's memory holds, from the bottom up, and the field that has it."""

STACK, LINES = "stack", "lines"
MOST_PANELS = 12
MOST_LINES = 16
HEADROOM = 1.3
"""How far above the capacity a picture goes, at most: what needs more leaves it at the top."""


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
    """What may be filled, as a level: what is free on the device, less its reserve.

    ``line``: the one that it holds for; None for all.
    """

    bytes: int
    label: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """The last or first value that fits on a device: at ``x``, on the level ``y`` of a capacity.

    ``line``: None for the stack.  ``whole``: whether it is that of all devices together; the others fit less.
    """

    x: int
    y: int
    label: str
    line: int | None = None
    whole: bool = True


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

    @property
    def top(self) -> int:
        """The highest level to show, bytes: all of it, or somewhat more than there is; some of every line."""
        capacities = [capacity.bytes for capacity in self.capacities]
        highest = max(*self.levels, *capacities, 1) if self.levels or capacities else 1
        if not capacities:
            return highest
        if self.kind == LINES:
            starts = [min(ys) for series in self.series if (ys := [y for y in series.ys if y is not None])]
            least = max(starts, default=0)
        else:
            least = min(self.levels, default=0)
            # where even the least does not fit, cut tops would hide by how much
            least = highest if least > max(capacities) else 0
        return max(min(highest, int(max(capacities) * HEADROOM)), least, *capacities)


@dataclass(frozen=True, slots=True)
class Chart:
    """A whole picture.

    ``title`` asks the question, ``subtitle`` holds every setting.  ``xs``: what was asked for along the bottom.
    ``verdicts``: for each line how far it fits on all devices, which leaves them their reserves; ``answers``: the same
    as a sentence, with what is short beyond.  ``notes``: what else to know.
    """

    title: str
    subtitle: str
    x_label: str
    x_is_context: bool
    xs: tuple[int, ...]
    panels: tuple[Panel, ...]
    verdicts: tuple[str, ...]
    answers: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def in_short(self) -> str:
        """What it answers, in one line."""
        return words.in_short([series.label for series in self.panels[0].series], self.verdicts, self.answers)

    @property
    def shared_scale(self) -> bool:
        """Whether panels can have the same scale: all capacities within a factor of two."""
        levels = [capacity.bytes for panel in self.panels for capacity in panel.capacities]
        return bool(levels) and max(levels) <= 2 * min(levels)


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
    maker = _Maker(sweeper, sweep, at)
    panels = maker.panels()
    keys = list(maker.labels)
    first = sweep.points[0].estimate
    return Chart(
        title=words.title_of(axis, sweep, first),
        subtitle=words.subtitle_of(sweep, maker.others, first, given),
        x_label=words.x_label_of(axis, sweep),
        x_is_context=axis.is_context,
        xs=maker.xs,
        panels=tuple(panels),
        verdicts=tuple(maker.verdict(key) for key in keys),
        answers=tuple(maker.answer(key) for key in keys),
        notes=tuple([*maker.notes, *words.notes_of(sweep)]),
    )


def check_lines(axes: Sequence[Axis], x: Axis) -> int:
    """How many lines a picture of these axes has. Raises FlagError when it could not be read."""
    lines = prod(len(axis.values) for axis in axes if axis is not x)
    if lines > MOST_LINES:
        raise FlagError(f"--over: {lines} lines; a picture shows {MOST_LINES} at most")
    return lines


class _Maker:
    def __init__(self, sweeper: Sweeper, sweep: Sweep, at: int) -> None:
        self.sweeper = sweeper
        self.at = at
        self.axis = sweep.axes[at]
        self.others = [axis for axis in sweep.axes if axis is not self.axis]
        self.varied = [i for i, axis in enumerate(self.others) if len(axis.values) > 1]
        self.kind = LINES if self.varied else STACK
        self.xs = tuple(sorted(x for x in self.axis.values if isinstance(x, int)))
        self.estimates = [point.estimate for point in sweep.points]
        self.step = CELL_PADDING if self.axis.is_context else 1
        self.notes: list[str] = []
        self.ends: dict[tuple[tuple[Value, ...], str], Crossing | None] = {}
        keys = list(dict.fromkeys((*p.values[:at], *p.values[at + 1 :]) for p in sweep.points))
        for key in keys:
            for device in self.devices(self.sweeper.along(at, key).values()):
                self.ends[key, device] = crossing(self.xs, partial(self.ask, key), device, self.step)
        self.labels = self._labels(keys)

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
        if len(names) > MOST_PANELS:
            fullest = sorted(names, key=self._least_left)[:MOST_PANELS]
            others = ", ".join(name for name in names if name not in fullest)
            self.notes.append(f"the {MOST_PANELS} fullest of {len(names)} devices; not shown: {others}")
            names = [name for name in names if name in fullest]
        panels = [self._panel(name) for name in names]
        if self.kind == LINES:
            self._note_doubles(panels)
        return panels

    def _labels(self, keys: Sequence[tuple[Value, ...]]) -> dict[tuple[Value, ...], str]:
        """The lines with their names: those that are the same on all devices, and fit as far, are one."""
        alike: dict[tuple[object, ...], list[tuple[Value, ...]]] = {}
        for key in keys:
            asked = self.asked(key)
            names = self.devices(asked.values())
            rooms = [_room(e, name) for e in asked.values() for name in names]
            same = tuple((free, None if use is None else use.used) for free, use in rooms)
            alike.setdefault((self.verdict(key), *names, *same), []).append(key)
        return {same[0]: " / ".join(map(self._label, same)) for same in alike.values()}

    def _note_doubles(self, panels: Sequence[Panel]) -> None:
        """Say which lines lie under others on some devices."""
        found: dict[tuple[str, ...], list[str]] = {}
        for panel in panels:
            alike: dict[tuple[int | None, ...], list[str]] = {}
            for series in panel.series:
                at_xs = dict(zip(series.xs, series.ys, strict=True))
                alike.setdefault(tuple(at_xs[x] for x in self.xs), []).append(series.label)
            for ys, labels in alike.items():
                if len(labels) > 1 and any(y is not None for y in ys):
                    found.setdefault(tuple(labels), []).append(panel.device)
        for names, devices in found.items():
            self.notes.append(f"one line on {', '.join(devices)}: {'; '.join(names)}")

    def asked(self, key: tuple[Value, ...]) -> dict[int, Estimate]:
        """One line's estimates at the values that were asked for, rising."""
        return {x: e for x, e in self.sweeper.along(self.at, key).items() if x in self.xs}

    def end(self, key: tuple[Value, ...]) -> Crossing | None:
        """Where one line begins or ceases to fit on all devices together; None when it does neither, or not alone."""
        ends = [end for (of, _), end in self.ends.items() if of == key and end is not None]
        # where one device needs more and another less, neither end says it all
        if not ends or len({end.rising for end in ends}) > 1:
            return None
        end = min(ends, key=lambda end: end.x) if ends[0].rising else max(ends, key=lambda end: end.x)
        return end if self.ask(key, end.x).fits_with_reserve else None

    def verdict(self, key: tuple[Value, ...]) -> str:
        """How far one line fits, on all devices."""
        asked = self.asked(key).values()
        if all(e.fits_with_reserve for e in asked):
            return words.THROUGHOUT
        if all(e.refused for e in asked):
            return words.REFUSED
        if not any(e.fits_with_reserve for e in asked):
            return words.TIGHT if any(e.fits for e in asked) else words.NOWHERE
        end = self.end(key)
        return words.IN_PART if end is None else end.words

    def answer(self, key: tuple[Value, ...]) -> str:
        """The same as a sentence."""
        verdict, asked = self.verdict(key), self.asked(key)
        if verdict == words.THROUGHOUT:
            if all(not e.devices and e.host.total is None for e in asked.values()):
                most = gib(max(e.host.used for e in asked.values()))
                return f"needs up to {most} of the host's memory; --host-mib says what it has"
            return f"fits throughout, to {self._value(self.xs[-1])}"
        if verdict == words.REFUSED:
            refused = next(e.refused for e in asked.values() if e.refused)
            return printable(f"llama.cpp does not start: {refused.message}")
        if verdict in (words.TIGHT, words.NOWHERE):
            # what lacks least says how far off it is
            x, least = max(asked.items(), key=lambda item: (item[1].refused is None, self._room_left(item[1])))
            what = "any context" if self.axis.is_context else f"any {words.axis_label(self.axis)}"
            how = "does not fit" if verdict == words.NOWHERE else "is tight"
            return f"{how} with {what} asked for: at best, with {self._value(x)}, {words.shortage(least)}"
        end = self.end(key)
        if end is None:
            fitting = sum(e.fits_with_reserve for e in asked.values())
            return f"fits at {fitting} of the {len(asked)} values"
        along = list(self.sweeper.along(self.at, key))
        at = along.index(end.x)
        beyond = along[at + 1] if end.rising else along[at - 1]
        unfit = self.ask(key, beyond)
        names = " and ".join(d.name for d in unfit.short) or "the host"
        verb = "are" if " and " in names else "is"
        said = f"{names} {verb} short from {beyond:,} on" if end.rising else f"{names} {verb} short up to {beyond:,}"
        if unfit.fits:
            said = f"with {beyond:,}, {words.shortage(unfit)}"
        return f"fits {'to' if end.rising else 'from'} {self._value(end.x)} ({said})"

    def _value(self, x: int) -> str:
        return f"{x:,} tokens" if self.axis.is_context else f"{words.axis_label(self.axis)} {x:,}"

    def _room_left(self, estimate: Estimate) -> int:
        lefts = [device.spare for device in estimate.devices]
        return min([*lefts, *([] if estimate.host.left is None else [estimate.host.left])], default=0)

    def _least_left(self, device: str) -> int:
        left = [free - use.used for free, use in (_room(e, device) for e in self.estimates) if use and free is not None]
        return min(left, default=0)

    def _panel(self, device: str) -> Panel:
        series: list[Series] = []
        capacities: list[Capacity] = []
        marks: list[Mark] = []
        for i, (key, label) in enumerate(self.labels.items()):
            along = self.sweeper.along(self.at, key)
            uses = [_room(e, device)[1] for e in along.values()]
            line = i if self.kind == LINES else None
            own = self._capacity(along.values(), device, line)
            end = self.ends.get((key, device))
            if own and end is not None:
                whole = end == self.end(key)
                said = end.words if whole else f"{device} alone: {end.words.removeprefix('fits ')}"
                marks.append(Mark(end.x, own[0].bytes, said, line, whole))
            capacities += own
            xs = tuple(along)
            if self.kind == LINES:
                ys = tuple(None if use is None else use.used for use in uses)
                stroke = stroke_of([self.others[k] for k in self.varied], [key[k] for k in self.varied], i)
                series.append(Series(label, xs, ys, *stroke))
            else:
                for k, (band, field) in enumerate(BANDS.items()):
                    if field in BESIDE and not any(getattr(e, field) for e in self.estimates):
                        continue
                    parts = tuple([None if use is None else getattr(use, field) for use in uses])
                    series.append(Series(band, xs, parts, k))
        if len({capacity.bytes for capacity in capacities}) == 1:
            capacities = [Capacity(capacities[0].bytes, capacities[0].label)]
        cards = dict.fromkeys(card_name(d.description) for e in self.estimates for d in e.devices if d.name == device)
        title = "  ".join([device, " or ".join(cards)]).strip()
        verdict = self._left(device) if self.kind == STACK else ""
        return Panel(device, title, verdict, self.kind, tuple(series), tuple(capacities), tuple(marks))

    def _left(self, device: str) -> str:
        """What is left on the device with the largest value, or how much it is short; how far short it always is."""
        places = []
        tight = False
        for x in self.xs:
            free, use = _room(self.ask(next(iter(self.labels)), x), device)
            if free is not None and use is not None:
                places.append((x, free - use.used))
                tight = isinstance(use, DeviceUse) and use.left >= 0 > use.spare
        if not places or (places[-1][0] != self.xs[-1] and places[-1][1] >= 0):
            return ""
        (first, least), (last, most) = places[0], places[-1]
        if all(left < 0 for _, left in places) and least != most:
            return f"short throughout: {gib(-least)} at {self._tick(first)}, {gib(-most)} at {self._tick(last)}"
        left = f"{gib(abs(most))} {'left' if most >= 0 else 'short'} at {self._tick(last)}"
        return f"{left}, less than the reserve" if tight else left

    def _tick(self, x: int) -> str:
        return tokens_label(x) if self.axis.is_context else f"{x:,}"

    def _capacity(self, estimates: Iterable[Estimate], device: str, line: int | None) -> list[Capacity]:
        for e in estimates:
            if device == HOST and e.host.total is not None:
                return [Capacity(e.host.total, f"{gib(e.host.total)} of memory", line)]
            for d in e.devices:
                if d.name == device:
                    less = f" less {d.reserve / (1 << 30):.2g} reserve" if d.reserve else ""
                    return [Capacity(d.free - d.reserve, f"{gib(d.free)} free{less}", line)]
        return []

    def _label(self, key: tuple[Value, ...]) -> str:
        first = next(iter(self.sweeper.along(self.at, key).values()))
        return ", ".join(words.value_label(self.others[i], key[i], first) for i in self.varied)


def _room(estimate: Estimate, device: str) -> tuple[int | None, DeviceUse | HostUse | None]:
    """What a device has free, and what is allocated there; None for what is not known."""
    if device == HOST:
        return estimate.host.total, None if estimate.refused else estimate.host
    for d in estimate.devices:
        if d.name == device:
            return d.free, None if estimate.refused else d
    return None, None
