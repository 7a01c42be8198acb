"""A pasted command line as what the form holds: a model, GPUs, a release, and llama-server's flags one by one."""

from __future__ import annotations

import re
import shlex
from typing import Any, Final

from memplan.errors import FlagError, shown
from memplan.llama.flag_fields import same_setting
from memplan.llama.flag_values import whole
from memplan.llama.flag_words import arity, normalized, split_words, unknown_flag, without_secrets
from memplan.llama.flags import parse_flags
from memplan.models.catalogue import MODELS
from memplan.sweeping.axes import MODELS as NAMES_MODEL

FIELDS: Final = (
    "-c", "-np", "-b", "-ub", "-ctk", "-ctv", "-fa", "-ncmoe", "-cmoe", "-ngl", "-md", "--spec-type",
)  # fmt: skip
"""Flags that have a field of their own in the form."""

_OWN: Final = ("--gpu", "--host-mib", "--llama")
"""memplan's own options that the form has fields for."""

_PROGRAM: Final = re.compile(r"(.*[/\\])?(llama-(server|cli|completion)|memplan)(\.exe)?", re.IGNORECASE)
_COMMANDS: Final = ("estimate", "plan", "sweep", "plot")
_CONTINUATION: Final = re.compile(r"[\\^`]\s*\r?\n")


def read_line(text: str) -> dict[str, Any]:
    """The parts of a llama-server or memplan command line. Raises FlagError.

    ``model``: as it was named, "" for none; ``builtin``: the built-in model that a file of this name seems to be.
    ``flags``: each with the field it belongs to (None: it has none) and its words.  ``left_out``: flags whose value is
    secret.  ``gpus``, ``host_mib``, ``llama``: None where the line does not say.
    """
    words, left_out = without_secrets(_after_program(split_line(text)))
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
            raise unknown_flag(word, _OWN)
        else:
            models.append(word)
    read = parse_flags(flags)
    model = read.model or (models[0] if models else "")
    if len(models) > 1 or (models and read.model):
        raise FlagError(f"more than one model: {' and '.join(map(shown, [*models, read.model][:2]))}; give only one")
    rest = read.without(NAMES_MODEL).words()
    return {
        "model": model,
        "builtin": builtin_of(model),
        "flags": [{"field": _field(words[0]), "words": list(words)} for words in split_words(rest)],
        "gpus": own["--gpu"] if own["--gpu"] or no_gpu else None,
        "host_mib": whole("--host-mib", own["--host-mib"][-1], 1, 1 << 30) if own["--host-mib"] else None,
        "llama": own["--llama"][-1] if own["--llama"] else None,
        "left_out": left_out,
    }


def builtin_of(name: str) -> str:
    """The built-in model and recipe that a file of this name seems to be, as ``MODEL:RECIPE``; "" for none."""
    key = _key(re.split(r"[/\\]", name)[-1])
    found = max((model for model in MODELS if _key(model) in key), key=len, default="")
    if not found:
        return ""
    recipe = max((recipe for recipe in MODELS[found].recipes if _key(recipe) in key), key=len, default="")
    return f"{found}:{recipe or MODELS[found].default}"


def _key(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _field(flag: str) -> str | None:
    return next((field for field in FIELDS if normalized(flag) in same_setting(field)), None)


def split_line(text: str) -> list[str]:
    """The words of a line as a shell parts them, continued lines as one. Raises FlagError."""
    try:
        return shlex.split(_CONTINUATION.sub(" ", text))
    except ValueError as error:
        raise FlagError(f"the line cannot be read: {str(error).lower()}") from None


def _after_program(words: list[str]) -> list[str]:
    """What follows the program, whatever stands before it: an environment, sudo, docker run."""
    at = next((i for i, word in enumerate(words) if _PROGRAM.fullmatch(word)), -1)
    rest = words[at + 1 :]
    return rest[1:] if at >= 0 and rest and "memplan" in words[at].lower() and rest[0] in _COMMANDS else rest
