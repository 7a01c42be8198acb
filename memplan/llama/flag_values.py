"""Values of llama-server's flags, each read as ``common/arg.cpp`` of llama.cpp v0.5.0 reads it.

Every function takes the flag as it was spelled, for the error message, and the value's text; all raise FlagError.
Numbers are read a little more strictly than by ``std::stoi``, which reads ``128k`` as 128 without a word.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Final, Literal

from memplan.backends.devices import BACKENDS
from memplan.errors import FlagError, shown
from memplan.llama import flag_table as table
from memplan.llama.patterns import compile_pattern

ALL_LAYERS: Final = 999
"""``n_gpu_layers`` of ``-ngl auto``, ``-ngl all`` and of no ``-ngl``: more than any model has."""

EXPERTS_PATTERN: Final = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""The pattern that ``-cmoe`` stands for (``common/common.h``: ``LLM_FFN_EXPS_REGEX``)."""

DENSE_PATTERN: Final = r"\.ffn_(up|down|gate)\."
"""What ``-ncffn`` adds to a layer's prefix (``common/common.h``: ``LLM_FFN_DENSE_REGEX``)."""

MAX_OVERRIDES: Final = 4095
"""``llama_max_tensor_buft_overrides()`` less the entry that ends the list; llama.cpp asserts with more."""

FlashAttention = Literal["auto", "on", "off"]
SplitMode = Literal["none", "layer", "row"]
Override = tuple[str, str]
KvOverride = tuple[str, int | float | bool | str]

ON: Final = ("on", "enabled", "true", "1")
OFF: Final = ("off", "disabled", "false", "0")
_AUTO: Final = ("auto", "-1")


IN_MIB: Final = frozenset({"--reserve", "--margin", "--fit-target", "-fitt"})
"""Flags whose values are MiB, beside those that are called so."""


def whole(flag: str, text: str, low: int = -(2**31), high: int = 2**31 - 1) -> int:
    """A whole number from ``low`` to ``high``."""
    if not re.fullmatch(r"\s*[+-]?[0-9]+", text, re.ASCII) or len(text) > 40:
        scaled = re.fullmatch(r"([0-9]{1,9})([kKmM])", text, re.ASCII)
        in_mib = flag.endswith("-mib") or flag in IN_MIB
        sized = re.fullmatch(r"([0-9]{1,6}) ?[gG]([iI]?[bB])?", text, re.ASCII) if in_mib else None
        if sized:
            raise FlagError(f"{flag} {shown(text)}: give it in MiB: {int(sized[1]) * 1024}")
        meant = f"; write {int(scaled[1]) << (10 if scaled[2] in 'kK' else 20)}" if scaled else ""
        raise FlagError(f"{flag} {shown(text)}: must be a whole number{meant}")
    value = int(text)
    if value < low:
        raise FlagError(f"{flag} {value}: must be {low} or more")
    if value > high:
        raise FlagError(f"{flag} {value}: must be {high} or less")
    return value


def positive(flag: str, text: str) -> int:
    """A whole number of 1 or more."""
    return whole(flag, text, 1)


def not_negative(flag: str, text: str) -> int:
    """A whole number of 0 or more."""
    return whole(flag, text, 0)


def choice(flag: str, text: str, choices: Sequence[str]) -> str:
    """One of ``choices``."""
    if text not in choices:
        raise FlagError(f"{flag} {shown(text)}: must be one of {', '.join(choices)}")
    return text


def n_parallel(flag: str, text: str) -> int:
    """Slots; below 0 for llama-server's own choice."""
    value = whole(flag, text, high=table.MAX_SEQUENCES)
    if value == 0:
        raise FlagError(f"{flag} 0: must be 1 or more, or -1 for llama-server's own choice")
    return value


def flash_attn(flag: str, text: str) -> str:
    """on, off or auto, from any of llama.cpp's words for them."""
    for word, spellings in (("on", ON), ("off", OFF), ("auto", _AUTO)):
        if text in spellings:
            return word
    raise FlagError(
        f"{flag} {shown(text)}: {flag} needs a value, on, off or auto; alone, as it used to be, it is {flag} on"
    )


def on_or_off(flag: str, text: str) -> bool:
    """True for on, from any of llama.cpp's words for it."""
    if text not in ON and text not in OFF:
        raise FlagError(f"{flag} {shown(text)}: must be on or off")
    return text in ON


def cache_type(flag: str, text: str) -> str:
    """A type that llama.cpp takes for its KV cache."""
    return choice(flag, text, table.CACHE_TYPES)


def n_gpu_layers(flag: str, text: str) -> int:
    """A number of layers; auto, all and numbers below 0 are all of them."""
    if text in ("auto", "all"):
        return ALL_LAYERS
    if not re.fullmatch(r"\s*[+-]?[0-9]+", text, re.ASCII):
        raise FlagError(f"{flag} {shown(text)}: must be a whole number, auto or all")
    value = whole(flag, text)
    return value if value >= 0 else ALL_LAYERS


def split_mode(flag: str, text: str) -> str:
    """none, layer or row."""
    if text == "tensor":
        raise FlagError(
            f"{flag} tensor: tensor parallelism, which llama.cpp has since April 2026 (pull request 19378), is not"
            " modelled; use layer, row or none"
        )
    if text == "graph":
        raise FlagError(f"{flag} graph: of ik_llama.cpp, not of llama.cpp; use layer, row or none")
    return choice(flag, text, ("none", "layer", "row"))


def load_mode(flag: str, text: str) -> str:
    """How the file is read: auto, none, mmap, mlock, mmap+mlock or dio."""
    return choice(flag, text, ("auto", "none", "mmap", "mlock", "mmap+mlock", "dio"))


def lazy_mode(flag: str, text: str) -> str:
    """Whether tensors of which a few rows are needed are read row by row: auto, on or off."""
    return choice(flag, text, ("auto", "on", "off"))


def tensor_split(flag: str, text: str) -> tuple[float, ...]:
    """Proportions, one a device, as 32-bit floats; split at commas and slashes."""
    values = []
    for part in _parts(flag, text):
        if not re.fullmatch(r"\s*[+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?", part, re.ASCII):
            raise FlagError(f"{flag} {shown(text)}: {shown(part)} is not a number of 0 or more, as in {flag} 3,1")
        try:
            values.append(float(struct.unpack("<f", struct.pack("<f", float(part)))[0]))
        except OverflowError:
            raise FlagError(f"{flag} {shown(text)}: {shown(part)} is too large") from None
    return tuple(values)


def fit_target(flag: str, text: str) -> tuple[int, ...]:
    """Margins in MiB, one for all devices or one each."""
    return tuple(whole(flag, part, 0, 2**40) for part in _parts(flag, text))


def device(flag: str, text: str) -> str:
    """The name of a device as llama.cpp prints it, which it takes in any case (``ggml_backend_dev_by_name``)."""
    name = re.fullmatch(r"([a-z]+)([0-9]+)", text, re.IGNORECASE)
    backend = next((known for known in BACKENDS if name and known.lower() == name[1].lower()), "")
    return f"{backend}{name[2]}" if name and backend else text


def devices(flag: str, text: str) -> tuple[str, ...]:
    """Device names; ``none`` is no device."""
    names = tuple(device(flag, name) for name in text.split(","))
    if names == ("none",):
        return ()
    if "" in names or len(set(names)) < len(names):
        raise FlagError(f"{flag} {shown(text)}: must be different device names, as in {flag} CUDA0,CUDA1")
    return names


def override_tensor(flag: str, text: str) -> tuple[Override, ...]:
    """``parse_tensor_buffer_overrides``: split at every comma, then at the first equals sign."""
    found = []
    for part in text.split(","):
        pattern, equals, buffer_type = part.partition("=")
        if not equals:
            raise FlagError(
                f"{flag} {shown(text)}: {shown(part)} is not PATTERN=BUFFER, as in exps=CPU"
                " (a comma ends a pattern, even inside braces)"
            )
        compile_pattern(pattern)
        found.append((pattern, buffer_type))
    return tuple(found)


def cpu_moe(flag: str, text: str) -> tuple[Override, ...]:
    """Every expert tensor on the CPU."""
    return ((EXPERTS_PATTERN, "CPU"),)


def n_cpu_moe(flag: str, text: str) -> tuple[Override, ...]:
    """The expert tensors of the first layers on the CPU, one pattern a layer."""
    return _first_layers(flag, text, EXPERTS_PATTERN)


def n_cpu_ffn(flag: str, text: str) -> tuple[Override, ...]:
    """The dense feed-forward tensors of the first layers on the CPU, one pattern a layer."""
    return _first_layers(flag, text, DENSE_PATTERN)


def override_kv(flag: str, text: str) -> tuple[KvOverride, ...]:
    """``string_parse_kv_override``, for each field of a comma-separated line with quotes."""
    return tuple(_kv_override(flag, field) for field in _csv(text))


def _first_layers(flag: str, text: str, pattern: str) -> tuple[Override, ...]:
    return tuple((rf"blk\.{i}{pattern}", "CPU") for i in range(whole(flag, text, 0, MAX_OVERRIDES)))


def _parts(flag: str, text: str) -> list[str]:
    """Comma- or slash-separated values; one separator at the end is no value."""
    parts = re.split(r"[,/]+", text)
    if len(parts) > 1 and not parts[-1]:
        parts.pop()
    if len(parts) >= table.MAX_DEVICES:
        raise FlagError(f"{flag}: {len(parts)} values; llama.cpp takes at most {table.MAX_DEVICES - 1}")
    return parts


def _kv_override(flag: str, text: str) -> KvOverride:
    key, equals, rest = text.partition("=")
    kind, colon, value = rest.partition(":")
    if not equals or not colon or not key or len(key.encode()) >= 128 or kind not in ("int", "float", "bool", "str"):
        raise FlagError(f"{flag} {shown(text)}: must be KEY=TYPE:VALUE with int, float, bool or str as the type")
    if key == "general.architecture":
        raise FlagError(f"{flag} {key}: another architecture's graph is not modelled; the file's own is taken")
    if kind == "bool":
        return key, choice(f"{flag} {key}", value, ("true", "false")) == "true"
    if kind == "int":
        return key, whole(f"{flag} {key}", value, -(2**63), 2**63 - 1)
    if kind == "float":
        try:
            return key, float(value)
        except ValueError:
            raise FlagError(f"{flag} {key} {shown(value)}: must be a number") from None
    if len(value.encode()) > 127:
        raise FlagError(f"{flag} {key}: a string of at most 127 bytes, this one has {len(value.encode())}")
    return key, value


def _csv(text: str) -> list[str]:
    """``parse_csv_row``: fields in double quotes may hold commas, two quotes stand for one."""
    fields = [""]
    quoted = False
    i = 0
    while i < len(text):
        char = text[i]
        if char == '"' and quoted and text[i + 1 : i + 2] == '"':
            fields[-1] += char
            i += 1
        elif char == '"' and (quoted or not fields[-1]):
            quoted = not quoted
        elif char == "," and not quoted:
            fields.append("")
        else:
            fields[-1] += char
        i += 1
    return fields
