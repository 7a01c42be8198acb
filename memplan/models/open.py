"""From what a user calls a model - a path, an address or a built-in name - to its header."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from memplan.errors import FlagError, UnknownModel, shown
from memplan.gguf.header import Header
from memplan.gguf.source import read_header
from memplan.models.builtin import builtin_header, is_builtin, near_names

if TYPE_CHECKING:
    from memplan.gguf.remote import Access


def open_model(model: str | os.PathLike[str], access: Access | None = None, changes: Sequence[str] = ()) -> Header:
    """The header of ``model``: a GGUF file, any shard of a split one, a header-only file, an address, a built-in name.

    A string that starts with a built-in model's name is one (``deepseek-v4-flash``, ``deepseek-v4-flash:mxfp4``); write
    ``./deepseek-v4-flash`` for a file so called. Addresses are ``https://...``, ``hf:OWNER/REPO/FILE.gguf``,
    ``hf:OWNER/REPO:QUANT`` and the same with ``modelscope:``; ``access`` says how the network may be used for them.
    ``changes``: hyper-parameters that a built-in model has otherwise (``expert_count=132``); its tensors follow.
    Raises UnknownModel for a name that is none of these, SourceError for a file that cannot be read, RemoteError for
    an address that cannot be reached, what ``read_header`` raises for its contents, and TypeError for what is no name.
    """
    if isinstance(model, os.PathLike):
        return read_header(model)
    if not isinstance(model, str):
        raise TypeError(f"a model is a path, an address or a built-in name; this is of type {type(model).__name__}")
    if is_builtin(model):
        return builtin_header(model, changes)
    check_unchanged(model, changes)
    if is_remote(model):
        from memplan.gguf.remote import read_remote

        return read_remote(model, access)
    check_name(model)
    return read_header(model)


def check_named(model: str) -> None:
    """Raises what ``open_model`` raises for a name that is none, or a file that is not there; reads nothing else."""
    if not (is_builtin(model) or is_remote(model)):
        check_name(model)
        if not os.path.exists(model):
            read_header(model)


def check_unchanged(model: str, changes: Sequence[str]) -> None:
    """Raises FlagError where hyper-parameters of a model that is not built in are to be changed."""
    if changes:
        raise FlagError(
            f"--set {shown(changes[0])}: is for built-in models; {shown(model)} has tensors of its own"
            " (--override-kv replaces a key as llama.cpp does)"
        )


def check_name(model: str) -> None:
    """Raises UnknownModel for what can be no file, naming the built-in models that are called like it."""
    if not is_path(model):
        raise UnknownModel(f"{shown(model)} is neither a file nor a built-in model; {near_names(model)}")


def is_remote(model: str) -> bool:
    """Whether ``model`` is an address, or a hub's name for a model."""
    return model.lower().startswith(("http://", "https://", "hf:", "ms:", "modelscope:"))


def is_path(text: str) -> bool:
    """Whether a name can be a file's alone: no built-in model is called so."""
    if "/" in text or os.sep in text or text.lower().endswith(".gguf"):
        return True
    try:
        return os.path.exists(text)
    except ValueError:  # a NUL in it
        return False
