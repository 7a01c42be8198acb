"""The command line: the only floor that parses arguments, prints and sets the exit status.

``main`` is the console command. Nothing is imported before it runs, so that Ctrl-C has nowhere to end in a traceback.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``memplan`` with ``argv`` (the process's own by default) and return its exit status.

    0: answered; 1: ``--check`` found that it does not fit; 2: bad input, or stdout that cannot be written, in one line
    on stderr; 130: interrupted; 141: nobody reads stdout.
    """
    try:
        from memplan.cli.dispatch import run

        return run(argv)
    except KeyboardInterrupt:
        return INTERRUPTED
