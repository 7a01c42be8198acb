"""Presets of llama-server's router: a file of settings by model, for ``--models-preset``.

Follows ``parse_ini_from_file``, ``load_from_ini`` and ``to_args`` (common/preset.cpp) and ``load_models``
(tools/server/server-models.cpp) of v0.5.0: the router starts a llama-server for a model with the words that its section
amounts to, over those of ``[*]`` and under its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Final

from memplan.errors import FlagError, printable, shown
from memplan.infile import read_input
from memplan.llama.environment import flag_of
from memplan.llama.flag_fields import FIELDS, same_setting
from memplan.llama.flag_table import ARITY
from memplan.llama.flag_values import OFF, ON
from memplan.llama.flag_words import normalized, split_words, without

OPTION: Final = "--models-preset"

EVERY: Final = "*"
UNNAMED: Final = "default"
"""The section whose settings count for all models, and that of lines before any section."""

_ROUTERS_OWN: Final = ("version", "load-on-startup", "stop-timeout", "dedup-cache-models")
"""Keys that are no flags."""

_NEGATIONS: Final = ("-nkvo", "-nr", "-no-kvu", "-ndio", "-nocb", "-no-ag")
"""Short spellings of flags that negate others."""

_LARGEST: Final = 1 << 20

_LINE: Final = re.compile(
    r"\[[ \t]*(?P<section>[^\]]+)\][ \t]*(?:[;#].*)?|(?P<key>[A-Za-z_][\w.-]*)[ \t]*=[ \t]*(?P<value>[^;#]*)(?:[;#].*)?"
    r"|[ \t]*(?:[;#].*)?",
    re.ASCII,
)


def split_name(name: str) -> tuple[str, str]:
    """The file and the part of it that ``FILE#PART`` names; no part where there is a file of the whole name."""
    file, mark, part = name.rpartition("#")
    return (file, part) if mark and not os.path.exists(name) else (name, "")


def read_presets(name: str, option: str = OPTION) -> dict[str, dict[str, str]]:
    """The sections of a file that ``option`` names, each with its keys and values. Raises FlagError."""
    what = f"{option} {shown(name)}".strip()
    try:
        data = read_input(name, _LARGEST)
        text = data.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise FlagError(f"{what}: {reason}; give a file as memplan plan --format ini writes it") from None
    if len(data) > _LARGEST:
        raise FlagError(f"{what}: larger than any preset")
    found: dict[str, dict[str, str]] = {}
    section = UNNAMED
    for number, line in enumerate(re.split(r"\r\n|\n|\r", text), 1):
        read = _LINE.fullmatch(line)
        if read is None:
            # the line itself is not shown: of a script that is no preset, it may be a secret
            raise FlagError(
                f"{what}, line {number} is neither [MODEL] nor KEY = VALUE from its first column on, which llama-server"
                " does not take"
            )
        if read["section"]:
            section = read["section"].strip()
            found[section] = {}
        elif read["key"]:
            found.setdefault(section, {})[read["key"]] = read["value"].rstrip()
    return found


def with_preset(flags: Sequence[str], model: str, environment: Sequence[str] = ()) -> tuple[list[str], str]:
    """A router's flags with those of the preset that it would start for ``model``, and what then is the model.

    ``--models-preset FILE#SECTION`` names the section; else it is the one called ``model``, or the only one. Without
    the option all stays as it is.  ``environment``: the flags that variables stand for, which the router's children
    read too, before all others. Raises FlagError.
    """
    both = [*split_words(environment), *split_words(flags)]
    names = [words[1] for words in both if normalized(words[0]) == OPTION and len(words) == 2]
    if not names:
        return [*environment, *flags], model
    if served := [words[0] for words in both if FIELDS.get(normalized(words[0]), ("",))[0] == "model"]:
        raise FlagError(f"{served[0]} and {OPTION}: llama-server then serves the one model and reads no preset")
    file, section = split_name(names[-1])
    presets = read_presets(file)
    every = setting_words(presets.pop(EVERY, {}), EVERY)
    if UNNAMED in presets and not setting_words(presets[UNNAMED], UNNAMED):
        del presets[UNNAMED]
    chosen = _chosen(presets, section, model, names[-1])
    words = {**every, **setting_words(presets[chosen], chosen)}
    words |= {_setting(own[0]): own for own in split_words(flags)}
    ordered = [word for setting in sorted(words) for word in words[setting]]
    found = without([*environment, *ordered], [OPTION])
    return list(found), "" if model.lower() == chosen.lower() else model


def _chosen(presets: Mapping[str, object], section: str, model: str, name: str) -> str:
    """The section that is asked for. Raises FlagError."""
    by_name = {known.lower(): known for known in presets}
    asked = section or model
    if found := asked if asked in presets else by_name.get(asked.lower()):
        return found
    if section or len(presets) != 1:
        listed = ", ".join(list(presets)[:4]) + (f" and {len(presets) - 4} more" if len(presets) > 4 else "")
        which = f"there is no section {shown(section)}" if section else "which section? write FILE#SECTION"
        raise FlagError(f"{OPTION} {shown(name)}: {which}; it has {printable(listed) or 'none'}")
    return next(iter(presets))


def _setting(flag: str) -> str:
    """What a flag sets, by the spelling that llama.cpp sorts it by."""
    spellings = same_setting(flag)
    return next((known for known in FIELDS if known in spellings), normalized(flag))


def setting_words(pairs: Mapping[str, str], section: str, *, applied: bool = False) -> dict[str, tuple[str, ...]]:
    """The words of each setting of a section; of two spellings of one the later in the alphabet counts.

    ``applied``: as configuration files count (``apply_to_params``), where keys that are no flags are left out, and a
    flag without a value or a negation counts whatever its value is. Raises FlagError.
    """
    found: dict[str, tuple[str, ...]] = {}
    for key, value in sorted(pairs.items()):
        if key in _ROUTERS_OWN or key.startswith("__PRESET"):
            continue
        flag = next((flag for flag in (f"--{key}", f"-{key}", flag_of(key)) if flag in ARITY), "")
        if not flag and applied:
            continue
        if not flag:
            raise FlagError(f"{OPTION}: {shown(key)} in [{printable(section[:60])}] is no option of llama-server's")
        if ARITY[flag] > 1:
            raise FlagError(f"{OPTION}: {shown(key)} takes two values, which no preset can hold")
        found[_setting(flag)] = (flag, value) if ARITY[flag] else _switch(flag, value, applied)
    return found


def _switch(flag: str, value: str, applied: bool) -> tuple[str, ...]:
    """The word for a flag without a value: its negation where there is one and it is off, none where there is not."""
    negated = flag in _NEGATIONS or (flag.startswith("--no-") and ARITY.get(f"--{flag[5:]}") == 0)
    names = [flag, f"--{flag[5:]}", *same_setting(flag)]
    positive = next((name for name in names if ARITY.get(name) == 0 and f"--no-{name[2:]}" in ARITY), "")
    if not positive:
        return () if value in OFF and not applied else (flag,)
    on = value not in ON if negated else value in ON if applied else value not in OFF
    return (positive if on else f"--no-{positive[2:]}",)
