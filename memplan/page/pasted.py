"""A pasted command line as what the form holds: a model, GPUs, a release, and llama-server's flags one by one."""

from __future__ import annotations

import re
import shlex
from typing import Any, Final

from memplan.backends.visible import UNIFIED, VARIABLES
from memplan.errors import FlagError, shown
from memplan.llama.command_line import read_line, read_text
from memplan.llama.environment import UNMODELLED, environment_flags
from memplan.llama.flag_fields import NAMES_MODEL, same_setting
from memplan.llama.flag_values import whole
from memplan.llama.flag_words import arity, normalized, split_words, unknown_flag, without_secrets
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_like
from memplan.releases import find_release

FIELDS: Final = (
    "-c", "-np", "-b", "-ub", "-ctk", "-ctv", "-fa", "-ncmoe", "-ngl", "-md", "--spec-type",
)  # fmt: skip
"""Flags that have a field of their own in the form."""

_OWN: Final = ("--gpu", "--host-mib", "--llama", "--app")
"""memplan's own options that the form has fields for."""

_MEMPLAN: Final = re.compile(r"^\s*memplan(\s+(estimate|plan|sweep|plot|explain)\b)?")


def read_pasted(text: str) -> dict[str, Any]:
    """The parts of a llama-server, llama-cli or memplan command line. Raises FlagError.

    ``model``: as it was named, "" for none; ``builtin``: the built-in model that a file of this name seems to be.
    ``flags``: each with the field it belongs to (None: it has none) and its words.  ``left_out``: flags whose value is
    secret.  ``gpus``, ``host_mib``, ``llama``, ``app``: None where the line does not say.  ``notes``: what to know of
    its environment.
    """
    line = read_text(text) or read_line(split_line(_MEMPLAN.sub("", text)), _OWN)
    words, left_out = without_secrets(line.words)
    own: dict[str, list[str]] = {name: [] for name in _OWN}
    flags: list[str] = []
    models: list[str] = []
    no_gpu = False
    while words:
        word = words.pop(0)
        count = arity(word)
        if word == "--no-gpu":
            no_gpu = True
        elif word in own:
            if not words:
                raise FlagError(f"{word} needs a value after it")
            own[word].append(words.pop(0))
        elif count is not None:
            flags += [word, *words[:count]]
            del words[:count]
        elif word.startswith("-") and len(word) > 1:
            raise unknown_flag(word, _OWN, words)
        else:
            models.append(word)
    llama, app = (own[name][-1] if own[name] else None for name in ("--llama", "--app"))
    of_environment, notes = environment_flags(line.environment, find_release(llama or "latest")[0].build)
    left = [name for name in (*VARIABLES.values(), UNIFIED) if name in line.environment]
    notes += [f"{name} is left out: give the cards as llama.cpp sees them" for name in left]
    notes += [f"{name} is not modelled" for name in UNMODELLED if name in line.environment]
    read = parse_flags([*of_environment, *flags], app or line.app or "server")
    if len(models) > 1 or (models and read.model):
        raise FlagError(f"more than one model: {' and '.join(map(shown, [*models, read.model][:2]))}; give only one")
    model = read.model or (models[0] if models else "")
    rest = read.without(NAMES_MODEL).words()
    return {
        "model": model,
        "builtin": builtin_like(model),
        "flags": [{"field": _field(words[0]), "words": list(words)} for words in split_words(rest)],
        "gpus": own["--gpu"] if own["--gpu"] or no_gpu else None,
        "host_mib": whole("--host-mib", own["--host-mib"][-1], 1, 1 << 30) if own["--host-mib"] else None,
        "llama": llama,
        "app": app or line.app or None,
        "left_out": left_out,
        "notes": notes,
    }


def split_line(text: str) -> list[str]:
    """The words of a line as a shell parts them. Raises FlagError."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise FlagError(f"the line cannot be read: {str(error).lower()}") from None


def _field(flag: str) -> str | None:
    return next((field for field in FIELDS if normalized(flag) in same_setting(field)), None)
