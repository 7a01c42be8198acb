"""Reading a log of llama.cpp, of any release since DeepSeek-V4 came: line by line, whatever stands around.

Patterns are looked for anywhere in a line, so timestamps, levels and container names before them do not matter. A log
is bytes until a line holds words of llama.cpp's, so that all others cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final

from memplan.diagnosing.command_lines import STARTING
from memplan.diagnosing.failure_lines import FAILING
from memplan.diagnosing.lines import blocks, clean, marked
from memplan.diagnosing.load_lines import LOADING
from memplan.diagnosing.loads import Loads
from memplan.diagnosing.log import Load
from memplan.diagnosing.rules import Rule
from memplan.errors import LogError

_MAX_LINES: Final = 1_000_000
_MAX_SIZE: Final = 48 << 20
"""Lines that may say something, and bytes of them: a load has some thousand."""

_MAX_TIMES: Final = 20
"""How often a line may have the words of a rule: llama.cpp's have them once, file names and flags some times."""

_RULES: Final = (*LOADING, *FAILING, *STARTING)

_SHARED: Final = (
    *("buffer size", " device", "loading ", "loaded", "failed to ", "graph", "model_loader: - ", "Killed"),
    *("llama ", "llama.", "_cuda"),
)
"""Words that stand in the marks of several rules: a log is looked through for these once."""


def _word(rule: Rule) -> bytes:
    return next((word for word in _SHARED if word in rule.mark), rule.mark).encode()


_WORDS: Final = tuple(dict.fromkeys(map(_word, _RULES)))


@cache
def _rules_of(words: tuple[bytes, ...]) -> tuple[Rule, ...]:
    """The rules for a line that holds these of ``_WORDS``."""
    return tuple(rule for rule in _RULES if _word(rule) in words)


def read_line(loads: Loads, line: str, rules: Iterable[Rule] = _RULES) -> None:
    """Take in what a line says."""
    for rule in rules:
        if rule.mark in line and line.count(rule.mark) <= _MAX_TIMES and (match := rule.pattern.search(line)):
            rule.take(loads, match)
            break


def read_log(chunks: Iterable[bytes]) -> list[Load]:
    """Every load of a model in a log that comes in chunks. Raises LogError for one that has no end."""
    loads = Loads()
    lines = size = 0
    for block in blocks(chunks):
        before = loads.line
        for number, line, words in marked(block, _WORDS):
            lines, size = lines + 1, size + len(line)
            loads.line = before + number + 1
            read_line(loads, clean(line), _rules_of(words))
        if lines > _MAX_LINES or size > _MAX_SIZE:
            raise LogError(
                f"the log has more than {_MAX_LINES:,} lines, or {_MAX_SIZE >> 20} MiB, of what llama.cpp says when"
                " it loads a model; cut out where it loads the one in question"
            )
        loads.line = before + block.count(b"\n")
    return loads.finish()
