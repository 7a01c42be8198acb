"""An estimate as a table, for people: a row a device, a row for the host, and whether it fits.

MiB throughout, as llama.cpp's own log prints them. Colour and box drawing are the caller's to allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from memplan.notes import host_note
from memplan.output.words import (
    MIB,
    card_name,
    mib,
    model_line,
    outside_buffers,
    printable,
    scratch_of,
    settings_line,
    to_text,
    verdict_line,
)
from memplan.output.wrapping import wrap_words
from memplan.result import DeviceUse, Estimate, HostUse

if TYPE_CHECKING:
    from rich.text import Text

PARTS = (
    ("model", "█", "#", "blue", "weights"),
    ("context", "▓", "=", "magenta", "context"),
    ("compute", "▒", "+", "yellow", "compute"),
    ("run_time", "▚", "*", "cyan", "run time"),
    ("draft", "▞", "%", "green", "drafter"),
    ("projector", "▙", "@", "bright_blue", "projector"),
)
"""What a device's memory holds, in order: the field that has it, its signs in a bar, their colour, and its name."""

BESIDE = ("draft", "projector")
"""What is loaded beside the model, and shown only where something is."""


def beside_on_devices(estimates: Iterable[Estimate]) -> list[tuple[str, str, str]]:
    """What devices hold beside buffers, where any does in one of the estimates: its field, colour and name."""
    devices = [device for estimate in estimates for device in estimate.devices]
    fields = ("run_time", *BESIDE)
    return [(f, style, name) for f, *_, style, name in PARTS if f in fields and any(getattr(d, f) for d in devices)]


def render_table(estimate: Estimate, *, width: int = 80, colour: bool = False, unicode: bool = True) -> str:
    """The estimate as text of at most ``width`` columns (never fewer than the figures need), ending in a newline.

    ``colour``: with terminal escapes.  ``unicode``: with block characters and rules.
    """
    width = max(width, 40)
    lines: list[Text | str] = []
    lines += _wrapped(model_line(estimate), width, "bold")
    lines += _wrapped(settings_line(estimate), width)
    if estimate.refused is None:
        lines += ["", *_rows(estimate, width, unicode)]
    lines += [""]
    for text, style in verdict(estimate):
        lines += _wrapped(text, width, style)
    for note in notes(estimate):
        lines += _wrapped(note, width, mark="- ")
    return to_text(lines, colour)


def _rows(estimate: Estimate, width: int, unicode: bool) -> list[Text | str]:
    """The table. Figures are never cut: what does not fit beside them goes, the bar first, then the cards' names."""
    from rich.text import Text

    host = estimate.host
    uses: list[DeviceUse | HostUse] = [*estimate.devices, host]
    figures = [
        ("weights", "blue", [mib(use.model) for use in uses]),
        ("context", "magenta", [mib(use.context) for use in uses]),
        ("compute", "yellow", [mib(use.compute) for use in uses]),
        ("run time", "cyan", _run_times(estimate)),
        ("drafter", "green", [mib(use.draft) for use in uses] if estimate.draft else []),
        ("projector", "bright_blue", [mib(use.projector) for use in uses] if estimate.projector else []),
        ("total", "", [mib(use.total) for use in uses]),
        ("free", "", [*(mib(device.free) for device in estimate.devices), ""]),
        ("left", "green", [mib(use.left) for use in uses]),
    ]
    figures = [column for column in figures if any(column[2])]
    names = [*(device.name for device in estimate.devices), "host"]
    cards = [*(card_name(device.description) for device in estimate.devices), ""]
    gap = 2 if width >= 100 else 1
    name_width = max(map(len, names))
    widths = [max(len(heading), *map(len, cells)) for heading, _, cells in figures]
    spare = width - name_width - sum(gap + w for w in widths)
    card_width = min(max(map(len, cards)), spare - 2 - 10 if spare >= 20 else spare - 2)
    if card_width < 6:
        card_width = 0
    spare -= card_width + 2 if card_width else 0
    bar_width = min(spare - 2, 24) if estimate.devices and spare >= 8 else 0

    def row(name: str, card: str, cells: list[tuple[str, str]], bar: Text | None, style: str = "") -> Text:
        line = Text(f"{name:{name_width}}", style)
        if card_width:
            if len(card) > card_width:
                card = card[: card_width - 1] + ("…" if unicode else "~")
            line.append("  " + card.ljust(card_width))
        for w, (cell, cell_style) in zip(widths, cells, strict=True):
            line.append(" " * gap + cell.rjust(w), "bold red" if cell.startswith("-") else cell_style)
        if bar is not None and bar_width:
            line.append("  ")
            line.append_text(bar)
        line.rstrip()
        return line

    head = row("MiB", "", [(heading, "") for heading, _, _ in figures], Text("used" if bar_width else ""), "bold")
    rule = min(width, len(head) + max(0, bar_width - 4))
    lines: list[Text | str] = [head, ("─" if unicode else "-") * rule]
    for i, name in enumerate(names):
        bar = _bar(estimate.devices[i], bar_width, unicode) if i < len(estimate.devices) else None
        lines.append(row(name, cards[i], [(cells[i], style) for _, style, cells in figures], bar))
    if bar_width:
        lines.append(_legend(estimate, unicode))
    return lines


def _run_times(estimate: Estimate) -> list[str]:
    """What kernels take of each GPU, for a column; nothing where that is not modelled, or not counted."""
    if not any(device.run_time for device in estimate.devices):
        return [""] * (len(estimate.devices) + 1)
    return [*("?" if d.name in estimate.unmodelled else mib(d.run_time) for d in estimate.devices), ""]


def _bar(device: DeviceUse, width: int, unicode: bool) -> Text:
    """The device's free memory as a bar of ``width`` characters, filled by what it holds."""
    from rich.text import Text

    bar = Text()
    scale = max(device.free, device.used, 1)
    done = drawn = 0
    for field, block, ascii_block, style, _ in PARTS:
        done += getattr(device, field)
        end = (done * width + scale // 2) // scale
        bar.append((block if unicode else ascii_block) * (end - drawn), "red" if device.left < 0 else style)
        drawn = end
    bar.append(("░" if unicode else ".") * (width - drawn), "dim")
    return bar


def _legend(estimate: Estimate, unicode: bool) -> Text:
    from rich.text import Text

    legend = Text()
    for field, block, ascii_block, style, name in PARTS:
        if field not in ("run_time", *BESIDE) or any(getattr(device, field) for device in estimate.devices):
            legend.append(block if unicode else ascii_block, style)
            legend.append(f" {name}  ", "dim")
    legend.append(("░" if unicode else ".") + " left of what is free", "dim")
    return legend


def verdict(estimate: Estimate) -> Iterator[tuple[str, str]]:
    """Whether it fits, or why llama.cpp does not start and what mends it: lines, each with its style."""
    refused = estimate.refused or estimate.draft_refused
    style = "bold red" if not estimate.fits else "bold yellow" if estimate.tight else "bold green"
    yield verdict_line(estimate), style
    if refused is not None:
        if refused.title != refused.message:
            yield f"it says: {refused.message}", ""
        if refused.fix:
            yield f"to fix it: {refused.fix}", ""
    if not estimate.exact:
        yield f"not exact: {estimate.approximate}", "yellow"


def notes(estimate: Estimate) -> Iterator[str]:
    """What else to know: of the settings, and of what is not included."""
    yield from estimate.notes
    if estimate.refused is None:
        scratch = scratch_of([*estimate.unmodelled, "the CPU"])
        if not host_note(estimate):  # which says the same
            yield _host_memory(estimate)
        outside = [*outside_buffers([estimate]), scratch, *_beside(estimate)]
        yield f"not included: {', '.join(outside)}"


def _beside(estimate: Estimate) -> Iterator[str]:
    """What is loaded beside the model and is not counted."""
    if estimate.flags.drafting and estimate.draft is None and not estimate.flags.lacks_drafter:
        yield "what drafts, with its cache and buffers"
    if estimate.flags.projector:
        yield "the projector's compute buffer" if estimate.projector else "the projector and its buffers"


def _host_memory(estimate: Estimate) -> str:
    """What the machine must have for it, in all: at the start, and what llama-server may come to keep."""
    host, server, most = estimate.host, estimate.server, estimate.host_most
    said = f"{'one' if estimate.unified else 'host'} memory: {mib(estimate.host_least)} MiB"
    if host.loading >= 64 * MIB:
        said += f" (copies to GPUs hold {mib(host.loading)} while loading)"
    if host.mapped:
        said += f", and {mib(host.mapped)} of weights as pages of the file (--load-mode)"
    kept = [f"up to {mib(server.checkpoints)} of context checkpoints (--ctx-checkpoints)"] if server.checkpoints else []
    if most is None:
        kept.append("a prompt cache without limit (--cache-ram -1)")
    elif server.prompt_cache:
        kept.append(f"up to {mib(server.prompt_cache)} of prompt cache (--cache-ram)")
    more = f"; at work {' and '.join(kept)}" if kept else ""
    total = f": {mib(most)} in all" if most is not None and (kept or host.mapped) else ""
    return f"{said}{more}{total}"


def _wrapped(text: str, width: int, style: str = "", *, mark: str = "") -> list[Text]:
    from rich.text import Text

    text = " ".join(printable(text).split())
    return [Text(line, style) for line in wrap_words(text, min(width, 110), mark, " " * len(mark))]
