"""``memplan releases``: the builds of llama.cpp that are modelled."""

from __future__ import annotations

import json as json_module
import sys

import typer

from memplan.cli.command import APP, Command, Json

app = typer.Typer(**APP)


@app.command(cls=Command, epilog="Examples:\n  memplan releases\n  memplan releases --json\n")
def releases(json: Json = False) -> int:
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
    from memplan.cli import terminal
    from memplan.output.wrapping import wrap_words

    width = min(terminal.width(), 100)
    lines = []
    for release in known:
        mark = "*" if release is LATEST else " "
        made = "a fork of build" if release in FORKS else "build"
        read = "" if release.asked else " (read)"
        lines.append(f"{mark} {release.name:<8} {made} {release.build}{read}")
        lines += wrap_words(release.changed, width, "    ", "    ")
    lines += wrap_words(
        "* is the default. A real llama.cpp of each build was asked; where it says (read), the source alone was read. A"
        " build between two of these takes the older one, a build newer than all takes the newest; answers for such a"
        " build say so.",
        width,
    )
    names = [
        name if not (since := find_architecture(name).since) else f"{name} (since build {since})"
        for name in ARCHITECTURES
    ]
    asked = [release.name for release in BUILDS if release.asked and release.others_asked]
    text = f"Architectures, of which {', '.join(asked)} were asked: {', '.join(names)}."
    lines += wrap_words(text, width)
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0
