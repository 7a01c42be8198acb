"""``memplan completion``: what a shell needs to complete memplan's command lines."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from memplan.cli.command import APP, Command

app = typer.Typer(**APP)


@app.command(
    cls=Command,
    epilog="""\
To have it in every shell, add to ~/.bashrc: eval "$(memplan completion bash)"
to ~/.zshrc, after compinit: eval "$(memplan completion zsh)"
or write it to ~/.config/fish/completions/memplan.fish

Examples:
  memplan completion bash
  memplan completion zsh
  memplan completion fish
""",
)
def completion(
    ctx: typer.Context, shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL")]
) -> int:
    """Print what completes memplan's commands, options and their values, llama-server's flags and theirs, models and
    files in a shell: bash, zsh or fish.
    """
    from memplan.cli.app import answer_shell

    return answer_shell(ctx.find_root().command, f"source_{shell}")
