"""The files of ``presets/`` for llama-server's ``--models-preset``, which ``scripts/presets.py`` makes: finding one."""

from __future__ import annotations

import re
from pathlib import Path

from memplan.errors import SourceError, shown


def presets_folder() -> Path:
    """Where the files lie: in the package, or beside it in a checkout. Raises SourceError."""
    here = Path(__file__).resolve().parent.parent
    for folder in (here / "presets", here.parent / "presets"):
        if folder.is_dir():
            return folder
    raise SourceError("the presets are not installed with this copy of memplan")


def find_preset(name: str) -> Path:
    """The file of a preset, by its name or the beginning of it. Raises SourceError."""
    wanted = name.removesuffix(".ini")
    files = sorted(presets_folder().glob("*.ini"))
    exact = [file for file in files if file.stem == wanted]
    of_rig = [file for file in files if file.stem.split(".")[0] == wanted]
    found = exact or of_rig[:1] or [file for file in files if file.stem.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    if not wanted:
        raise SourceError("which preset? memplan preset list names them all")
    if found:
        more = f" and {len(found) - 4} more" if len(found) > 4 else ""
        raise SourceError(f"preset {shown(name)}: which of {', '.join(file.stem for file in found[:4])}{more}?")
    near = [file.stem for file in files if wanted.lower().replace(" ", "-") in file.stem][:4]
    hint = f"did you mean {' or '.join(near)}? " if near else "there is none; "
    raise SourceError(f"preset {shown(name)}: {hint}memplan preset list names them all")


def about(text: str) -> str:
    """The first line of a preset's header."""
    match = re.match(r"; (.*)", text)
    return match[1] if match else ""
