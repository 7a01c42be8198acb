"""``memplan releases``: the releases of llama.cpp that are modelled."""

from __future__ import annotations

import json as json_module
import sys
from typing import Annotated

import typer


def releases(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """List the releases of llama.cpp that --llama takes exactly."""
    from memplan.releases import LATEST, RELEASES

    if json:
        listed = [{"name": release.name, "build": release.build, "default": release is LATEST} for release in RELEASES]
        sys.stdout.write(json_module.dumps({"releases": listed}, indent=2) + "\n")
        return 0
    for release in RELEASES:
        mark = "*" if release is LATEST else " "
        sys.stdout.write(f"{mark} {release.name:<8} build {release.build}\n")
    sys.stdout.write("* is the default; a build between two takes the older one, and says so\n")
    return 0
