"""The typer app: its commands, each imported when it is asked for, and what it raises as one line."""

from __future__ import annotations

import os
import sys
from contextlib import redirect_stdout
from io import StringIO
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from memplan.cli import complete
from memplan.cli.arguments import HELP
from memplan.cli.commands import COMMANDS, find_command
from memplan.errors import MemplanError


class UsageError(MemplanError):
    """A command line that typer does not take."""


class Commands(TyperGroup):
    """The commands, none of which is imported for its name."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "commands": dict.fromkeys(COMMANDS)})  # for what may have been meant

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name, if there is one."""
        return find_command(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each with what it is for."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does; without words the help is printed, too."""
        if not ctx.resilient_parsing and (not args or args[0] in HELP):
            sys.stdout.write(f"{self.get_help(ctx)}\n")
            raise typer.Exit
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from memplan import __version__

        sys.stdout.write(f"memplan {__version__}\n")
        raise typer.Exit


@app.callback()
def memplan(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """What will llama.cpp allocate on every device with these flags?"""


def run_app(args: list[str]) -> int:
    """Run a command; the exit status. Raises UsageError, in one line, where typer would print a box."""
    group = typer.main.get_command(app)
    try:
        if instruction := os.environ.get(complete.VARIABLE):
            return answer_shell(group, instruction)
        with group.make_context("memplan", args) as ctx:
            status: int | None = group.invoke(ctx)
    except typer.Exit as ended:
        return ended.exit_code
    except Exception as error:
        describe = getattr(error, "format_message", None)
        if describe is None:
            raise
        raise UsageError(_said(error, describe())) from None
    return status or 0


def _said(error: Any, text: str) -> str:
    """An error of typer's in a line, with what to do."""
    param, ctx = getattr(error, "param", None), getattr(error, "ctx", None)
    if param is not None and error.message:
        text = f"{param.opts[-1]}: {error.message}"
    text = text.replace(". Did you mean", ", did you mean").rstrip(".?")
    see = f"see {ctx.command_path if ctx is not None else 'memplan'} --help"
    return f"{text if len(text) <= 200 else text[:200] + '...'}; {see}"


def answer_shell(group: Any, instruction: str) -> int:
    """Tell a shell what may follow its words, or the script by which it asks."""
    from typer.completion import completion_init  # type: ignore[attr-defined]

    completion_init()
    if instruction == "complete_bash":
        complete.mend_bash_words()
    before = os.environ.get(complete.VARIABLE, "")
    os.environ[complete.VARIABLE] = instruction
    said, status = StringIO(), 0  # typer has its own ways with a stdout that fails
    try:
        with redirect_stdout(said):
            group.main([], "memplan")
    except SystemExit as ended:
        status = int(ended.code or 0)
    finally:
        os.environ[complete.VARIABLE] = before
    sys.stdout.write(said.getvalue())
    return status
