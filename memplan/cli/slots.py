"""``memplan slots``: how many slots fit, and how much context each gets."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from memplan.cli import terminal
from memplan.cli.asked import read_question
from memplan.cli.command import APP, CHECK_FAILED, Json, LlamaCommand
from memplan.errors import FlagError
from memplan.llama.flag_fields import NAMES_MODEL
from memplan.llama.flag_table import MAX_SEQUENCES
from memplan.llama.flag_values import whole

app = typer.Typer(**APP)

MOST_COUNTS = 32
"""Counts of slots in one table, each of which takes four estimates."""


@app.command(
    cls=LlamaCommand,
    epilog="""\
Examples:
  memplan slots deepseek-v4-flash --gpu "2*RTX 3090" -cmoe -c 65536
  memplan slots flash.gguf --gpu "RTX PRO 6000" -c 524288 --np 1,2
""",
)
def slots(
    ctx: typer.Context,
    np: Annotated[str | None, typer.Option("--np", metavar="N,N,...")] = None,
    json: Json = False,
    check: Annotated[bool, typer.Option("--check")] = False,
) -> int:
    """A row for each number of slots: with a part of the context each, and all sharing one (-kvu); for a model with a
    lightning indexer on both paths of it. What caches and compute buffers take, how much context a slot gets, and
    whether it fits. What llama-server does without -np, 4 slots that share one context, is marked as the default. Where
    it does not fit but fewer slots do, the last line says so. --indexer says which path's default the last line and
    --check are about.

    --np: Slots to try; 1, 2, 4 and 8 by default.
    --check: Exit with 1 when the default, or what -np asks for, does not fit on the path that llama.cpp takes.
    """
    counts = _counts(np)
    question = read_question(ctx.obj).without(NAMES_MODEL)

    from memplan.output.slots import render_slots, slots_json
    from memplan.sweeping.slots import COUNTS, SLOTS, slot_table

    with terminal.ProgressBar("slots:") as bar:
        table = slot_table(question, counts or COUNTS, bar)
    if json:
        text = slots_json(table)
    else:
        given = question.without(SLOTS.replaced).flags.words()
        text = render_slots(table, given, **terminal.look())
    sys.stdout.write(text)
    of_interest = [row for row in table.rows if row.path == table.usual]
    row = next((row for row in of_interest if row.given), None) or next(row for row in of_interest if row.default)
    return CHECK_FAILED if check and not row.estimate.fits else 0


def _counts(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    counts = {whole("--np", part, 1, MAX_SEQUENCES) for part in text.split(",")}
    if len(counts) > MOST_COUNTS:
        raise FlagError(f"--np: {len(counts)} counts of slots; at most {MOST_COUNTS}; memplan sweep --over np=1:256:1")
    return tuple(sorted(counts))
