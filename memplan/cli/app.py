"""The typer app: the commands that are typer's, and the help that lists them all."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Annotated, TextIO

import typer

from memplan.cli.commands import DIRECT
from memplan.cli.models import models
from memplan.cli.releases import releases
from memplan.errors import MemplanError

app = typer.Typer(
    name="memplan",
    help="What will llama.cpp allocate on every device with these flags?",
    no_args_is_help=False,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class _Kept(io.StringIO):
    """What is kept for ``stdout``, and is as wide as that."""

    def __init__(self, stdout: TextIO) -> None:
        super().__init__()
        self.isatty = stdout.isatty  # type: ignore[method-assign]


class UsageError(MemplanError):
    """A command line that typer does not take."""


def run_app(args: list[str]) -> int:
    """Run a command by typer; the exit status. Raises UsageError, in one line, where typer would print a box."""
    command = typer.main.get_command(app)
    out = _Kept(sys.stdout)  # typer has its own ways with a stdout that fails
    try:
        with redirect_stdout(out):
            status = command.main(args or ["--help"], prog_name="memplan", standalone_mode=False)
    except typer.Abort:  # what click makes of Ctrl-C
        raise KeyboardInterrupt from None
    except Exception as error:
        describe = getattr(error, "format_message", None)
        if describe is None:
            raise
        said = describe().rstrip(".?")
        raise UsageError(f"{said if len(said) <= 200 else said[:200] + '...'}; see memplan --help") from None
    sys.stdout.write(out.getvalue())
    return status if isinstance(status, int) else 0


def _version(wanted: bool) -> None:
    if wanted:
        from memplan import __version__

        typer.echo(f"memplan {__version__}")
        raise typer.Exit


@app.callback()
def _memplan(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def _listed(name: str) -> Callable[[], None]:
    """Stands for a command that ``memplan.cli.main`` runs itself, so that the help lists it."""

    def command() -> None:
        raise UsageError(f"{name} must come first; see memplan --help")

    return command


for _name, _help in DIRECT.items():
    app.command(name=_name, help=_help, add_help_option=False)(_listed(_name))
app.command(epilog="Examples: memplan models; memplan models --json")(models)
app.command(epilog="Examples: memplan releases; memplan releases --json")(releases)
