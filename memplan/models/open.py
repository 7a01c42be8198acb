"""From what a user calls a model - a path or a built-in name - to its header."""

from __future__ import annotations

import os

from memplan.errors import SourceError, UnknownModel, shown
from memplan.gguf.header import Header
from memplan.gguf.source import read_header
from memplan.models.builtin import MODELS, RECIPES, builtin_header, is_builtin

_REMOTE = ("http://", "https://", "hf:")


def open_model(model: str | os.PathLike[str]) -> Header:
    """The header of ``model``: a GGUF file, any shard of a split one, a header-only file, or a built-in name.

    A string that starts with a built-in model's name is one (``deepseek-v4-flash``, ``deepseek-v4-flash:mxfp4``); write
    ``./deepseek-v4-flash`` for a file so called. Raises UnknownModel for a name that is neither, SourceError for a
    file that cannot be read, and what ``read_header`` raises for its contents.
    """
    if isinstance(model, os.PathLike):
        return read_header(model)
    if is_builtin(model):
        return builtin_header(model)
    if model.lower().startswith(_REMOTE):
        raise SourceError(
            f"{shown(model)}: addresses are not supported in this version; download the file, or its header alone, "
            "and give the path"
        )
    if not _is_path(model):
        raise UnknownModel(
            f"{shown(model)} is neither a file nor a built-in model; built in are {', '.join(MODELS)}, each with "
            f":RECIPE of {', '.join(RECIPES)}"
        )
    return read_header(model)


def _is_path(text: str) -> bool:
    if "/" in text or os.sep in text or text.lower().endswith(".gguf"):
        return True
    try:
        return os.path.exists(text)
    except ValueError:  # a NUL in it
        return False
