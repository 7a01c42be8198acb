"""The commands that read their own arguments: ``memplan.cli.NAME`` has ``run(argv) -> exit status`` for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

DIRECT: Final[Mapping[str, str]] = {
    "estimate": "What llama.cpp will allocate on every device.",
    "devices": "This machine's GPUs and memory, and a rig file of them.",
    "header": "A model's header as a file of its own.",
}
"""Name and what it is for, in the order of ``memplan --help``."""
