"""The commands: ``memplan.cli.NAME`` has the typer app of each, which is imported when it is run."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

COMMANDS: Final[Mapping[str, str]] = {
    "estimate": "What llama.cpp will allocate on every device.",
    "sweep": "The same for many settings at once, or the largest that fits.",
    "plot": "A picture of it: context against memory.",
    "plan": "Flags with which a model fits a rig.",
    "preset": "Presets for common rigs, and margins for llama.cpp's --fit.",
    "explain": "Which tensors a compute buffer is made of.",
    "slots": "How many slots fit, and how much context each gets.",
    "paths": "The fused and the unfused indexer side by side.",
    "compare": "What moves between two releases, settings or models.",
    "diagnose": "Why a load failed, from llama.cpp's log.",
    "verify": "llama.cpp's own numbers beside memplan's.",
    "devices": "This machine's GPUs and memory, and a rig file of them.",
    "header": "A model's header as a file of its own.",
    "page": "A page to plan on, in the browser.",
    "completion": "What completes memplan's command lines in a shell.",
    "models": "The built-in models and their recipes.",
    "releases": "The builds of llama.cpp that are followed.",
}
"""Name and what it is for, in the order of ``memplan --help``."""


@cache
def find_command(name: str) -> Any:
    """The typer command of this name."""
    from importlib import import_module

    import typer

    command: Any = typer.main.get_command(import_module(f"memplan.cli.{name}").app)
    command.short_help = COMMANDS[name]
    return command


@cache
def command_options() -> Mapping[str, tuple[str, ...]]:
    """The options of every command, each as it is written."""
    return {name: (*find_command(name).known().names, "-h", "--help") for name in COMMANDS}
