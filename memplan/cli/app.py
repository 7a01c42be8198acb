"""The typer app: every command but ``estimate`` itself, and the help that lists them all."""

from __future__ import annotations

from typing import Annotated

import typer

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
)


class UsageError(MemplanError):
    """A command line that typer does not take."""


def run_app(args: list[str]) -> int:
    """Run a command by typer; the exit status. Raises UsageError, in one line, where typer would print a box."""
    command = typer.main.get_command(app)
    try:
        status = command.main(args or ["--help"], prog_name="memplan", standalone_mode=False)
    except Exception as error:
        describe = getattr(error, "format_message", None)
        if describe is None:
            raise
        raise UsageError(f"{describe().rstrip('.?')}; see memplan --help") from None
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


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []})
def estimate(context: typer.Context) -> int:
    """What llama.cpp will allocate on every device. See memplan estimate --help."""
    from memplan.cli.estimate import run

    return run(context.args)


app.command()(models)
app.command()(releases)
