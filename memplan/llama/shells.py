"""Command lines as text: split into words as the shell would that they were written for.

Known are sh (bash, zsh), cmd (``.bat``), PowerShell and systemd's units. A script's own variables are put in; nothing
is run, so that what a program would have printed (``$(nproc)``) stays as it is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

from memplan.errors import FlagError


@dataclass(frozen=True, slots=True)
class Shell:
    """How a shell reads a line.

    ``escape``: what takes the next character literally and, at a line's end, continues the line.  ``literal``: the
    quote inside which nothing else has a meaning.  ``ends``: what ends a word and a command, or redirects.
    ``variable``: what stands for a variable: its name, and in group ``default`` what holds where it is not set.
    ``setting``: the start of a command that sets one: group 1 if for programs too, then its name.  ``comment``: what
    begins one.  ``keeps_escape``: whether the escape stays before a character that needs none.
    """

    escape: str
    quotes: str
    literal: str
    ends: str
    variable: re.Pattern[str]
    setting: re.Pattern[str] | None = None
    comment: str = ""
    keeps_escape: bool = False


SH: Final = Shell(
    "\\", "\"'", "'", ";&|<>",
    re.compile(r"\$(?:(\w+)|\{(\w+)(?::?(?:[-=](?P<default>[^{}]*)|\?[^{}]*))?\})"),
    re.compile(r"(export\s+|declare\s+-x\s+|set\s+-gx\s+)?(\w+)="),
    "#",
)  # fmt: skip
CMD: Final = Shell(
    "^", '"', "", "&|<>", re.compile(r"%(\w+)%"), re.compile(r'@?(set)\s+"?(\w+)\s*=', re.IGNORECASE)
)  # fmt: skip
POWERSHELL: Final = Shell(
    "`", "\"'", "'", ";&|<>",
    re.compile(r"\$(?:env:)?(\w+)|\$\{(?:env:)?(\w+)\}", re.IGNORECASE),
    re.compile(r"\$(env:)?(\w+)\s*=\s*", re.IGNORECASE),
    "#",
)  # fmt: skip
SYSTEMD: Final = Shell("\\", "\"'", "", "", re.compile(r"\$(?:(\w+)|\{(\w+)\})"), keeps_escape=True)

_COMPUTED: Final = re.compile(r"\$\(\(([^()]*)\)\)|\$\([^()]*(?:\([^()]*\)[^()]*)*\)")
"""What sh would compute, or run."""

_ARRAY: Final = re.compile(r"(\w+)\+?=\(")
_ARRAY_USED: Final = re.compile(r'("?)\$\{(\w+)\[[@*]\]\}\1')
_PASSED_ON: Final = re.compile(r'"?(?:\$[@*]|\$args\b|@args\b|%\*)"?(?=\s|\Z)')
"""What a script itself is given."""

_REDIRECTION: Final = re.compile(r"\d?(?:&>>?|>>?|<{1,3})(&\d|&-)?")


@dataclass(frozen=True, slots=True)
class Command:
    """One command: its words, the line it begins in, and what the script has set for programs until then."""

    words: tuple[str, ...]
    line: int
    environment: Mapping[str, str]


def shell_of(text: str) -> Shell:
    """The shell that a text was written for, by how it continues lines, names variables and programs."""
    if re.search(r"`[ \t]*\r?\n|\$env:|^\s*&\s*[\"'$]", text, re.IGNORECASE):
        return POWERSHELL
    if re.search(r"\^[ \t]*\r?\n|^\s*@?(set|echo off|start)\s|^\s*\"?[A-Za-z]:\\|\.exe\b", text, re.I | re.M):
        return CMD
    return SH


def commands(text: str, shell: Shell, variables: Mapping[str, str] | None = None) -> list[Command]:
    """The commands of a text in order. ``variables``: what was set before. Raises FlagError for an open quote.

    A line that begins with a dash goes on with the command before it, though nothing says so.
    """
    found: list[Command] = []
    for command in _Reader(text, shell, dict(variables or {})).commands():
        if found and re.match(r"-+\w", command.words[0]):
            last = found.pop()
            command = Command((*last.words, *command.words), last.line, last.environment)
        found.append(command)
    return found


class _Reader:
    """One text, from its first character to its last."""

    def __init__(self, text: str, shell: Shell, variables: dict[str, str]) -> None:
        self.text, self.shell, self.at = text.replace("\r\n", "\n"), shell, 0
        self.variables = variables
        self.arrays: dict[str, list[str]] = {}
        self.environment: dict[str, str] = {}
        self.continued = re.compile(rf"{re.escape(shell.escape)}[ \t]*(\n|\Z)")

    def commands(self) -> Iterator[Command]:
        """Each command; those that only set variables are kept to oneself."""
        line, counted = 1, 0
        while self._blanks() < len(self.text):
            line, counted = line + self.text.count("\n", counted, self.at), self.at
            if self.shell is SH and (array := _ARRAY.match(self.text, self.at)):
                self.at = array.end()
                self.arrays[array[1]] = self._words(")")
            elif self.shell.setting and (setting := self.shell.setting.match(self.text, self.at)):
                yield from self._setting(setting, line)
            elif (words := self._words()) and not self._silent(words[0]):
                yield Command(tuple(words), line, dict(self.environment))

    def _setting(self, setting: re.Match[str], line: int) -> Iterator[Command]:
        """Set a variable; or, where a program follows in the same command as in sh, that command."""
        start, self.at = self.at, setting.end()
        if self.shell is CMD:  # all of the line is the value
            rest = re.compile(r"[^\n&]*").match(self.text, self.at)
            value = rest[0].strip().removesuffix('"') if rest else ""
            self.at += len(rest[0]) if rest else 0
            self._set([(setting[2], filled_in(value, CMD, self.variables))], True)
            return
        words = self._words()
        if self.shell is SH and (len(words) > 1 or self.text[setting.end() : setting.end() + 1].isspace()):
            self.at = start
            words = self._words()
            if not (setting[1] or all("=" in word for word in words)):
                yield Command(tuple(words), line, dict(self.environment))
                return
            self._set([word.partition("=")[::2] for word in words if "=" in word], bool(setting[1]))
        else:
            self._set([(setting[2], " ".join(words))], bool(setting[1]))

    def _set(self, pairs: list[tuple[str, str]], exported: bool) -> None:
        for name, value in pairs:
            self.variables[name] = value
            if exported or name in self.environment:
                self.environment[name] = value

    def _silent(self, first: str) -> bool:
        """Whether a command of cmd says nothing to a program."""
        return self.shell is CMD and first.lower().startswith((":", "rem", "echo", "@echo"))

    def _blanks(self, end: str = "") -> int:
        """Skip what is between words; inside parentheses, lines too. Where the next one begins."""
        text = self.text
        while self.at < len(text):
            if skipped := self.continued.match(text, self.at):
                self.at = skipped.end()
            elif text[self.at] in " \t" or (end == ")" and text[self.at] == "\n"):
                self.at += 1
            elif self.shell.comment and text[self.at] == self.shell.comment:
                self.at = len(text) if (line := text.find("\n", self.at)) < 0 else line
            else:
                break
        return self.at

    def _words(self, end: str = "\n") -> list[str]:
        """The words up to the end of a command, or of an array; redirections are left out."""
        words: list[str] = []
        while self._blanks(end) < len(self.text):
            c = self.text[self.at]
            redirection = _REDIRECTION.match(self.text, self.at) if ">" in self.shell.ends else None
            if passed_on := _PASSED_ON.match(self.text, self.at):
                self.at = passed_on.end()
            elif redirection:
                self.at = redirection.end()
                if not redirection[1] and self._blanks() < len(self.text):
                    self._word(end)
            elif c == end or c in self.shell.ends:
                self.at += 1
                if words or c == end:
                    break
            else:
                words += self._word(end)
        return words

    def _word(self, end: str) -> list[str]:
        """The next word; several where a variable holds several."""
        words = [""]
        while self.at < len(self.text):
            c = self.text[self.at]
            if c in " \t\n" or c == end or c in self.shell.ends or self.continued.match(self.text, self.at):
                break
            first, *more = self._piece(c)
            words[-1] += first
            words += more
        return words

    def _piece(self, c: str) -> list[str]:
        """The next piece of a word that is not in quotes, or all that is."""
        text, shell = self.text, self.shell
        if shell is SH and (array := _ARRAY_USED.match(text, self.at)) and array[2] in self.arrays:
            self.at = array.end()
            return self.arrays[array[2]] or [""]
        if c in shell.quotes:
            return [self._quoted(c)]
        if c == shell.escape:
            self.at += 2
            taken = text[self.at - 1 : self.at]
            return [c + taken if shell.keeps_escape and taken not in "\\\"' " else taken]
        if (value := self._variable()) is not None:
            return value.split() or [""] if shell in (SH, SYSTEMD) and "$(" not in value else [value]
        self.at += 1
        return [c]

    def _quoted(self, quote: str) -> str:
        """What stands in quotes, from the opening one on."""
        text, shell = self.text, self.shell
        found, start = "", self.at
        self.at += 1
        while self.at < len(text):
            c = text[self.at]
            if c == quote:
                self.at += 1
                if shell is not POWERSHELL or text[self.at : self.at + 1] != quote:
                    return found
                c = quote  # two are one
            elif quote != shell.literal:
                if c == shell.escape and shell is not CMD:
                    c = text[self.at + 1 : self.at + 2]
                    c = "" if c == "\n" else c if c in '"\\$`' else shell.escape + c
                    self.at += 1
                elif (value := self._variable()) is not None:
                    found += value
                    continue
            found += c
            self.at += 1
        # not what follows it, which may be secret
        raise FlagError(f"character {start + 1} opens a quote without its end (no closing quotation)")

    def _variable(self) -> str | None:
        """What a variable, or a computation, stands for here; as it is written where that is not known."""
        if self.shell is SH and (run := _COMPUTED.match(self.text, self.at)):
            self.at = run.end()
            return _computed(run[1]) or run[0]
        found = self.shell.variable.match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        return _value(found, self.shell, self.variables)


def filled_in(text: str, shell: Shell, variables: Mapping[str, str]) -> str:
    """A text with the values of its variables, whatever is in quotes."""
    return shell.variable.sub(lambda found: _value(found, shell, variables), text)


def _value(found: re.Match[str], shell: Shell, variables: Mapping[str, str]) -> str:
    """What a variable stands for; as it is written where nobody sets it."""
    name, default = next(group for group in found.groups() if group), found.groupdict().get("default")
    folds = shell in (CMD, POWERSHELL)
    values = {key.lower(): value for key, value in variables.items()} if folds else variables
    return values.get(name.lower() if folds else name) or (found[0] if default is None else default)


def _computed(text: str | None) -> str:
    """A product of numbers, as in ``$((32 * 1024))``; empty for what is none."""
    if text is None or not re.fullmatch(r"\s*\d{1,18}\s*(\*\s*\d{1,18}\s*){0,9}", text, re.ASCII):
        return ""
    return str(prod(int(factor) for factor in text.split("*")))
