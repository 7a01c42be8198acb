"""A pasted command line as what the form holds: a model, GPUs, a release, and llama-server's flags one by one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from memplan.backends.devices import Rig
from memplan.backends.visible import UNIFIED, VARIABLES, rig_seen
from memplan.errors import FlagError, shown
from memplan.llama.command_line import read_line, read_text
from memplan.llama.environment import UNMODELLED, environment_flags
from memplan.llama.flag_fields import NAMES_MODEL, same_setting
from memplan.llama.flag_values import whole
from memplan.llama.flag_words import arity, normalized, split_words, unknown_flag, without_secrets
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_like
from memplan.releases import find_release
from memplan.rig import parse_gpu_spec

FIELDS: Final = (
    "-c", "-np", "-b", "-ub", "-ctk", "-ctv", "-fa", "-ncmoe", "-ngl", "-md", "--spec-type",
)  # fmt: skip
"""Flags that have a field of their own in the form."""

_OWN: Final = ("--gpu", "--host-mib", "--llama", "--app")
"""memplan's own options that the form has fields for."""

BESIDE: Final = ("--reserve", "--filled", "--path", "--without-op")
"""Those that stand among the other flags."""

_COUNTED: Final = re.compile(r"^\s*\d+\s*[*x]\s*")

_MEMPLAN: Final = re.compile(r"^\s*memplan(\s+(estimate|plan|sweep|plot|explain)\b)?")


def read_pasted(text: str, gpus: Sequence[str] = ()) -> dict[str, Any]:
    """The parts of a llama-server, llama-cli or memplan command line. Raises FlagError, RigError.

    ``gpus``: those of the form, of which the line's environment may leave some.

    ``model``: as it was named, "" for none; ``builtin``: the built-in model that a file of this name seems to be.
    ``flags``: each with the field it belongs to (None: it has none) and its words.  ``left_out``: flags whose value is
    secret.  ``gpus``, ``host_mib``, ``llama``, ``app``: None where the line does not say.  ``notes``: what to know of
    its environment.
    """
    line = read_text(text) or read_line(split_line(_MEMPLAN.sub("", text)), (*_OWN, *BESIDE))
    words, left_out = without_secrets(line.words)
    no_gpu = "--no-gpu" in words
    own, flags, models = sort_words([word for word in words if word != "--no-gpu"], (*_OWN, *BESIDE))
    llama, app = (own[name][-1] if own[name] else None for name in ("--llama", "--app"))
    of_environment, notes = environment_flags(line.environment, find_release(llama or "latest")[0].build)
    specs = own["--gpu"] if own["--gpu"] or no_gpu else None
    if (specs or gpus) and any(name in line.environment for name in VARIABLES.values()):
        specs, seen = _seen(specs or gpus, line.environment)
        notes += seen
    notes += [f"{UNIFIED} is left out: give the free memory that llama.cpp sees"] if UNIFIED in line.environment else []
    notes += [f"{name} is not modelled" for name in UNMODELLED if name in line.environment]
    read = parse_flags([*of_environment, *flags], app or line.app or "server")
    if len(models) > 1 or (models and read.model):
        raise FlagError(f"more than one model: {' and '.join(map(shown, [*models, read.model][:2]))}; give only one")
    model = read.model or (models[0] if models else "")
    rest = read.without(NAMES_MODEL).words()
    beside = [(name, value) for name in BESIDE for value in own[name]]
    return {
        "model": model,
        "builtin": builtin_like(model),
        "flags": [{"field": _field(words[0]), "words": list(words)} for words in (*split_words(rest), *beside)],
        "gpus": specs,
        "host_mib": whole("--host-mib", own["--host-mib"][-1], 1, 1 << 30) if own["--host-mib"] else None,
        "llama": llama,
        "app": app or line.app or None,
        "left_out": left_out,
        "notes": notes,
    }


def sort_words(words: Sequence[str], own: Sequence[str]) -> tuple[dict[str, list[str]], list[str], list[str]]:
    """Values by memplan's ``own`` options, llama-server's flags with theirs, what stands alone. Raises FlagError."""
    found: dict[str, list[str]] = {name: [] for name in own}
    flags: list[str] = []
    alone: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        count = arity(word)
        if word in found:
            if not left:
                raise FlagError(f"{word} needs a value after it")
            found[word].append(left.pop(0))
        elif count is not None:
            flags += [word, *left[:count]]
            del left[:count]
        elif word.startswith("-") and len(word) > 1:
            raise unknown_flag(word, own, left)
        else:
            alone.append(word)
    return found, flags, alone


def _seen(specs: Sequence[str], environment: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The specs of the cards that a program sees which starts with these variables, and what to say of it."""
    each = [_COUNTED.sub("", spec) for spec in specs for _ in parse_gpu_spec(spec)]
    gpus = [parse_gpu_spec(spec)[0] for spec in each]
    seen, notes = rig_seen(Rig(tuple(gpus)), environment)
    return [next(spec for spec, gpu in zip(each, gpus, strict=True) if gpu is kept) for kept in seen.gpus], notes


def split_line(text: str) -> list[str]:
    """The words of a line as a shell parts them. Raises FlagError."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise FlagError(f"the line cannot be read: {str(error).lower()}") from None


def _field(flag: str) -> str | None:
    return next((field for field in FIELDS if normalized(flag) in same_setting(field)), None)
