"""Words and figures that every output shares."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from memplan.backends.devices import CUDA
from memplan.errors import printable as printable
from memplan.llama.refusals import ABORT
from memplan.result import Estimate

if TYPE_CHECKING:
    from memplan.output.columns import Line

MIB = 1 << 20


def to_text(lines: Iterable[Line], colour: bool = False, width: int | None = None) -> str:
    """The lines as one text that ends in a newline, with terminal escapes if ``colour`` is wanted.

    ``width``: columns that lines and tables are to keep to; None for as wide as they are.
    """
    from rich.console import Console
    from rich.text import Text

    from memplan.output.columns import Columns, wrapped

    out = io.StringIO()
    console = Console(
        file=out,
        width=1000,
        force_terminal=colour,
        color_system="standard" if colour else None,
        no_color=not colour,
        legacy_windows=False,
    )
    for line in lines:
        if isinstance(line, Columns):
            parts = line.lines(width)
        else:
            text = line if isinstance(line, Text) else Text(line)
            parts = [text] if width is None else wrapped(text, width)
        for part in parts:
            part.plain = printable(part.plain)  # a character for each, so styles stay where they are
            console.print(part, soft_wrap=True, highlight=False, markup=False)
    return out.getvalue()


def model_line(estimate: Estimate) -> str:
    """The model: file, parameters, size, architecture."""
    model = estimate.model
    name = re.split(r"[/\\]", model.path)[-1] or model.name
    return f"{name}: {model.parameters / 1e9:,.1f} B parameters, {mib(model.bytes)} MiB ({model.architecture})"


def settings_line(estimate: Estimate) -> str:
    """The program, its release, and how the context is shared."""
    flags = estimate.flags
    word = "slot" if flags.app == "server" else "sequence"
    count = flags.n_parallel
    if count > 1 and flags.kv_unified:
        tokens = f"{estimate.n_ctx:,} tokens shared by {count} {word}s"
    else:
        tokens = f"{count} {word}{'s' * (count > 1)} of {estimate.n_ctx_seq:,} tokens"
    return f"llama-{flags.app} {estimate.llama}: {tokens}, batch {batch_sizes(estimate)}"


def batch_sizes(estimate: Estimate) -> str:
    """Batch and ubatch, as the context limits them."""
    return f"{estimate.n_batch or estimate.flags.n_batch}/{estimate.n_ubatch or estimate.flags.n_ubatch}"


def verdict_line(estimate: Estimate) -> str:
    """Whether it fits, and by how much; or that llama.cpp does not start. One line."""
    refused = estimate.refused
    if refused is not None:
        verb = "aborts" if refused.outcome == ABORT else "refuses to start"
        return f"llama.cpp {verb} with these settings: {printable(refused.title)}"
    if estimate.draft_refused is not None:
        return f"llama-server does not start: {NO_DRAFT}: {printable(estimate.draft_refused.title)}"
    host = estimate.host
    used = [device for device in estimate.devices if device.used]
    if not estimate.fits:
        short = [f"{name} is {mib(size, up=True)} MiB short" for name, size in estimate.shortages]
        if host.left is not None and host.left < 0:
            short[-1] += mapped(estimate)
        if estimate.starts:
            first = estimate.short_at
            since = f" (from {first:,} tokens on)" if first is not None and first < estimate.filled else ""
            lacks = ", ".join(f"{mib(size, up=True)} MiB short on {name}" for name, size in estimate.shortages)
            lacks = lacks or f"{mib(estimate.host_lacks, up=True)} MiB short of the one memory of GPUs and host"
            return f"starts, and is {lacks} once a slot holds {estimate.filled:,} tokens{since}"
        return f"does not fit: {', '.join(short) or none_short(estimate)}"
    if not used:
        unused = "; no GPU is used" if estimate.devices else ""
        return f"needs {mib(host.used)} MiB of the host's memory{unused}"
    tight = min(used, key=lambda device: device.left)
    which = f", the least of {len(used)} GPUs" if len(used) > 1 else ""
    unused = f" ({len(estimate.devices) - len(used)} more not used)" if len(used) < len(estimate.devices) else ""
    unchecked = f"; the host needs {mib(host.used)} MiB (not checked)" if host_unchecked(estimate) else ""
    on = f"{tight.name}{which}{unused}{unchecked}"
    if not estimate.compute_known:
        return f"compute is not modelled: {mib(tight.left)} MiB are left for it on {on}"
    return f"{fits_words(estimate)}: {mib(tight.left)} MiB left on {on}"


NO_DRAFT = "it cannot make the context that drafts"


def none_short(estimate: Estimate) -> str:
    """Why settings do not fit though no memory alone is too small."""
    if estimate.draft_refused is not None:
        return f"llama-server does not start, for {NO_DRAFT}"
    return "GPUs and host together need more than their one memory"


def fits_words(estimate: Estimate) -> str:
    """How an estimate fits: as it is, tightly, or but for what is not modelled."""
    unmodelled = ", but for run time, which is not modelled there" if estimate.unmodelled else ""
    if not estimate.tight:
        return f"fits{unmodelled}"
    most = mib(max(device.reserve for device in estimate.tight))
    if estimate.unmodelled:
        return f"fits{unmodelled}; it is tight, with less left than {most} MiB (--reserve)"
    return f"fits, but is tight, with less left than the {most} MiB that the code of kernels takes (--reserve)"


def mapped(estimate: Estimate) -> str:
    """What it means that the host alone is short, where its weights are pages of the file; else empty.

    Repacked weights are never mapped (llama-model.cpp: load_tensors, v0.5.0).
    """
    host, repacked = estimate.host, estimate.buffers.get("CPU_REPACK")
    short = 0 if host.left is None else -host.left
    pages = host.model - (repacked.model if repacked is not None else 0)
    if estimate.short or estimate.unified or estimate.flags.load_mode not in ("auto", "mmap") or not 0 < short <= pages:
        return ""
    return (
        "; as its weights are mapped (--load-mode), llama.cpp starts all the same and reads from the disk, again and"
        " again, what does not stay in memory"
    )


def host_unchecked(estimate: Estimate) -> bool:
    """Whether much lies in a host's memory of which nobody said how large it is; much: a tenth of the model."""
    host = estimate.host
    return estimate.refused is None and host.total is None and host.used >= estimate.model.bytes // 10


def unchecked(estimate: Estimate) -> bool:
    """Whether nothing was checked: there is no GPU, and nobody said how large the host's memory is."""
    return estimate.refused is None and not estimate.devices and estimate.host.total is None


def host_notes(estimates: Iterable[Estimate]) -> list[str]:
    """That the host's memory is not checked, where that may matter."""
    most = max((e.host.used for e in estimates if host_unchecked(e)), default=0)
    if not most:
        return []
    return [f"not checked: the host, which needs up to {mib(most)} MiB; --host-mib says what it has"]


def outside_buffers(estimates: Iterable[Estimate]) -> list[str]:
    """What is outside of buffers and of what kernels take, on the GPUs of some estimates; nothing where none is."""
    names = [device.name for e in estimates if e.refused is None for device in e.devices]
    if any(name.startswith(CUDA) for name in names):
        return ["the CUDA context and the code of kernels (see --reserve)"]
    return ["what the GPU's driver keeps for itself"] if names else []


def scratch_of(devices: Sequence[str]) -> str:
    """That what kernels take on some devices is not counted."""
    return f"the scratch of kernels on {' and '.join(devices)}, for which there is no rule"


def outside_notes(estimates: Iterable[Estimate]) -> list[str]:
    """What several estimates leave out on their GPUs."""
    estimates = [e for e in estimates if e.refused is None]
    outside = outside_buffers(estimates)
    unknown = list(dict.fromkeys(name for e in estimates for name in e.unmodelled))
    return [f"not included: {', '.join([*outside, *([scratch_of(unknown)] if unknown else [])])}"] if outside else []


def card_name(description: str) -> str:
    """The card's name as people say it: ``RTX PRO 6000`` for NVIDIA RTX PRO 6000 Blackwell Workstation Edition."""
    name = printable(description).removeprefix("NVIDIA ").removeprefix("GeForce ")
    return name.removesuffix(" Generation").removesuffix(" Workstation Edition").removesuffix(" Blackwell")


def mib(size: int | None, *, up: bool = False) -> str:
    """``size`` in whole MiB, a shortage rounded away from zero so that it is never shown as less than it is."""
    if size is None:
        return ""
    return f"{-(-size // MIB) if up else size // MIB if size < 0 else (size + MIB // 2) // MIB:,}"


def tokens_label(tokens: int) -> str:
    """A number of tokens as a tick says it: 128K for 131072, 1M for 1048576."""
    for unit, size in (("M", 1 << 20), ("K", 1 << 10)):
        if tokens >= size and tokens % size == 0:
            return f"{tokens // size}{unit}"
    return f"{tokens:,}"
