"""Text in lines of so many columns."""

from __future__ import annotations

import textwrap


def wrap_words(text: str, width: int, first: str = "", later: str = "") -> list[str]:
    """``text`` in lines of at most ``width`` characters, broken between words; long ones, such as patterns, stay whole.

    ``first``, ``later``: what the first line and those after it begin with.
    """
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )
