"""What every picture shares: themes, colours, and how a figure becomes a file. matplotlib is loaded here alone."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from memplan.errors import FlagError, OutputError, shown
from memplan.outfile import Kind, check_output, write_output
from memplan.output.lettering import LINE, Ruler, plain_text
from memplan.output.seal import is_sealed, sealed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS: Final = (".png", ".svg", ".pdf")
_INSTALL: Final = "pip install matplotlib"
DPI: Final = 200
"""Dots an inch of a PNG: a figure of 8 by 4.5 inches is 1600 by 900."""


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of a picture.

    Okabe and Ito's palette, which people with any colour vision can tell apart, in an order whose neighbours also
    differ in brightness, for print.
    """

    background: str
    text: str
    muted: str
    grid: str
    limit: str
    rest: str
    gaps: str
    bands: tuple[str, str, str, str, str, str]
    lines: tuple[str, ...]


LIGHT: Final = Theme(
    background="#ffffff",
    text="#1a1a1a",
    muted="#5f5f5f",
    grid="#e4e4e4",
    limit="#1a1a1a",
    rest="#9a9a9a",
    gaps="#dcdcdc",
    bands=("#0072b2", "#56b4e9", "#e69f00", "#cc79a7", "#00805d", "#d55e00"),
    lines=("#0072b2", "#d55e00", "#00805d", "#cc79a7", "#e69f00", "#56b4e9", "#1a1a1a", "#8c6d00"),
)
DARK: Final = Theme(
    background="#14171c",
    text="#f0f0f0",
    muted="#a8adb5",
    grid="#2b3038",
    limit="#f0f0f0",
    rest="#8a8f98",
    gaps="#3b414b",
    bands=("#0072b2", "#56b4e9", "#e69f00", "#cc79a7", "#00805d", "#d55e00"),
    lines=("#56b4e9", "#e69f00", "#00805d", "#cc79a7", "#f0e442", "#d55e00", "#f0f0f0", "#4f8fd0"),
)

STYLES: Final = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
"""Strokes: the next one when the colours are used up."""


def is_own_figure(file: BinaryIO) -> bool:
    """Whether an open file is a picture as memplan drew it, which nobody has changed since."""
    return is_sealed(file.read(32 << 20))


FIGURE: Final = Kind("picture as memplan draws it", is_own_figure)
"""What ``memplan plot`` and ``explain --timeline`` draw."""


def check_figure_path(path: str, *, force: bool = False) -> None:
    """Whether a picture can be written there, before anything is computed. Raises OutputError or FlagError.

    ``force``: also in place of a file that is no picture of memplan's.
    """
    if Path(path).suffix.lower() not in FORMATS:
        raise FlagError(f"{shown(path)}: a picture's name ends in {', '.join(FORMATS)}")
    check_output(path, FIGURE, force=force)
    if importlib.util.find_spec("matplotlib") is None:
        raise OutputError(f"drawing needs matplotlib: {_INSTALL}, or draw in the terminal: --terminal")


def _quiet() -> None:
    """Keep matplotlib's warnings out of stderr, such as of a home that cannot be written to: none is about a figure."""
    import logging

    log = logging.getLogger("matplotlib")
    if log.level == logging.NOTSET:
        log.setLevel(logging.ERROR)


def new_figure(width: float, height: float, theme: Theme) -> Figure:
    """An empty figure of a size in inches. Raises OutputError when matplotlib cannot be loaded."""
    _quiet()
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise OutputError(f"drawing needs matplotlib: {_INSTALL} ({error})") from None
    figure = Figure(figsize=(width, height), dpi=DPI, facecolor=theme.background)
    FigureCanvasAgg(figure)
    return figure


EDGE: Final = 0.16
"""Inches that stay free at a picture's sides."""


@dataclass(frozen=True, slots=True)
class Headings:
    """Title and subtitle in lines that fit; ``height``: inches from the picture's top to below the last of them."""

    title: tuple[str, ...]
    size: float
    subtitle: tuple[str, ...]
    small: float
    height: float


def fit_headings(title: str, subtitle: str, width: float, ruler: Ruler) -> Headings:
    """Break title and subtitle for a picture so many inches wide: between names and flags, if that is possible."""
    room = width - 2 * EDGE
    # a little smaller is better than a line more
    size = next((size for size in (13.0, 12.0) if ruler.width(title, size, True) <= room), 13.0)
    lines = ruler.wrapped(title, room, size, True, r"(?<=\?) | (?=on )|(?<=\+) ")
    if len(lines) > 2:
        size = 10.5
        lines = ruler.wrapped(title, room, size, True, r"(?<=\?) | (?=on )|(?<=\+) ", most=5)
    small = 8.5 if ruler.width(subtitle, 8.5) <= 3 * room else 7.0
    settings = ruler.wrapped(subtitle, room, small, between=" +(?=-)|(?<=\N{MIDDLE DOT})  ", most=14)
    height = 0.14 + len(lines) * size * LINE + 0.03 + len(settings) * small * LINE
    return Headings(tuple(lines), size, tuple(settings), small, height)


def draw_headings(figure: Figure, heads: Headings, theme: Theme) -> None:
    """Write title and subtitle at the top."""
    width, height = figure.get_size_inches()
    y = 0.12
    for line in heads.title:
        figure.text(EDGE / width, 1 - y / height, line, color=theme.text, fontsize=heads.size, fontweight="bold",
                    va="top")  # fmt: skip
        y += heads.size * LINE
    y += 0.03
    for line in heads.subtitle:
        figure.text(EDGE / width, 1 - y / height, line, color=theme.muted, fontsize=heads.small, va="top")
        y += heads.small * LINE


def dress(axes: Any, theme: Theme) -> None:
    """Give axes the theme: no box, a quiet grid behind, readable ticks."""
    axes.set_facecolor(theme.background)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(theme.muted)
    axes.grid(axis="y", color=theme.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="both", which="both", colors=theme.muted, labelsize=8, length=0, pad=4)
    axes.tick_params(axis="x", which="major", length=3)


def halo(theme: Theme) -> dict[str, Any]:
    """What keeps text readable over lines."""
    return {"facecolor": theme.background, "edgecolor": "none", "alpha": 0.8, "pad": 0.8}


def gib_ticks(low: int, high: int, log: bool = False, most: int = 8) -> list[int]:
    """Levels in bytes at powers of two GiB (or multiples of one), between two levels."""
    if log:
        exponents = range(max(low, 1).bit_length() - 1, high.bit_length())
        ticks = [1 << e for e in exponents if low <= 1 << e <= high]
        for parts, few in ((2, 5), (4, 3), (8, 3)):
            # within few doublings, steps between them
            if len(ticks) < few:
                steps = range(parts, 2 * parts)
                ticks = [tick for e in exponents for k in steps if low <= (tick := (k << e) // parts) <= high]
        while len(ticks) > most:
            ticks = ticks[::2]
        return ticks
    step = 1 << 20
    while (high - low) // step > most:
        step *= 2
    return list(range(-(-low // step) * step, high + 1, step))


def size_labels(sizes: Sequence[int], *, in_mib: bool = False) -> list[str]:
    """The sizes of an axis' ticks in words, all in one unit: GiB where eighths of it say them, else MiB.

    ``in_mib``: MiB in any case.
    """
    if in_mib or any(size % (1 << 27) for size in sizes):
        return [f"{size / (1 << 20):,.10g} MiB" if size else "0" for size in sizes]
    return [f"{size / (1 << 30):g} GiB" if size else "0" for size in sizes]


def write_figure(path: str, figure: Figure, *, force: bool = False) -> None:
    """Draw the figure into a file, whole or not at all; the ending says in which format. Raises OutputError.

    ``force``: as ``check_figure_path`` has it.
    """
    import matplotlib

    kind = Path(path).suffix.lower()[1:]
    data = io.BytesIO()
    # no date and no random names: the same question gives the same file
    metadata = {
        "png": {"Software": "memplan"},
        "svg": {"Date": None, "Creator": "memplan"},
        "pdf": {"CreationDate": None, "Creator": "memplan"},
    }[kind]
    with plain_text(), matplotlib.rc_context({"svg.hashsalt": "memplan", "svg.fonttype": "none", "pdf.fonttype": 42}):
        figure.savefig(data, format=kind, metadata=metadata, facecolor=figure.get_facecolor())
    write_output(path, sealed(data.getvalue()), FIGURE, force=force)
