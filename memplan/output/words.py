"""Words and figures that every output shares."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from memplan.result import Estimate

MIB = 1 << 20


def to_text(lines: Iterable[Text | str], colour: bool = False) -> str:
    """The lines as one text that ends in a newline, with terminal escapes if ``colour`` is wanted."""
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
        console.print(line, soft_wrap=True, highlight=False, markup=False)
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
    return f"llama-{flags.app} {estimate.llama}: {tokens}, batch {flags.n_batch}/{flags.n_ubatch}"


def printable(text: str) -> str:
    """``text`` without control characters: names come from files."""
    return "".join(char if char.isprintable() else " " for char in text)


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
