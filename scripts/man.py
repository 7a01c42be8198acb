"""Make ``docs/memplan.1``, the man page, from the commands' own help.

python scripts/man.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memplan import __version__
from memplan.cli.command import records
from memplan.cli.commands import COMMANDS, find_command

PAGE = Path(__file__).parent.parent / "docs" / "memplan.1"

HEAD = """\
.TH MEMPLAN 1 "" "memplan {version}" "User Commands"
.SH NAME
memplan \\- what llama.cpp allocates on every device with these flags
.SH SYNOPSIS
.B memplan
.I COMMAND
.RI [ MODEL ]
.RI [ "llama\\-server\\(aqs flags" ]
.RI [ options ]
.SH DESCRIPTION
memplan replays llama.cpp\\(aqs planning on tensors without data: weights, caches, compute buffers and what kernels
take, for GPUs that need not be there. Options, and llama\\-server\\(aqs flags, stand in any order.
.SH COMMANDS
"""

TAIL = """\
.SH ENVIRONMENT
.TP
.B LLAMA_ARG_*
are read as llama\\-server reads them.
.TP
.BR NO_COLOR ", " TERM
No colours where the first is set, or the second is \\(lqdumb\\(rq.
.TP
.B MEMPLAN_DEBUG
Show the traceback of a fault in memplan itself.
"""


def roff(text: str) -> str:
    """Text as roff has it."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return re.sub(r"^\.", r"\\&.", text, flags=re.MULTILINE)


def section(name: str) -> Iterator[str]:
    """A command's part of the page."""
    command: Any = find_command(name)
    ctx = command.make_context(f"memplan {name}", [], resilient_parsing=True)
    yield f".SS memplan {roff(' '.join([name, *command.collect_usage_pieces(ctx)]))}"
    for paragraph in command.help.strip().split("\n\n"):
        yield from (roff(" ".join(paragraph.split())), ".PP")
    own = [param for param in command.params if param not in command.referred()]
    for spelled, text in records(ctx, own):
        yield from (".TP", f".B {roff(spelled)}", roff(text))
    yield from (".PP", ".nf", roff(command.epilog.strip()), ".fi")


def page() -> str:
    """The whole page."""
    lines = [line for name in COMMANDS for line in section(name)]
    return HEAD.format(version=__version__) + "\n".join(lines) + "\n" + TAIL


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
