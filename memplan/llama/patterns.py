"""Regular expressions of ``-ot`` as C++'s std::regex (ECMAScript) reads them.

llama.cpp asks ``std::regex_search(tensor_name, std::regex(pattern))`` (src/llama-model-loader.cpp: ``create_tensor``,
v0.5.0). Python's ``re`` differs in the grammar, and its backtracking, as libstdc++'s, can take forever. So a pattern is
parsed here and followed as sets of positions in the name, a bit each: no step is done twice, and how many there can be
is known beforehand. A pattern that may take more than ``MAX_STEPS`` for a name is refused, as are several that may take
more than ``MAX_STEPS_OF_ALL`` for all names. Tensor names are ASCII, and so are all character classes. What libstdc++
refuses is a FlagError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Final

from memplan.errors import FlagError, shown
from memplan.llama.pattern_syntax import (
    ASCII,
    WORD,
    Alt,
    Anchor,
    Back,
    Chars,
    Group,
    Look,
    Node,
    Parser,
    Repeat,
    Seq,
)

MAX_STEPS: Final = 4_000
"""The most steps that one pattern may take for a name: those that people write take some dozens."""

MAX_STEPS_OF_ALL: Final = 10_000_000
"""The most steps that all patterns of a command line may take for all names."""

_MAX_LENGTH: Final = 1 << 16
_MAX_STATES: Final = 100_000
"""``_GLIBCXX_REGEX_STATE_LIMIT``: what libstdc++ expands a pattern to at most (bits/regex_automaton.h)."""
_MAX_SETS: Final = 8
"""Sets of characters that are remembered of a name."""
_MAX_NAME: Final = 64
"""GGML_MAX_NAME: a name has fewer bytes, so that a repeat ends after as many rounds."""


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """A function that says whether ``pattern`` is found anywhere in a tensor's name.

    Raises FlagError for what std::regex refuses, and for the few things that memplan does not follow: collating
    elements, counts above 1000, a pattern that may take more than ``MAX_STEPS`` for a name.
    """
    return _compiled(pattern).found


def matches(patterns: tuple[str, ...], names: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """(index of the name, index of the first pattern found in it) for every name that has one. Raises FlagError."""
    # what is soon seen not to match takes an eighth of a step
    steps = sum(_compiled(p).steps * len(_likely(p, names)) + len(names) // 8 for p in patterns)
    if steps > MAX_STEPS_OF_ALL:
        raise FlagError(
            f"the {len(patterns):,} patterns of -ot may take {steps:,} steps for {len(names):,} tensors, at most"
            f" {MAX_STEPS_OF_ALL:,} are followed; write fewer, or simpler ones"
        )
    first: dict[int, int] = {}
    for rule, pattern in reversed([*enumerate(patterns)]):
        first.update(dict.fromkeys(_matching(pattern, names), rule))
    return tuple(sorted(first.items()))


@lru_cache(maxsize=4096)
def _likely(pattern: str, names: tuple[str, ...]) -> tuple[int, ...]:
    """The indices of the names that hold what a name must hold for the pattern to be found in it."""
    needed = _compiled(pattern).needed
    return tuple([i for i, name in enumerate(names) if needed in name])


@lru_cache(maxsize=4096)
def _matching(pattern: str, names: tuple[str, ...]) -> tuple[int, ...]:
    """The indices of the names in which the pattern is found."""
    found = _compiled(pattern).found
    return tuple([i for i in _likely(pattern, names) if found(names[i])])


@dataclass(frozen=True, slots=True)
class _Compiled:
    """``found``: whether a name matches.  ``needed``: a text that it then holds.  ``steps``: the most for a name."""

    found: Callable[[str], bool]
    needed: str
    steps: int


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> _Compiled:
    if len(pattern) > _MAX_LENGTH:
        raise FlagError(f"-ot {shown(pattern)}: has {len(pattern):,} characters, {_MAX_LENGTH:,} are read at most")
    parser = Parser(pattern)
    node = parser.parse()
    if _states(node) > _MAX_STATES:
        raise FlagError(
            f"-ot {shown(pattern)}: its repeats come to more than {_MAX_STATES:,} states; llama.cpp's std::regex"
            " refuses it"
        )
    if not parser.back_references:
        node = _simplified(node)
    steps = 4 * _ways(node) if parser.back_references else _steps(node)
    if steps > MAX_STEPS:
        raise FlagError(
            f"-ot {shown(pattern)}: may take {steps:,} steps or more for a tensor's name, at most {MAX_STEPS:,} are"
            " followed; write it with fewer repeats within repeats, and without back references"
        )
    if parser.back_references:  # what a group matched is no position: few enough ways to try them all
        found = re.compile(_python(node), re.ASCII).search
        return _Compiled(lambda name: found(name) is not None, "", steps)
    needed, run = _literal(node), _runner(node)

    def search(name: str) -> bool:
        return needed in name and run((1 << len(name) + 1) - 1, _positions(name)) != 0

    return _Compiled(search, needed, steps)


def _python(node: Node) -> str:
    """``node`` in Python's syntax, every character escaped."""
    if isinstance(node, Chars):
        if len(node.allowed) == 1:
            return re.escape(next(iter(node.allowed)))
        ascii_codes = [f"\\x{ord(c):02x}" for c in sorted(node.allowed & ASCII)]
        return "[" + "".join(ascii_codes) + "]" if ascii_codes else "(?!)"
    if isinstance(node, Seq):
        return "".join(map(_python, node.parts))
    if isinstance(node, Alt):
        return "(?:" + "|".join(map(_python, node.choices)) + ")"
    if isinstance(node, Group):
        return "(" + _python(node.body) + ")"
    if isinstance(node, Repeat):
        return f"(?:{_python(node.body)}){{{node.low},{'' if node.high is None else node.high}}}"
    if isinstance(node, Look):
        return f"(?{'!' if node.negative else '='}{_python(node.body)})"
    if isinstance(node, Back):
        return f"(?:\\{node.group})"
    return {"^": r"\A", "$": r"\Z", "b": r"\b", "B": r"\B"}[node.kind]


def _literal(node: Node) -> str:
    """A text that every match holds: the longest run of fixed characters; empty if there is none."""
    parts = node.parts if isinstance(node, Seq) else (node,)
    return max((_text(run) for run in _runs(parts)), key=len, default="")


def _runs(parts: Iterable[Node]) -> list[list[Node]]:
    """Parts of a sequence, single characters that follow each other together."""
    runs: list[list[Node]] = []
    for part in parts:
        if runs and _text([part]) and _text(runs[-1]):
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs


def _text(run: Iterable[Node]) -> str:
    """The text that a run of single characters stands for; empty for anything else."""
    if all(isinstance(part, Chars) and len(part.allowed) == 1 for part in run):
        return "".join(next(iter(part.allowed)) for part in run if isinstance(part, Chars))
    return ""


def _simplified(node: Node) -> Node:
    """The same set of matches with less to do: groups go, and an open repeat of an open one is one."""
    if isinstance(node, Group):
        return _simplified(node.body)
    if isinstance(node, Seq):
        parts = tuple(map(_simplified, node.parts))
        return parts[0] if len(parts) == 1 else Seq(parts)
    if isinstance(node, Alt):
        return Alt(tuple(map(_simplified, node.choices)))
    if isinstance(node, Look):
        return Look(_simplified(node.body), node.negative)
    if isinstance(node, Repeat):
        body = _simplified(node.body)
        if isinstance(body, Repeat) and node.high is body.high is None and max(node.low, body.low) < 2:
            return Repeat(body.body, node.low * body.low, None)
        return Repeat(body, node.low, node.high)
    return node


# --- how much there is to do ---


def _states(node: Node) -> int:
    """About how many states libstdc++ makes of it, which copies what is repeated."""
    if isinstance(node, Seq):
        return sum(map(_states, node.parts))
    if isinstance(node, Alt):
        return sum(2 + _states(choice) for choice in node.choices)
    if isinstance(node, Group | Look):
        return 2 + _states(node.body)
    if isinstance(node, Repeat):
        return max(1, node.low + 1 if node.high is None else node.high) * (1 + _states(node.body))
    return 1


def _steps(node: Node) -> int:
    """The most steps that ``_runner``'s function takes, a call each."""
    if isinstance(node, Seq):
        return sum(1 if _text(run) else sum(map(_steps, run)) for run in _runs(node.parts))
    if isinstance(node, Alt):
        return 1 + sum(map(_steps, node.choices))
    if isinstance(node, Look):
        return _MAX_NAME * _steps(node.body)
    if isinstance(node, Repeat):
        rounds = _MAX_NAME if node.high is None else min(node.high, _MAX_NAME)
        if isinstance(node.body, Chars) and node.high is None:
            rounds = node.low
        return 1 + min(rounds, _MAX_NAME) * _steps(node.body)
    return 1


def _ways(node: Node) -> int:
    """The most ways in which backtracking goes through it from one place; at most a little over ``MAX_STEPS``."""
    if isinstance(node, Seq):
        ways = prod(map(_ways, node.parts))
    elif isinstance(node, Alt):
        ways = sum(map(_ways, node.choices))
    elif isinstance(node, Group | Look):
        ways = _ways(node.body)
    elif isinstance(node, Repeat):
        rounds = _MAX_NAME if node.high is None else node.high
        once = _ways(node.body)
        ways = max(1, rounds) if once == 1 else once ** min(rounds, 12)  # 2 ** 12 is too many already
    else:
        ways = 1
    return min(ways, MAX_STEPS + 1)


# --- sets of positions ---


@dataclass(frozen=True, slots=True)
class _Positions:
    """A name, and where each of its characters stands: a bit a position; and the same of some sets of characters."""

    text: str
    at: dict[str, int]
    sets: dict[frozenset[str], int]


@lru_cache(maxsize=16384)
def _positions(text: str) -> _Positions:
    at: dict[str, int] = {}
    for i, char in enumerate(text):
        at[char] = at.get(char, 0) | 1 << i
    return _Positions(text, at, {})


_Run = Callable[[int, _Positions], int]
"""From the positions where something may begin, to those where it can end."""


def _runner(node: Node) -> _Run:
    if isinstance(node, Chars):
        return _of_chars(node.allowed)
    if isinstance(node, Seq):
        return _of_sequence([_of_text(text) if (text := _text(r)) else _runner(r[0]) for r in _runs(node.parts)])
    if isinstance(node, Alt):
        return _of_choices([_runner(choice) for choice in node.choices])
    if isinstance(node, Look):
        return _of_look(_runner(node.body), node.negative)
    if isinstance(node, Repeat):
        if isinstance(node.body, Chars) and node.high is None:
            return _of_open_chars(node.body.allowed, node.low)
        return _of_repeat(_runner(node.body), node.low, node.high)
    if isinstance(node, Anchor):
        kind = node.kind
        return lambda starts, name: starts & _where(kind, name.text)
    raise TypeError(f"{node} has no set of ends")


def _of_chars(allowed: frozenset[str]) -> _Run:
    return lambda starts, name: (starts & _mask(allowed, name)) << 1


def _mask(allowed: frozenset[str], name: _Positions) -> int:
    """The positions of characters of a set."""
    known = name.sets.get(allowed)
    if known is not None:
        return known
    found = 0
    for char, at in name.at.items():
        if char in allowed:
            found |= at
    if len(name.sets) < _MAX_SETS:
        name.sets[allowed] = found
    return found


def _of_text(text: str) -> _Run:
    def run(starts: int, name: _Positions) -> int:
        found, at = 0, name.text.find(text)
        while at >= 0:
            found |= 1 << at
            at = name.text.find(text, at + 1)
        return (starts & found) << len(text)

    return run


def _of_sequence(parts: list[_Run]) -> _Run:
    def run(starts: int, name: _Positions) -> int:
        for part in parts:
            starts = part(starts, name)
            if not starts:
                break
        return starts

    return run


def _of_choices(choices: list[_Run]) -> _Run:
    def run(starts: int, name: _Positions) -> int:
        found = 0
        for choice in choices:
            found |= choice(starts, name)
        return found

    return run


def _of_look(body: _Run, negative: bool) -> _Run:
    def run(starts: int, name: _Positions) -> int:
        found = 0
        for i in range(starts.bit_length()):
            one = starts & 1 << i
            if one and (body(one, name) == 0) is negative:
                found |= one
        return found

    return run


def _of_open_chars(allowed: frozenset[str], low: int) -> _Run:
    """``[...]*`` and its like: a carry runs from each start to the end of its run of such characters."""

    def run(starts: int, name: _Positions) -> int:
        mask = _mask(allowed, name)
        for _ in range(min(low, len(name.text) + 1)):
            starts = (starts & mask) << 1
        return starts | ((starts & mask) + mask) ^ mask

    return run


def _of_repeat(body: _Run, low: int, high: int | None) -> _Run:
    """Positions only grow, so after as many rounds as there are, another changes nothing."""

    def run(starts: int, name: _Positions) -> int:
        most = len(name.text) + 1
        for _ in range(min(low, most)):
            before, starts = starts, body(starts, name)
            if starts == before:
                break
        found = starts
        for _ in range(most if high is None else min(high - low, most)):
            starts = body(starts, name) & ~found
            if not starts:
                break
            found |= starts
        return found

    return run


def _where(kind: str, text: str) -> int:
    """The positions at which an anchor holds."""
    if kind == "^":
        return 1
    if kind == "$":
        return 1 << len(text)
    words = [char in WORD for char in text]
    bounds = sum(1 << i for i, (a, b) in enumerate(zip([False, *words], [*words, False], strict=True)) if a != b)
    return bounds if kind == "b" else (1 << len(text) + 1) - 1 & ~bounds
