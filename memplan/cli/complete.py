"""What a shell may offer for a word: values of memplan's options, of llama-server's flags, and models."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "_MEMPLAN_COMPLETE"
"""The variable by which typer's scripts ask for completions."""


def models(ctx: Any, incomplete: str) -> list[str]:
    """Built-in models, and GGUF files; or values of the flag of llama-server's that stands before."""
    from memplan.models.builtin import builtin_names
    from memplan.models.catalogue import MODELS

    words = ctx.obj.names
    if words[-1:] == [":"]:  # bash parts words there
        return [name.partition(":")[2] for name in builtin_names() if name.startswith(f"{''.join(words[-2:-1])}:")]
    values = _flag_values(words[-1]) if words and words[-1] not in ctx.command.known().names else None
    if values is not None:
        return list(values)
    names = builtin_names() if ":" in incomplete else MODELS
    folder, _, _ = incomplete.rpartition("/")
    files = [str(path) for path in Path(folder).glob("*.gguf")] if os.path.isdir(folder or ".") else []
    return [*names, *files]


def _flag_values(flag: str) -> Iterable[str] | None:
    """What may follow a flag of llama-server's: nothing is known of a file; None after no flag that takes a value."""
    from memplan.llama import flag_table as table
    from memplan.llama.flag_fields import same_setting
    from memplan.llama.flag_words import arity, normalized

    if not arity(flag):
        return None
    known = {
        "-ctk": table.CACHE_TYPES, "-ctv": table.CACHE_TYPES, "-ctkd": table.CACHE_TYPES, "-ctvd": table.CACHE_TYPES,
        "-fa": ("on", "off", "auto"), "-sm": ("layer", "row", "none"), "-fit": ("on", "off"), "-ngl": ("all", "auto"),
        "--pooling": table.POOLING,
    }  # fmt: skip
    return next((values for name, values in known.items() if normalized(flag) in same_setting(name)), ())


def flags(incomplete: str) -> list[Any]:
    """llama-server's flags, for a word that begins with a dash."""
    from typer.core import CompletionItem  # type: ignore[attr-defined]

    from memplan.llama.flag_table import ARITY

    found = sorted(flag for flag in ARITY if flag.startswith(incomplete)) if incomplete else []
    return [CompletionItem(flag) for flag in found]


def cards(incomplete: str) -> list[str]:
    """Cards that ``--gpu`` knows, after how many of them there are."""
    from memplan.backends.cards import CARDS

    count = re.match(r"(\d+\*)?", incomplete)
    # bash puts in what it is given; within quotes it is right as it is
    quoted = os.environ.get("COMP_WORDS", '"').split("\n")[-1][:1] in ("'", '"')
    names = [card.name if quoted else re.sub(r"([ ()])", r"\\\1", card.name) for card in CARDS]
    return [f"{count[0] if count else ''}{name}" for name in names]


def releases(incomplete: str) -> list[str]:
    """What ``--llama`` takes, the newest first."""
    from memplan.releases import FORKS, RELEASES

    return ["latest", *(release.name for release in (*reversed(RELEASES), *FORKS))]


def ops(incomplete: str) -> list[str]:
    """Ops that GPUs can be made to refuse."""
    from memplan.backends.cuda import KNOWN_OPS

    return sorted(KNOWN_OPS)


def paths(incomplete: str) -> list[str]:
    """What ``--path`` takes."""
    from memplan.models.paths import path_names

    return [f"{name}={way}" for name in path_names() for way in ("auto", "fused", "unfused")]


def presets(ctx: Any, incomplete: str) -> list[str]:
    """What ``memplan preset`` takes: what is to be done, then a preset, or a model."""
    from memplan.planning.presets import presets_folder

    words = ctx.obj.names
    if "--fit" in words:
        return models(ctx, incomplete)
    return sorted(file.stem for file in presets_folder().glob("*.ini")) if "show" in words else ["list", "show"]


def mend_bash_words() -> None:
    """Put together words that bash parts at equals signs, and begin one after a colon: in the variables typer reads."""
    words = os.environ.get("COMP_WORDS", "").split("\n")
    number = os.environ.get("COMP_CWORD", "")
    at = int(number) if number.isdecimal() else len(words) - 1
    kept = [word for word in words[: at + 1] if word != "="]
    if words[at : at + 1] in (["="], [":"]):
        kept.append("")
    os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = "\n".join(kept), str(len(kept) - 1)
