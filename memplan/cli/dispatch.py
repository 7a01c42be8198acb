"""From a command line to a command, and from what it raises to one line and an exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from memplan.cli.streams import ReaderGone, guarded
from memplan.cli.terminal import one_line
from memplan.errors import MemplanError
from memplan.garbage import seldom

BAD_INPUT = 2
BROKEN_PIPE = 141


def run(argv: Sequence[str] | None) -> int:
    """Run the command of ``argv``; its exit status. Lets KeyboardInterrupt through."""
    args = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        _end_tidily()
    with guarded() as stdout, seldom():
        try:
            status = _dispatch(args)
            stdout.flush()
            return status
        except MemplanError as error:
            return _fail(str(error))
        except (ReaderGone, BrokenPipeError):
            stdout.drop()
            return BROKEN_PIPE
        except Terminated as told:
            return 128 + told.number
        except Exception as error:
            if os.environ.get("MEMPLAN_DEBUG"):
                raise
            fault = f"{type(error).__name__}: {error}"
            return _fail(f"a fault in memplan itself: {fault}; please report it with what MEMPLAN_DEBUG=1 prints")


class Terminated(BaseException):
    """The process was told to end: ``number`` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _end_tidily() -> None:
    """Let what a command made for the while go, and programs that it runs end, when it is told to end itself."""
    import signal

    def end(number: int, frame: object) -> None:
        raise Terminated(number)

    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:  # nohup's stays
            signal.signal(number, end)


def _dispatch(args: list[str]) -> int:
    from memplan.cli.app import run_app

    return run_app([*args[1:], "--help"] if args[:1] == ["help"] else args)


def _fail(message: str) -> int:
    print("memplan: error:", one_line(message), file=sys.stderr)
    return BAD_INPUT
