"""Rows of cells as lines of text, columns aligned, and no wider than the terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.text import Text

from memplan.output.wrapping import wrap_words

Cell = str | tuple[str, str]
"""A cell's text, or text and style."""

ENOUGH, LEAST = 12, 8
"""Characters that a column keeps while its words are broken: first of all, then where that is too many."""


class _Cells(textwrap.TextWrapper):
    """Breaks names behind their underscores, too."""

    wordsep_simple_re = re.compile(r"(\s+|(?<=_)(?=[^_\s]))")


@dataclass(frozen=True, slots=True)
class Columns:
    """A head, a rule and a line a row, or more where a cell has to be broken; made once the width is known.

    ``right`` says which columns are aligned to the right: they hold figures, which are never broken.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[tuple[str, str], ...], ...]
    right: tuple[bool, ...]
    unicode: bool

    def lines(self, width: int | None = None) -> list[Text]:
        """All lines, at most ``width`` characters wide as far as columns can be narrowed; None: as wide as they are."""
        widths, gap = self._widths(width)
        head = self._row([(text, "bold") for text in self.heads], widths, gap)
        rows = [line for row in self.rows for line in self._row(row, widths, gap)]
        rule = Text(("─" if self.unicode else "-") * max(1, *map(len, head), *map(len, rows)))
        return [*head, rule, *rows]

    def _widths(self, limit: int | None) -> tuple[list[int], int]:
        """Of each column, and of the gaps between: heads are broken first, then text between words, then words."""
        columns = [[row[i][0] for row in self.rows] for i in range(len(self.heads))]
        cells = [max(map(len, column), default=0) for column in columns]
        words = [max((len(word) for cell in column for word in cell.split()), default=0) for column in columns]
        heads = [max(map(len, head.split()), default=0) for head in self.heads]
        widths = [max(len(head), cell) for head, cell in zip(self.heads, cells, strict=True)]
        figure = [right and word == cell for cell, word, right in zip(cells, words, self.right, strict=True)]
        floors = [
            cells,
            [max(word, min(cell, ENOUGH)) for cell, word in zip(cells, words, strict=True)],
            *([c if f else min(c, few) for c, f in zip(cells, figure, strict=True)] for few in (ENOUGH, LEAST)),
        ]
        gap = 2
        for floor in floors:
            least = [max(pair) for pair in zip(heads, floor, strict=True)]
            while limit is not None and sum(widths) + gap * (len(widths) - 1) > limit:
                can = [i for i, w in enumerate(widths) if w > least[i]]
                if not can:
                    gap = 1
                    break
                widths[max(can, key=lambda i: widths[i])] -= 1
        return widths, gap

    def _row(self, row: Sequence[tuple[str, str]], widths: Sequence[int], gap: int) -> list[Text]:
        parts = [
            [text] if len(text) <= width else _Cells(width, break_on_hyphens=False).wrap(text)
            for (text, _), width in zip(row, widths, strict=True)
        ]
        lines = []
        for texts in zip_longest(*parts, fillvalue=""):
            line = Text()
            for i, (text, (_, style), width) in enumerate(zip(texts, row, widths, strict=True)):
                line.append(" " * gap if line else "")
                line.append(" " * (width - len(text)) if self.right[i] else "")
                line.append(text, style)
                line.append("" if self.right[i] else " " * (width - len(text)))
            line.rstrip()
            lines.append(line)
        return lines


Line = Text | str | Columns
"""What an answer is made of."""


def column_lines(
    heads: Sequence[str], rows: Iterable[Sequence[Cell]], right: Sequence[bool], unicode: bool
) -> list[Columns]:
    """A table, as lines of an answer."""
    cells = tuple(tuple(cell if isinstance(cell, tuple) else (cell, "") for cell in row) for row in rows)
    return [Columns(tuple(heads), cells, tuple(right), unicode)]


def wrapped(line: Text, width: int) -> list[Text]:
    """``line`` in lines of at most ``width`` characters, broken between words, the later ones indented.

    Long words, such as patterns, stay whole.
    """
    if len(line) <= width:
        return [line]
    found: list[Text] = []
    start, indent = 0, "  "
    for text in wrap_words(line.plain, width, later=indent):
        part = text if not found else text.removeprefix(indent)
        start = line.plain.index(part, start)
        found.append(Text(indent if found else "") + line[start : start + len(part)])
        start += len(part)
    return found
