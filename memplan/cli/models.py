"""``memplan models``: the built-in models."""

from __future__ import annotations

import json as json_module
import sys
from typing import Annotated

import typer

from memplan.cli import complete
from memplan.cli.command import APP, Command, Json
from memplan.errors import UnknownModel, shown

app = typer.Typer(**APP)


@app.command(cls=Command, epilog="Examples:\n  memplan models\n  memplan models qwen3\n")
def models(
    name: Annotated[str, typer.Argument(metavar="[NAME]", autocompletion=complete.models)] = "", json: Json = False
) -> int:
    """List the built-in models with their recipes, all or those that have NAME in their own. A recipe that stands for a
    published file names it. Where a maker's types are not public, as of Unsloth's UD-IQ1_S to UD-Q3_K_XL, none does:
    the address of a file in a model's place (hf:OWNER/REPO:QUANT) reads its header alone, without its data.
    """
    from memplan.cli import terminal
    from memplan.cli.waiting import working
    from memplan.models.builtin import builtin_header
    from memplan.models.catalogue import MODELS

    found = [model for model in MODELS.values() if name.lower() in f"{model.name} {model.about}".lower()]
    if not found:
        raise UnknownModel(f"no built-in model has {shown(name)} in its name; memplan models lists all")
    rows = []
    with working("reading"):
        for model in found:
            for recipe, types in model.recipes.items():
                tensors = builtin_header(f"{model.name}:{recipe}").tensors.values()
                size = sum(tensor.nbytes for tensor in tensors)
                rows.append((f"{model.name}:{recipe}", recipe == model.default, size, types.about))
    if json:
        listed = [dict(zip(("name", "default", "bytes", "about"), row, strict=True)) for row in rows]
        sys.stdout.write(json_module.dumps({"models": listed}, indent=2) + "\n")
        return 0
    column = max(len(name) for name, *_ in rows)
    for model in found:
        sys.stdout.write(terminal.fitted(f"{model.name}: {model.about} ({model.arch})\n"))
        for name, default, size, about in rows:
            if name.startswith(f"{model.name}:"):
                mark = "*" if default else " "
                line = f"  {mark} {name:<{column}}{size / 2**30:>8,.1f} GiB  {about}\n"
                sys.stdout.write(terminal.fitted(line, indent=" " * (column + 16)))
    sys.stdout.write("* is what the bare name stands for\n")
    return 0
