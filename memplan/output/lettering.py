"""Text in figures: plain, measured before it is placed, broken where it is too long. Lengths are inches."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

LINE = 1.25 / 72
"""Inches a line of text takes for each point of its size."""


@contextmanager
def plain_text() -> Iterator[None]:
    """Within it matplotlib draws text as it stands: dollars are no formulas, and a sign that no font has is a box."""
    import matplotlib

    with warnings.catch_warnings(), matplotlib.rc_context({"text.parse_math": False}):
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


class Ruler:
    """Measures text as matplotlib's own renderer draws it, in the font that a picture has."""

    def __init__(self, figure: Any) -> None:
        from matplotlib.font_manager import FontProperties

        self._font = FontProperties
        self._renderer = figure.canvas.get_renderer()
        self._dpi = float(figure.dpi)
        self._known: dict[tuple[str, float, bool], float] = {}

    def width(self, text: str, size: float, bold: bool = False) -> float:
        """How wide one line of text is."""
        key = (text, size, bold)
        if key not in self._known:
            font = self._font(size=size, weight="bold" if bold else "normal")
            dots = self._renderer.get_text_width_height_descent(text, font, ismath=False)[0]
            self._known[key] = float(dots) / self._dpi
        return self._known[key]

    def widest(self, texts: Sequence[str], size: float, bold: bool = False) -> float:
        """How wide the widest of some lines is; 0 of none."""
        return max((self.width(text, size, bold) for text in texts), default=0.0)

    def wrapped(
        self, text: str, width: float, size: float, bold: bool = False, between: str = " ", most: int = 0
    ) -> list[str]:
        """The text in lines of at most ``width``.

        ``between``: a pattern of spaces at which to break; where a piece is wider than a line, other spaces do, and
        where a word is, any place does.  ``most``: so many lines at most, the last one ending in dots.
        """
        if self.width(text, size, bold) <= width:
            return [text]
        lines: list[str] = []
        start = ""
        for gap, piece in _pieces(text, between):
            joined = f"{start}{gap}{piece}" if start else piece
            if self.width(joined, size, bold) <= width:
                start = joined
                continue
            if start:
                lines.append(start)
            if self.width(piece, size, bold) <= width:
                start = piece
            elif between != " ":
                *full, start = self.wrapped(piece, width, size, bold)
                lines += full
            else:
                *full, start = self._cut(piece, width, size, bold)
                lines += full
        lines.append(start)
        if most and len(lines) > most:
            *_, last = lines = lines[:most]
            while last and self.width(last + "…", size, bold) > width:
                last = last[:-1]
            lines[-1] = last.rstrip() + "…"
        return lines

    def _cut(self, word: str, width: float, size: float, bold: bool) -> Iterator[str]:
        """A word that is too wide, in pieces that are not; the last one is never empty."""
        while self.width(word, size, bold) > width and len(word) > 1:
            low, high = 1, len(word) - 1
            while low < high:
                middle = (low + high + 1) // 2
                low, high = (middle, high) if self.width(word[:middle], size, bold) <= width else (low, middle - 1)
            yield word[:low]
            word = word[low:]
        yield word


def _pieces(text: str, between: str) -> Iterator[tuple[str, str]]:
    """The text's pieces, each with the gap before it."""
    at, gap = 0, ""
    for match in re.finditer(between, text):
        if match.start() > at or gap:
            yield gap, text[at : match.start()]
        at, gap = match.end(), match.group()
    yield gap, text[at:]
