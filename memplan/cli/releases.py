"""``memplan releases``: the builds of llama.cpp that are modelled."""

from __future__ import annotations

import json as json_module
import sys
from typing import Annotated

import typer


def releases(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """List the builds of llama.cpp that are followed, and what each changed for memory."""
    from memplan.models.registry import ARCHITECTURES, find_architecture
    from memplan.releases import BUILDS, FORKS, LATEST

    known = (*BUILDS, *FORKS)
    if json:
        listed = [
            {
                "name": release.name,
                "build": release.build,
                "default": release is LATEST,
                "fork": release in FORKS,
                "asked": release.asked,
                "changed": release.changed,
            }
            for release in known
        ]
        architectures = [{"name": name, "since": find_architecture(name).since or None} for name in ARCHITECTURES]
        sys.stdout.write(json_module.dumps({"releases": listed, "architectures": architectures}, indent=2) + "\n")
        return 0
    from textwrap import fill

    from memplan.cli import terminal

    width = min(terminal.width(), 100)
    for release in known:
        mark = "*" if release is LATEST else " "
        made = "a fork of build" if release in FORKS else "build"
        read = "" if release.asked else " (read)"
        sys.stdout.write(f"{mark} {release.name:<8} {made} {release.build}{read}\n")
        sys.stdout.write(
            fill(release.changed, width, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False) + "\n"
        )
    sys.stdout.write(
        fill(
            "* is the default. A real llama.cpp of each build was asked; where it says (read), the source alone was"
            " read. A build between two of these takes the older one, a build newer than all takes the newest;"
            " answers for such a build say so.",
            width,
        )
        + "\n"
    )
    names = [
        name if not (since := find_architecture(name).since) else f"{name} (since build {since})"
        for name in ARCHITECTURES
    ]
    asked = [release.name for release in BUILDS if release.asked and release.others_asked]
    text = f"Architectures, of which {', '.join(asked)} were asked: {', '.join(names)}."
    sys.stdout.write(fill(text, width, break_on_hyphens=False) + "\n")
    return 0
