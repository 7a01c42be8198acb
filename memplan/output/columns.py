"""Rows of cells as lines of text, columns aligned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.text import Text

Cell = str | tuple[str, str]
"""A cell's text, or text and style."""


def column_lines(
    heads: Sequence[str], rows: Iterable[Sequence[Cell]], right: Sequence[bool], unicode: bool
) -> list[Text]:
    """A head, a rule and a line a row; ``right`` says which columns are aligned to the right."""
    cells = [[cell if isinstance(cell, tuple) else (cell, "") for cell in row] for row in rows]
    widths = [
        max(len(head), *(len(row[i][0]) for row in cells)) if cells else len(head) for i, head in enumerate(heads)
    ]
    head = _line([(text, "bold") for text in heads], widths, right)
    rule = Text(("─" if unicode else "-") * max(len(head), *(len(_line(row, widths, right)) for row in cells), 1))
    return [head, rule, *(_line(row, widths, right) for row in cells)]


def _line(row: Sequence[tuple[str, str]], widths: Sequence[int], right: Sequence[bool]) -> Text:
    line = Text()
    for (text, style), width, is_right in zip(row, widths, right, strict=True):
        if line:
            line.append("  ")
        line.append(" " * (width - len(text)) if is_right else "")
        line.append(text, style)
        line.append("" if is_right else " " * (width - len(text)))
    line.rstrip()
    return line
