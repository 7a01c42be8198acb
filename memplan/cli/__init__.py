"""The command line: the only floor that parses arguments, prints and sets the exit status.

``main`` is the console command. Commands in ``commands.DIRECT`` go past typer, whose import would double the time of
``estimate`` and whose parser would read llama-server's ``-ctk`` as ``-c tk``.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

from memplan.errors import MemplanError

BAD_INPUT = 2
INTERRUPTED = 130
BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``memplan`` with ``argv`` (the process's own by default) and return its exit status.

    0: answered; 1: ``--check`` found that it does not fit; 2: bad input, in one line on stderr.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _dispatch(args)
        sys.stdout.flush()
        return status
    except MemplanError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_stdout()
        return BROKEN_PIPE
    except Exception as error:
        if os.environ.get("MEMPLAN_DEBUG"):
            raise
        fault = f"{type(error).__name__}: {error}"
        return _fail(f"a fault in memplan itself: {fault}; please report it with what MEMPLAN_DEBUG=1 prints")


def _dispatch(args: list[str]) -> int:
    from memplan.cli.commands import DIRECT

    if args and args[0] in DIRECT:
        from importlib import import_module

        status: int = import_module(f"memplan.cli.{args[0]}").run(args[1:])
        return status
    from memplan.cli.app import run_app

    return run_app(args)


def _fail(message: str) -> int:
    print("memplan: error:", " ".join(message.split()), file=sys.stderr)
    return BAD_INPUT


def _drop_stdout() -> None:
    """Give stdout to nobody, so that Python's own flush at exit has nothing to complain about."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
