"""What is alive in a compute buffer, node by node: the data, and the figure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from memplan.explaining.result import ComputeBuffer, Explanation, Placed
from memplan.output.chart_words import DOT, model_name, rig_name
from memplan.output.explain_words import chunks_line, verdict
from memplan.output.figures import (
    DARK,
    EDGE,
    LIGHT,
    Theme,
    draw_headings,
    dress,
    fit_headings,
    gib_ticks,
    halo,
    new_figure,
    size_labels,
)
from memplan.output.lettering import LINE, Ruler, plain_text
from memplan.output.words import batch_sizes, mib, printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMED = 6
"""Groups of tensors that get a colour of their own; the rest share one."""
REST = "everything else"
MOST = 4
"""Devices in one picture: those with the largest buffers."""
COLUMNS = 640
"""Columns that a graph is drawn in: what is alive for one node alone must still be seen."""
AROUND = 45
"""Nodes before and after the peak in the picture of its surroundings."""

WIDTH, LEFT, RIGHT = 8.0, 0.68, 5.92
"""Inches of a picture, and where its panels begin and end."""

_TITLE = 8.5
_NOTE = 7.5
_KEY = WIDTH - EDGE - RIGHT - 0.35
"""Type of what stands above a panel and at the foot, and room for a name in a panel's key."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """One device's buffer over the nodes of the graph.

    ``labels``: what the bands are.  ``bands``: bytes of each at every node.  ``reach``: how far the buffer is filled at
    every node, gaps included, all chunks together; ``node``: where it is filled farthest. That is the ``size`` of a
    buffer of one chunk; several chunks are fullest at nodes of their own, so no node need fill them all.
    ``peak_label``: which tensor decides.
    """

    device: str
    size: int
    labels: tuple[str, ...]
    bands: tuple[tuple[int, ...], ...]
    reach: tuple[int, ...]
    node: int
    peak_label: str


@dataclass(frozen=True, slots=True)
class TimelineChart:
    """A whole picture: one timeline a device.

    ``title`` asks the question, ``subtitle`` holds every setting; ``notes``: why it is not exact, what is not shown.
    """

    title: str
    subtitle: str
    nodes: int
    timelines: tuple[Timeline, ...]
    notes: tuple[str, ...] = ()


def timeline_chart(x: Explanation, device: str = "", given: Sequence[str] = ()) -> TimelineChart:
    """The timelines of an explanation: of one device, or of those with the largest buffers.

    ``given``: llama-server's flags as they were given, for the subtitle.
    """
    estimate = x.estimate
    filled = [buffer for buffer in x.buffers if buffer.peak is not None]
    gpus = [buffer for buffer in filled if buffer.device != "CPU"]
    buffers = [buffer for buffer in filled if buffer.device == device] if device else gpus or filled
    largest = sorted(buffers, key=lambda buffer: -buffer.bytes)[:MOST]
    flags = estimate.flags
    slots = f"{flags.n_parallel} slot{'s' * (flags.n_parallel > 1)}"
    settings = [
        f"llama-{flags.app} {estimate.llama}",
        printable(" ".join(given)),
        *(f"GPUs without {op}" for op in estimate.without_ops),
        f"{estimate.n_ctx:,} tokens, {slots}, batch {batch_sizes(estimate)}",
        f"prompt graph of {estimate.nodes[0]:,} nodes",
    ]
    notes = [f"not exact: {estimate.approximate}"] if estimate.approximate else []
    if len(buffers) > MOST:
        others = ", ".join(_name(b) for b in buffers if b not in largest)
        notes.append(f"the {MOST} largest of {len(buffers)} buffers; not shown: {others} (--device shows one)")
    return TimelineChart(
        title=f"What fills the compute buffer? {model_name(estimate)} on {rig_name(estimate)}",
        subtitle=DOT.join(part for part in settings if part),
        nodes=estimate.nodes[0],
        timelines=tuple(_timeline(b, estimate.nodes[0]) for b in buffers if b in largest),
        notes=tuple(notes),
    )


def _name(buffer: ComputeBuffer) -> str:
    return buffer.device if buffer.device == buffer.buffer else f"{buffer.device} ({buffer.buffer})"


def _timeline(buffer: ComputeBuffer, nodes: int) -> Timeline:
    names = [group.base for group in buffer.groups[:NAMED]]
    bands = {label: _alive([p for p in buffer.tensors if p.base == label], nodes) for label in names}
    bands[REST] = _alive([p for p in buffer.tensors if p.base not in names], nodes)
    # what lives long lies at the bottom
    labels = [*sorted(names, key=lambda label: -sum(bands[label])), REST]
    reach = _reach(buffer, nodes)
    peak = buffer.peak
    alone = peak is not None and len(buffer.peaks) == 1
    return Timeline(
        device=_name(buffer),
        size=buffer.bytes,
        labels=tuple(labels),
        bands=tuple(bands[label] for label in labels),
        reach=reach,
        node=max(peak.node, 0) if peak is not None and alone else reach.index(max(reach)),
        peak_label=verdict(buffer).partition("; ")[0] + ("" if alone else f"; {chunks_line(buffer)}"),
    )


def _alive(tensors: Sequence[Placed], nodes: int) -> tuple[int, ...]:
    changes = [0] * (nodes + 2)
    for p in tensors:
        start = max(p.first, 0)
        changes[start] += p.bytes
        changes[_end(p, start)] -= p.bytes
    return tuple(accumulate(changes[:nodes]))


def _reach(buffer: ComputeBuffer, nodes: int) -> tuple[int, ...]:
    """How far the chunks are filled at every node, all together."""
    chunks = [_filled([p for p in buffer.tensors if p.chunk == peak.chunk], nodes) for peak in buffer.peaks]
    return tuple(map(sum, zip(*chunks, strict=True)))


def _filled(tensors: Sequence[Placed], nodes: int) -> list[int]:
    """The highest byte of one chunk in use at every node."""
    starts: dict[int, list[Placed]] = {}
    for p in tensors:
        starts.setdefault(max(p.first, 0), []).append(p)
    heap: list[tuple[int, int]] = []
    reach = []
    for node in range(nodes):
        for p in starts.get(node, ()):
            heappush(heap, (-(p.offset + p.bytes), _end(p, node)))
        while heap and heap[0][1] <= node:
            heappop(heap)
        reach.append(-heap[0][0] if heap else 0)
    return reach


def _end(p: Placed, start: int) -> int:
    """The first node at which it is gone."""
    return max(p.last, start) + 1


def timeline_figure(chart: TimelineChart, *, dark: bool = False) -> Figure:
    """The figure: bands of what is alive, how far the buffer is filled, its size as a line, the peak marked."""
    theme = DARK if dark else LIGHT
    figure = new_figure(WIDTH, 4.5, theme)
    with plain_text():
        _fill(figure, chart, theme)
    return figure


def _fill(figure: Figure, chart: TimelineChart, theme: Theme) -> None:
    """Panels one below the other, each with its key at the right; lengths are inches."""
    ruler = Ruler(figure)
    timelines = chart.timelines
    palette = _colours(timelines, theme)
    rows = [(timeline, 0, chart.nodes, f"{timeline.device}: {timeline.peak_label}") for timeline in timelines]
    if len(rows) == 1:
        peak = timelines[0].node
        start, end = max(0, peak - AROUND), min(chart.nodes, peak + AROUND)
        rows.append((timelines[0], start, end, f"{timelines[0].device}, nodes {start:,} to {end:,}"))
    heads = fit_headings(chart.title, chart.subtitle, WIDTH, ruler)
    # figures stay with their units
    kept = [re.sub(r"(?<=[0-9]) (?=MiB|%)", "\N{NO-BREAK SPACE}", title) for _, _, _, title in rows]
    titles = [ruler.wrapped(title, WIDTH - LEFT - EDGE, _TITLE, most=4) for title in kept]
    keys = [["\n".join(ruler.wrapped(label, _KEY, 8.0, most=3)) for label in timeline.labels] for timeline, *_ in rows]
    # a key of many long names needs the height
    tall = [max(1.9, 0.05 + 13.5 / 72 + sum(8 * LINE * (1 + k.count("\n")) + 4 / 72 for k in key)) for key in keys]
    notes = [line for note in chart.notes for line in ruler.wrapped(note, WIDTH - 2 * EDGE, _NOTE, most=4)]
    foot = len(notes) * _NOTE * LINE + (0.06 if notes else 0)
    height = heads.height + sum(tall) + sum(len(title) * _TITLE * LINE + 0.46 for title in titles) + 0.32 + foot
    figure.set_size_inches(WIDTH, height)
    draw_headings(figure, heads, theme)
    y = heads.height
    for (timeline, start, end, _), title, key, panel in zip(rows, titles, keys, tall, strict=True):
        y += 0.18 + len(title) * _TITLE * LINE
        axes = figure.add_axes((LEFT / WIDTH, 1 - (y + panel) / height, (RIGHT - LEFT) / WIDTH, panel / height))
        _draw(axes, timeline, (start, end), key, palette, theme, ruler)
        axes.set_title("\n".join(title), color=theme.text, fontsize=_TITLE, loc="left", pad=6)
        y += panel + 0.28
    for k, line in enumerate(reversed(notes)):
        figure.text(EDGE / WIDTH, (0.05 + k * _NOTE * LINE) / height, line, color=theme.muted, fontsize=_NOTE,
                    va="bottom")  # fmt: skip
    figure.text((LEFT + RIGHT) / 2 / WIDTH, (0.08 + foot) / height, "node of the graph, in the order they are computed",
                color=theme.muted, fontsize=8.5, ha="center", va="bottom")  # fmt: skip


def _colours(timelines: Sequence[Timeline], theme: Theme) -> dict[str, str]:
    """A colour for each tensor, the same in all panels; one is used again only by tensors of other panels."""
    found: dict[str, str] = {REST: theme.rest}
    for timeline in timelines:
        taken = {found[label] for label in timeline.labels if label in found}
        new = [label for label in timeline.labels if label not in found]
        seldom = sorted(theme.lines, key=list(found.values()).count)
        found |= zip(new, [colour for colour in seldom if colour not in taken], strict=False)
    return found


def _draw(
    axes: Any,
    timeline: Timeline,
    nodes: tuple[int, int],
    names: Sequence[str],
    colours: Mapping[str, str],
    theme: Theme,
    ruler: Ruler,
) -> None:
    dress(axes, theme)
    start, end = nodes
    xs, bands, reach = _thinned(timeline, start, end)
    axes.fill_between(xs, reach, step="post", color=theme.gaps, linewidth=0, label="gaps between them")
    base = [0] * len(xs)
    for label, name, band in zip(timeline.labels, names, bands, strict=True):
        top = [a + b for a, b in zip(base, band, strict=True)]
        axes.fill_between(xs, base, top, step="post", color=colours[label], linewidth=0, label=name)
        base = top
    size = timeline.size
    axes.set_xlim(start, max(end, start + 1))
    axes.set_ylim(0, size * 1.2)
    ticks = gib_ticks(0, int(size * 1.05), most=6)
    axes.set_yticks(ticks, size_labels(ticks, in_mib=True))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.axhline(size, color=theme.limit, linewidth=1.2, linestyle=(0, (4, 2)), label="_size")
    most = timeline.reach[timeline.node]
    axes.plot([timeline.node], [most], marker="v", markersize=7, color=theme.text, label="_peak", clip_on=False,
              zorder=5, markeredgecolor=theme.background)  # fmt: skip
    said = f"fullest at node {timeline.node:,}: {mib(most)} MiB"
    long, at = ruler.width(said, 8.5, True), (RIGHT - LEFT) * (timeline.node - start) / max(end - start, 1)
    left = at + long + 0.2 > RIGHT - LEFT
    axes.annotate(
        said, (timeline.node, most), xytext=(-7 if left else 7, 3), textcoords="offset points", color=theme.text,
        fontsize=8.5, fontweight="bold", bbox=halo(theme), ha="right" if left else "left", va="bottom", zorder=6,
    )  # fmt: skip
    handles, labels = axes.get_legend_handles_labels()
    gaps, *others = zip(handles, labels, strict=True)
    shown = [gaps, *others[::-1]]
    axes.legend(
        [handle for handle, _ in shown], [label for _, label in shown],
        loc="upper left", bbox_to_anchor=(1.02, 1.0), fontsize=8, frameon=False, labelcolor=theme.text,
        handlelength=1.0, handleheight=0.9, borderpad=0.2, borderaxespad=0,
    )  # fmt: skip


def _thinned(timeline: Timeline, start: int, end: int) -> tuple[list[int], list[list[int]], list[int]]:
    """The nodes in so many columns, each standing for the fullest of its nodes; the last one closes the step."""
    width = max(1, -(-(end - start) // COLUMNS))
    columns = range(start, end, width)
    fullest = [max(range(i, min(i + width, end)), key=timeline.reach.__getitem__) for i in columns]
    picked = [*fullest, *fullest[-1:]]
    return [*columns, end], [[band[i] for i in picked] for band in timeline.bands], [timeline.reach[i] for i in picked]
