"""What a sweep varies: ``ctx=4096:1048576``, ``np=1,2,4``, ``indexer=fused,unfused``, ``gpu=RTX 3090,2*RTX 3090``.

An axis is any llama-server flag, a path (``indexer``), or ``llama``, ``gpu`` or ``app``. Commas separate values, or
semicolons where a value has commas itself. For numbers, ``A:B`` doubles from A up to B, ``A:B:STEP`` counts,
``A:B:xF`` multiplies by F; ``k`` and ``m`` stand for 1024 and 1048576.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from memplan.errors import FlagError, shown
from memplan.llama import flag_table as table
from memplan.llama.flag_fields import NAMES_MODEL, same_setting
from memplan.llama.flag_words import arity, unknown_flag
from memplan.models.paths import path_names

Value = int | str
"""One value of an axis: a number where the flag takes one."""

SHORT: Final[Mapping[str, tuple[str, ...]]] = {
    "ctx": ("-c",),
    "context": ("-c",),
    "batch": ("-b",),
    "ubatch": ("-ub",),
    "slots": ("-np",),
    "cache": ("-ctk", "-ctv"),
}
"""Names of axes beside the flags' own."""

WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "llama": (),
    "gpu": (),
    **dict.fromkeys(path_names(), ("fused", "unfused")),
    "app": ("server", "cli"),
}
"""Axes that are no flags, and the values they take; () for any. Paths are among them."""

_ANY_MODELS: Final = "llama, gpu, app, or a path that the model has (memplan paths)"

MAX_VALUES: Final = 4096
MAX_POINTS: Final = 20_000
MAX_NUMBER: Final = 2**31 - 1
"""The largest number that a flag takes."""

_NUMBER = r"([0-9]{1,80})([kKmM]?)"
_RANGE = re.compile(rf"{_NUMBER}(?::{_NUMBER}(?::(?:{_NUMBER}|[xX*]([0-9]{{1,4}}(?:\.[0-9]{{1,6}})?)))?)?", re.ASCII)
_SCALE: Final = {"": 1, "k": 1 << 10, "m": 1 << 20}
_OPPOSITE: Final[Mapping[str, str]] = {
    "-kvu": "-no-kvu",
    "--kv-unified": "--no-kv-unified",
    "-kvo": "-nkvo",
    "--kv-offload": "--no-kv-offload",
    "--op-offload": "--no-op-offload",
    "--repack": "--no-repack",
    "--mmap": "--no-mmap",
    "-nkvo": "-kvo",
    "--no-kv-offload": "--kv-offload",
    "--no-op-offload": "--op-offload",
    "-nr": "--repack",
    "--no-repack": "--repack",
}
_BESIDE: Final = same_setting("-md", "--mmproj")
"""Flags that name another model beside the main one."""

_COUNTS: Final = same_setting("-ngl")
"""Flags that take numbers, and a few words beside them."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One thing that is varied.

    ``name``: as it was asked for.  ``flags``: the llama-server flags it sets; empty for ``llama``, ``gpu``, ...
    ``values``: in order, each once.
    """

    name: str
    flags: tuple[str, ...]
    values: tuple[Value, ...]

    @property
    def is_number(self) -> bool:
        """Whether every value is a number, so that the axis has a direction."""
        return all(isinstance(value, int) for value in self.values)

    @property
    def is_path(self) -> bool:
        """Whether this is a path: what can be computed in fused ops, or from small ones."""
        return not self.flags and WORDS[self.name] == ("fused", "unfused")

    @property
    def is_context(self) -> bool:
        """Whether this is ``-c``."""
        return bool(self.flags) and self.flags[0] in same_setting("-c")

    def is_called(self, name: str) -> bool:
        """Whether ``name`` means this axis: its own name, or another of the same flags. Raises FlagError."""
        return self.name == name or (bool(self.flags) and axis_flags(name) == self.flags)

    @property
    def replaced(self) -> frozenset[str]:
        """The flags that would set what this axis sets."""
        return same_setting(*self.flags)

    def words(self, value: Value) -> list[str]:
        """llama-server's flags for one value."""
        words: list[str] = []
        for flag in self.flags:
            if arity(flag):
                words += [flag, str(value)]
            elif value == "on":
                words.append(flag)
            elif flag in _OPPOSITE:
                words.append(_OPPOSITE[flag])
        return words

    def label(self, value: Value) -> str:
        """One value in words: ``-np 4``, ``v0.4.0``, ``no fused indexer``, ``2*RTX 3090``."""
        if self.is_path:
            return f"fused {self.name}" if value == "fused" else f"no fused {self.name}"
        if not self.flags:
            return str(value)
        if self.is_context and isinstance(value, int):
            return f"{value:,} tokens"
        if not arity(self.flags[0]):
            return self.flags[0] if value == "on" else f"no {self.flags[0]}"
        return f"{' '.join(self.flags)} {value}"


def parse_axis(text: str) -> Axis:
    """The axis of ``NAME=VALUES``. Raises FlagError, in one line."""
    if not isinstance(text, str):
        raise TypeError(f"an axis is a text such as 'ub=256,512'; this is of type {type(text).__name__}")
    name, equals, values = text.partition("=")
    name = name.strip()
    if not equals or not name or not values.strip():
        raise FlagError(f"--over {shown(text)}: must be NAME=VALUES, as in ctx=4096:1048576 or np=1,2,4")
    return make_axis(name, [part.strip() for part in values.split(";" if ";" in values else ",")])


def make_axis(name: str, values: Sequence[Value]) -> Axis:
    """The axis of a name and its values, which may be ranges (``4096:1048576``). Raises FlagError."""
    where = f"--over {_cut(name)}="
    if not values:
        raise FlagError(f"{where}: no values")
    found: list[Value] = []
    flags = axis_flags(name)
    for value in values:
        found += [value] if isinstance(value, int) else _read(where, name, flags, value)
        if len(found) > MAX_VALUES:
            raise FlagError(f"{where}: more than {MAX_VALUES} values")
    return Axis(name, flags, tuple(dict.fromkeys(found)))


def _cut(text: str) -> str:
    """``text`` short enough to be told again."""
    return text if len(text) <= 60 else f"{text[:60]}..."


def axis_flags(name: str, option: str = "--over") -> tuple[str, ...]:
    """The flags that an axis sets: one, or several joined by ``+`` (``ctk+ctv``). Raises FlagError.

    ``option``: how it was asked for.
    """
    if name in WORDS:
        return ()
    return tuple(flag for part in name.split("+") for flag in _flags(name, part.strip(), option))


def _flags(name: str, part: str, option: str) -> tuple[str, ...]:
    if part in SHORT:
        return SHORT[part]
    spelt = part.replace("_", "-")
    for flag in (spelt,) if spelt.startswith("-") else (f"-{spelt}", f"--{spelt}"):
        count = arity(flag)
        if count is not None and flag in table.ARITY:
            if flag in NAMES_MODEL | _BESIDE:
                raise FlagError(f"{option} {_cut(name)}: one model each time; memplan compare puts two side by side")
            if count > 1:
                raise FlagError(f"{option} {_cut(name)}: {flag} takes {count} values and cannot be swept")
            return (flag,)
    import difflib

    names = [*WORDS, *SHORT, *(flag.lstrip("-") for flag in table.ARITY)]
    near = difflib.get_close_matches(spelt.lstrip("-"), names, n=3, cutoff=0.7)
    hint = f"did you mean {' or '.join(near)}?" if near else f"take a llama-server flag, {_ANY_MODELS}"
    if spelt.startswith("-"):
        raise FlagError(f"{option} {_cut(name)}: {unknown_flag(spelt)}")
    raise FlagError(f"{option} {shown(name)}: there is no such axis; {hint}")


def _read(where: str, name: str, flags: tuple[str, ...], text: str) -> list[Value]:
    """The values that one item stands for."""
    if not text:
        raise FlagError(f"{where}: a value is missing between two commas")
    if not flags:
        return _words(where, name, text)
    if not arity(flags[0]):
        if text not in ("on", "off"):
            raise FlagError(f"{where}{_cut(text)}: {flags[0]} takes no value; sweep it with on and off")
        return [text]
    if not all(flag in table.NUMBER or flag in _COUNTS for flag in flags):
        return [text]
    match = _RANGE.fullmatch(text)
    if match:
        return list(_numbers(f"{where}{_cut(text)}", match))
    if re.fullmatch(r"-[0-9]{1,9}", text):
        return [int(text)]
    if all(flag in _COUNTS for flag in flags):
        return [text]
    form = "must be a number, A:B (doubling), A:B:STEP or A:B:xFACTOR, as in 4096:1048576"
    if spanned := re.fullmatch(r"([0-9]{1,9})(?:-|\.\.\.?)([0-9]{1,9})", text, re.ASCII):
        form = f"{form}; did you mean {spanned[1]}:{spanned[2]}:1?"
    raise FlagError(f"{where}{_cut(text)}: {form}")


def _words(where: str, name: str, text: str) -> list[Value]:
    if name == "llama":
        from memplan.releases import BUILDS, find_release

        if text == "all":
            return [release.name for release in BUILDS]
        find_release(text)
    elif name == "gpu":
        from memplan.rig import parse_gpus

        parse_gpus(gpu_specs(text))
    elif text not in WORDS[name]:
        raise FlagError(f"{where}{_cut(text)}: must be {' or '.join(WORDS[name])}")
    return [text]


def gpu_specs(value: str) -> list[str]:
    """The ``--gpu`` specs of one value of the axis ``gpu``: ``RTX 5090+2*RTX 3090`` is two."""
    return [part.strip() for part in value.split("+")]


def _numbers(where: str, match: re.Match[str]) -> Iterator[int]:
    start, scale, stop, stop_scale, step, step_scale, factor = match.groups()
    low = int(start) * _SCALE[scale.lower()]
    if max(low, int(stop or 0) * _SCALE[(stop_scale or "").lower()]) > MAX_NUMBER:
        raise FlagError(f"{where}: too large; llama.cpp takes at most {MAX_NUMBER}")
    if stop is None:
        yield low
        return
    high = int(stop) * _SCALE[stop_scale.lower()]
    if high < low:
        raise FlagError(f"{where}: a range must rise, from {high} to {low}")
    if step is not None:
        width = int(step) * _SCALE[step_scale.lower()]
        if width == 0:
            raise FlagError(f"{where}: a step of 0 never arrives")
        if (high - low) // width > MAX_VALUES:
            raise FlagError(f"{where}: more than {MAX_VALUES} values")
        yield from range(low, high + 1, width)
        return
    ratio = float(factor or 2)
    if low == 0 or ratio < 1.01:
        raise FlagError(f"{where}: multiplying must start above 0, by 1.01 or more; to count, write {low}:{high}:1")
    value = float(low)
    while round(value) < high:
        yield round(value)
        value *= ratio
    yield high
