"""``memplan paths``: the fused and the unfused way of a path side by side."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from memplan.cli import terminal
from memplan.cli.asked import read_question
from memplan.cli.command import APP, Json, LlamaCommand, number

app = typer.Typer(**APP)


@app.command(
    cls=LlamaCommand.but(without=("indexer",)),
    epilog="""\
Examples:
  memplan paths deepseek-v4-flash --gpu "2*RTX 3090" -cmoe -c 131072 -np 1
""",
)
def paths(
    ctx: typer.Context,
    of: Annotated[str, typer.Option("--of", metavar="NAME")] = "",
    top: Annotated[int, number("--top")] = 12,
    json: Json = False,
) -> int:
    """What can be computed in one op (fused) and from small ones (unfused), such as the lightning indexer of
    DeepSeek-V4, side by side: what each device takes, the tensors that make the difference (lid_kq, its permuted copy,
    lid_score, masks), what is alive when each compute buffer is fullest, and from which context on each does not fit.

    Both are forced here, as by estimate's --path indexer=WAY; --path says how the model's other paths are computed.
    --without-op LIGHTNING_INDEXER does not choose a path: it says that no GPU has the fused op, which the fused path
    then leaves to the host.

    --of: The path, as --path of estimate names it: indexer, hyper-connections; by default the model's first.
    --top: Lines of each list.
    """
    question = read_question(ctx.obj)

    from memplan.comparing.paths import both_paths
    from memplan.output.paths import paths_json, render_paths

    with terminal.ProgressBar("searching") as bar:
        found = both_paths(question, of, bar)
    text = paths_json(found) if json else render_paths(found, top=top, **terminal.look())
    sys.stdout.write(text)
    return 0
