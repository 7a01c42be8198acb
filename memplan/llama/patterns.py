"""Regular expressions of ``-ot`` as C++'s std::regex (ECMAScript) reads them.

llama.cpp asks ``std::regex_search(tensor_name, std::regex(pattern))`` (src/llama-model-loader.cpp: ``create_tensor``,
v0.5.0). Python's ``re`` differs in the grammar, so a pattern is parsed here and then either written out as one that
``re`` reads the same way or - where backtracking could take forever - followed as sets of positions, which cannot.
Tensor names are ASCII, and so are all character classes. What libstdc++ refuses is a FlagError.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from memplan.errors import FlagError, shown

_ASCII = frozenset(map(chr, range(128)))
_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_DIGIT = frozenset("0123456789")
_SPACE = frozenset(" \t\n\r\f\v")
_ALPHA = frozenset(c for c in _WORD if c.isalpha())
_UPPER = frozenset(c for c in _ALPHA if c.isupper())
_GRAPH = frozenset(c for c in _ASCII if " " < c < "\x7f")
_CLASSES = {"d": _DIGIT, "w": _WORD, "s": _SPACE, "D": _ASCII - _DIGIT, "W": _ASCII - _WORD, "S": _ASCII - _SPACE}
_POSIX = {
    "alnum": _ALPHA | _DIGIT,
    "alpha": _ALPHA,
    "blank": frozenset(" \t"),
    "cntrl": _ASCII - _GRAPH - {" "},
    "d": _DIGIT,
    "digit": _DIGIT,
    "graph": _GRAPH,
    "lower": _ALPHA - _UPPER,
    "print": _GRAPH | {" "},
    "punct": _GRAPH - _ALPHA - _DIGIT,
    "s": _SPACE,
    "space": _SPACE,
    "upper": _UPPER,
    "w": _WORD,
    "xdigit": frozenset("0123456789abcdefABCDEF"),
}
_ESCAPES = {"0": "\0", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_MAX_DEPTH = 50
_MAX_COUNT = 1000
_MAX_CHOICES = 4
"""Repeats of open length up to which backtracking over a short name stays quick."""


@dataclass(frozen=True, slots=True)
class _Chars:
    """One character out of a set."""

    allowed: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Seq:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Alt:
    choices: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Group:
    """A numbered group."""

    body: _Node


@dataclass(frozen=True, slots=True)
class _Repeat:
    body: _Node
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class _Look:
    body: _Node
    negative: bool


@dataclass(frozen=True, slots=True)
class _Anchor:
    """``^``, ``$``, ``b`` (word boundary) or ``B``."""

    kind: str


@dataclass(frozen=True, slots=True)
class _Back:
    """What an earlier group matched."""

    group: int


_Node = _Chars | _Seq | _Alt | _Group | _Repeat | _Look | _Anchor | _Back


@lru_cache(maxsize=4096)
def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """A function that says whether ``pattern`` is found anywhere in a tensor's name.

    Raises FlagError for what std::regex refuses, and for the few things that memplan does not follow: collating
    elements, back references in a pattern that could take forever, counts above 1000.
    """
    parser = _Parser(pattern)
    node = parser.parse()
    if parser.choices <= _MAX_CHOICES and not parser.nested:
        search = re.compile(_python(node), re.ASCII).search
        needed = _literal(node)
        if needed:
            return lambda name: needed in name and search(name) is not None
        return lambda name: search(name) is not None
    if parser.back_references:
        raise FlagError(
            f"-ot {shown(pattern)}: back references beside nested repeats are not modelled; write it without"
        )
    return lambda name: bool(_ends(node, frozenset(range(len(name) + 1)), name))


class _Parser:
    """Recursive descent over libstdc++'s ECMAScript grammar (bits/regex_compiler.tcc, regex_scanner.tcc)."""

    def __init__(self, pattern: str) -> None:
        self._s = pattern
        self._i = 0
        self._groups = 0
        self._closed: set[int] = set()
        self._depth = 0
        self.choices = 0
        self.nested = False
        self.back_references = False

    def parse(self) -> _Node:
        node = self._alternatives()
        if self._i < len(self._s):
            raise self._fault("a ) without its (")
        return node

    def _fault(self, what: str) -> FlagError:
        what = "".join(c if c.isprintable() else repr(c)[1:-1] for c in what)
        return FlagError(f"-ot {shown(self._s)}: {what} at character {self._i + 1}; llama.cpp's std::regex refuses it")

    def _peek(self) -> str:
        return self._s[self._i : self._i + 1]

    def _take(self) -> str:
        c = self._peek()
        if not c:
            raise self._fault("the pattern ends too early")
        self._i += 1
        return c

    def _accept(self, text: str) -> bool:
        if self._s.startswith(text, self._i):
            self._i += len(text)
            return True
        return False

    def _alternatives(self) -> _Node:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._fault("groups nested too deeply")
        choices = [self._sequence()]
        while self._accept("|"):
            choices.append(self._sequence())
        self._depth -= 1
        return choices[0] if len(choices) == 1 else _Alt(tuple(choices))

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while self._peek() not in ("", "|", ")"):
            before = self.choices
            branches = self._i
            node = self._term()
            if not isinstance(node, _Look | _Anchor):
                node = self._repeats(node, self.choices > before or "|" in self._s[branches : self._i])
            parts.append(node)
        return parts[0] if len(parts) == 1 else _Seq(tuple(parts))

    def _repeats(self, node: _Node, varies: bool) -> _Node:
        while (bounds := self._bounds()) is not None:
            low, high = bounds
            self._accept("?")
            if high != low:
                self.choices += 1
            if varies and high != 1 and (low, high) != (0, 0):
                self.nested = True
            varies = varies or high != low
            node = _Repeat(node, low, high)
        return node

    def _bounds(self) -> tuple[int, int | None] | None:
        if self._accept("*"):
            return 0, None
        if self._accept("+"):
            return 1, None
        if self._accept("?"):
            return 0, 1
        if not self._accept("{"):
            return None
        m = re.compile(r"([0-9]+)(?:(,)([0-9]+)?)?\}", re.ASCII).match(self._s, self._i)
        if m is None:
            raise self._fault("a { that is no count such as {2}, {2,} or {2,3}")
        low, high = int(m[1][:9]), int((m[3] or m[1])[:9])
        if max(low, high) > _MAX_COUNT:
            raise self._fault(f"a count above {_MAX_COUNT}")
        if high < low:
            raise self._fault("a count whose bounds are the wrong way round")
        self._i = m.end()
        return low, (None if m[2] and not m[3] else high)

    def _term(self) -> _Node:
        c = self._take()
        if c in "^$":
            return _Anchor(c)
        if c == ".":
            return _Chars(_ASCII - {"\n", "\r"})
        if c == "(":
            return self._group()
        if c == "[":
            return self._bracket()
        if c == "\\":
            return self._escape()
        if c in "*+?{":
            self._i -= 1
            raise self._fault(f"nothing before {c} to repeat")
        return _Chars(frozenset(c))

    def _group(self) -> _Node:
        kind = ""
        number = 0
        if self._accept("?"):
            kind = self._take()
            if kind not in ":=!":
                raise self._fault(f"an unknown group (?{kind}")
        else:
            self._groups += 1
            number = self._groups
        body = self._alternatives()
        if not self._accept(")"):
            raise self._fault("a ( without its )")
        if number:
            self._closed.add(number)
            return _Group(body)
        return _Look(body, kind == "!") if kind in ("=", "!") else _Seq((body,))

    def _escape(self) -> _Node:
        c = self._take()
        if c in "bB":
            return _Anchor(c)
        if c in _CLASSES:
            return _Chars(_CLASSES[c])
        if c.isascii() and c.isdigit() and c != "0":
            digits = c
            while self._peek().isascii() and self._peek().isdigit():
                digits += self._take()
            group = int(digits[:9])
            if group not in self._closed or group > 99:
                raise self._fault(f"a reference to group {digits}, which is not closed here")
            self.back_references = True
            return _Back(group)
        return _Chars(frozenset(self._character(c)))

    def _character(self, c: str) -> str:
        """The character that the escape ``\\c`` stands for; whatever has no meaning stands for itself."""
        if c in _ESCAPES:
            return _ESCAPES[c]
        if c == "c":
            return chr(ord(self._take()) % 32)
        if c in "xu":
            count = 2 if c == "x" else 4
            digits = self._s[self._i : self._i + count]
            if not re.fullmatch(f"[0-9a-fA-F]{{{count}}}", digits):
                raise self._fault(f"\\{c} without {count} hexadecimal digits")
            self._i += count
            return chr(int(digits, 16))
        return c

    def _bracket(self) -> _Node:
        negative = self._accept("^")
        allowed: set[str] = set()
        last: str | None = None  # the single character that a dash could make the start of a range
        after_class = False
        while not self._accept("]"):
            dash = self._peek() == "-"
            item = self._bracket_item()
            if isinstance(item, frozenset):
                allowed |= item
                last, after_class = None, True
                continue
            if dash and self._peek() != "]":
                if after_class:
                    raise self._fault("a range that begins with a class")
                if last is not None:
                    end = self._bracket_item()
                    if isinstance(end, frozenset):
                        raise self._fault("a range that ends with a class")
                    if ord(end) < ord(last):
                        raise self._fault("a range that is the wrong way round")
                    allowed.update(c for c in _ASCII if last <= c <= end)
                    last = None
                    continue
            allowed.add(item)
            last, after_class = item, False
        return _Chars(_ASCII - allowed if negative else frozenset(allowed))

    def _bracket_item(self) -> str | frozenset[str]:
        c = self._take()
        if c == "[" and self._peek() in (":", ".", "="):
            kind = self._take()
            end = self._s.find(kind + "]", self._i)
            name = self._s[self._i : end] if end >= 0 else ""
            self._i = max(end + 2, self._i)
            if kind != ":" and len(name) == 1:
                return frozenset(name)
            if kind != ":" or name.lower() not in _POSIX:
                raise self._fault("a character class that is not known")
            return _POSIX[name.lower()]
        if c != "\\":
            return c
        c = self._take()
        if c in _CLASSES:
            return _CLASSES[c]
        if c == "B" or (c.isascii() and c.isdigit() and c != "0"):
            raise self._fault(f"\\{c} within brackets")
        return "\b" if c == "b" else self._character(c)


def _python(node: _Node) -> str:
    """``node`` in Python's syntax, every character escaped."""
    if isinstance(node, _Chars):
        if len(node.allowed) == 1:
            return re.escape(next(iter(node.allowed)))
        ascii_codes = [f"\\x{ord(c):02x}" for c in sorted(node.allowed & _ASCII)]
        return "[" + "".join(ascii_codes) + "]" if ascii_codes else "(?!)"
    if isinstance(node, _Seq):
        return "".join(map(_python, node.parts))
    if isinstance(node, _Alt):
        return "(?:" + "|".join(map(_python, node.choices)) + ")"
    if isinstance(node, _Group):
        return "(" + _python(node.body) + ")"
    if isinstance(node, _Repeat):
        return f"(?:{_python(node.body)}){{{node.low},{'' if node.high is None else node.high}}}"
    if isinstance(node, _Look):
        return f"(?{'!' if node.negative else '='}{_python(node.body)})"
    if isinstance(node, _Back):
        return f"(?:\\{node.group})"
    return {"^": r"\A", "$": r"\Z", "b": r"\b", "B": r"\B"}[node.kind]


def _literal(node: _Node) -> str:
    """A text that every match holds: the longest run of fixed characters; empty if there is none."""
    parts = node.parts if isinstance(node, _Seq) else (node,)
    runs = [""]
    for p in parts:
        if isinstance(p, _Chars) and len(p.allowed) == 1:
            runs[-1] += next(iter(p.allowed))
        else:
            runs.append("")
    return max(runs, key=len)


def _ends(node: _Node, starts: frozenset[int], s: str) -> frozenset[int]:
    """The positions at which ``node`` can end when it begins at any of ``starts``."""
    if not starts:
        return starts
    if isinstance(node, _Chars):
        return frozenset(i + 1 for i in starts if i < len(s) and s[i] in node.allowed)
    if isinstance(node, _Seq):
        for p in node.parts:
            starts = _ends(p, starts, s)
        return starts
    if isinstance(node, _Alt):
        return frozenset().union(*(_ends(c, starts, s) for c in node.choices))
    if isinstance(node, _Group):
        return _ends(node.body, starts, s)
    if isinstance(node, _Look):
        return frozenset(i for i in starts if bool(_ends(node.body, frozenset({i}), s)) != node.negative)
    if isinstance(node, _Repeat):
        return _repeat_ends(node, starts, s)
    if isinstance(node, _Anchor):
        return frozenset(i for i in starts if _at(node.kind, i, s))
    raise TypeError(f"{node} has no set of ends")


def _repeat_ends(node: _Repeat, starts: frozenset[int], s: str) -> frozenset[int]:
    for _ in range(node.low):
        starts = _ends(node.body, starts, s)
    found = starts
    count = node.low
    while starts and (node.high is None or count < node.high):
        starts = _ends(node.body, starts, s) - found
        found |= starts
        count += 1
    return found


def _at(kind: str, i: int, s: str) -> bool:
    if kind == "^":
        return i == 0
    if kind == "$":
        return i == len(s)
    boundary = (i > 0 and s[i - 1] in _WORD) != (i < len(s) and s[i] in _WORD)
    return boundary == (kind == "b")
