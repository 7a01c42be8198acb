"""Flags that came or went with a build: how a line for one build is written for another.

Found by what ``common_params_parser_init`` (common/arg.cpp) has in the sources of 38 builds from 9840 to 11434; of a
change between two of them the later is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from memplan.llama.flag_words import normalized, split_words

LOAD_MODES: Final = {
    "--mlock": "mlock",
    "--mmap": "mmap",
    "--no-mmap": "none",
    "--direct-io": "dio",
    "-dio": "dio",
    "--no-direct-io": "none",
    "-ndio": "none",
}
"""Flags that are values of ``-lm`` alone since ``LOAD_MODES_SINCE``, with their variables."""

LOAD_MODES_SINCE: Final = 10909
_CAME: Final = {
    "-lm": 10108,
    "--load-mode": 10108,
    "-mmdev": 10605,
    "--mmproj-device": 10605,
    "-ncffn": 10662,
    "--n-cpu-ffn": 10662,
    "--kv-unified-per-slot": 10662,
    "-lzm": 10705,
    "--lazy-mode": 10705,
}
"""Flags that decide memory and that older builds do not take."""


def spelled_for(words: Sequence[str], build: int, name: str) -> tuple[tuple[str, ...], list[str]]:
    """The words as llama-server takes them at ``build``, and what to say of those that it does not take as given.

    ``name``: what the build is called.
    """
    found: list[str] = []
    notes: dict[str, None] = {}
    older = {mode: flag for flag, mode in reversed(LOAD_MODES.items())}
    for flag, *value in split_words(words):
        known = normalized(flag)
        spelled = [flag, *value]
        if known in LOAD_MODES and build >= LOAD_MODES_SINCE:
            spelled = ["-lm", LOAD_MODES[known]]
            instead = f"written {' '.join(spelled)}, as llama-server {name} takes it"
            notes[f"{flag} went with b{LOAD_MODES_SINCE}: {instead}"] = None
        elif build < _CAME.get(known, 0):
            if known in ("-lm", "--load-mode") and value and (modes := [older.get(m) for m in value[0].split("+")]):
                spelled = [mode for mode in modes if mode] if value[0] != "auto" else []
            instead = f": written {' '.join(spelled)}" if spelled[:1] != [flag] and spelled else ""
            notes[f"llama-server {name} takes no {flag}, which came with b{_CAME[known]}{instead}"] = None
        found += spelled
    return tuple(found), list(notes)
