"""The grammar of ``-ot`` patterns: C++'s std::regex (ECMAScript), parsed into nodes.

Follows libstdc++'s bits/regex_compiler.tcc and bits/regex_scanner.tcc. What it refuses is a FlagError.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from memplan.errors import FlagError, shown

ASCII = frozenset(map(chr, range(128)))
WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_DIGIT = frozenset("0123456789")
_SPACE = frozenset(" \t\n\r\f\v")
_ALPHA = frozenset(c for c in WORD if c.isalpha())
_UPPER = frozenset(c for c in _ALPHA if c.isupper())
_GRAPH = frozenset(c for c in ASCII if " " < c < "\x7f")
_DOT = ASCII - {"\n", "\r"}
_CLASSES = {"d": _DIGIT, "w": WORD, "s": _SPACE, "D": ASCII - _DIGIT, "W": ASCII - WORD, "S": ASCII - _SPACE}
_POSIX = {
    "alnum": _ALPHA | _DIGIT,
    "alpha": _ALPHA,
    "blank": frozenset(" \t"),
    "cntrl": ASCII - _GRAPH - {" "},
    "d": _DIGIT,
    "digit": _DIGIT,
    "graph": _GRAPH,
    "lower": _ALPHA - _UPPER,
    "print": _GRAPH | {" "},
    "punct": _GRAPH - _ALPHA - _DIGIT,
    "s": _SPACE,
    "space": _SPACE,
    "upper": _UPPER,
    "w": WORD,
    "xdigit": frozenset("0123456789abcdefABCDEF"),
}
_ESCAPES = {"0": "\0", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of a set."""

    allowed: frozenset[str]


@dataclass(frozen=True, slots=True)
class Seq:
    """One part after another."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """One of several."""

    choices: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """A numbered group."""

    body: Node


@dataclass(frozen=True, slots=True)
class Repeat:
    """``low`` to ``high`` times; None: without end."""

    body: Node
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Look:
    """What must, or must not, follow."""

    body: Node
    negative: bool


@dataclass(frozen=True, slots=True)
class Anchor:
    """``^``, ``$``, ``b`` (word boundary) or ``B``."""

    kind: str


@dataclass(frozen=True, slots=True)
class Back:
    """What an earlier group matched."""

    group: int


Node = Chars | Seq | Alt | Group | Repeat | Look | Anchor | Back


_MAX_DEPTH: Final = 50
_MAX_REPEATS: Final = 4
"""Quantifiers one after another, as in ``a+*``."""
_MAX_COUNT: Final = 1000


@lru_cache(maxsize=1024)
def _one(allowed: frozenset[str]) -> frozenset[str]:
    """One object for equal sets, so that they are quickly found to be equal."""
    return allowed


class Parser:
    """Recursive descent over libstdc++'s ECMAScript grammar (bits/regex_compiler.tcc, regex_scanner.tcc)."""

    def __init__(self, pattern: str) -> None:
        self._s = pattern
        self._i = 0
        self._groups = 0
        self._closed: set[int] = set()
        self._depth = 0
        self.back_references = False

    def parse(self) -> Node:
        """The whole pattern. Raises FlagError."""
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

    def _alternatives(self) -> Node:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._fault("groups nested too deeply")
        choices = [self._sequence()]
        while self._accept("|"):
            choices.append(self._sequence())
        self._depth -= 1
        return choices[0] if len(choices) == 1 else Alt(tuple(choices))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            node = self._term()
            parts.append(node if isinstance(node, Look | Anchor) else self._repeats(node))
        return parts[0] if len(parts) == 1 else Seq(tuple(parts))

    def _repeats(self, node: Node) -> Node:
        count = 0
        while (bounds := self._bounds()) is not None:
            self._accept("?")
            count += 1
            if count > _MAX_REPEATS:
                raise FlagError(f"-ot {shown(self._s)}: more than {_MAX_REPEATS} repeats of one thing; write one")
            node = Repeat(node, *bounds)
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

    def _term(self) -> Node:
        c = self._take()
        if c in "^$":
            return Anchor(c)
        if c == ".":
            return Chars(_DOT)
        if c == "(":
            return self._group()
        if c == "[":
            return self._bracket()
        if c == "\\":
            return self._escape()
        if c in "*+?{":
            self._i -= 1
            raise self._fault(f"nothing before {c} to repeat")
        return Chars(frozenset(c))

    def _group(self) -> Node:
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
            return Group(body)
        return Look(body, kind == "!") if kind in ("=", "!") else Seq((body,))

    def _escape(self) -> Node:
        c = self._take()
        if c in "bB":
            return Anchor(c)
        if c in _CLASSES:
            return Chars(_CLASSES[c])
        if c.isascii() and c.isdigit() and c != "0":
            digits = c
            while self._peek().isascii() and self._peek().isdigit():
                digits += self._take()
            group = int(digits[:9])
            if group not in self._closed or group > 99:
                raise self._fault(f"a reference to group {digits}, which is not closed here")
            self.back_references = True
            return Back(group)
        return Chars(frozenset(self._character(c)))

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

    def _bracket(self) -> Node:
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
                    allowed.update(c for c in ASCII if last <= c <= end)
                    last = None
                    continue
            allowed.add(item)
            last, after_class = item, False
        return Chars(_one(ASCII - allowed if negative else frozenset(allowed)))

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
