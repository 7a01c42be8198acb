"""``memplan sweep``: one estimate for every combination of some settings' values, or the largest value that fits."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Annotated

import typer

from memplan.cli import terminal
from memplan.cli.asked import read_question
from memplan.cli.command import APP, CHECK_FAILED, PATHS, Arguments, Json, LlamaCommand, number
from memplan.errors import FlagError
from memplan.llama.flag_fields import NAMES_MODEL
from memplan.sweeping.axes import Axis, parse_axis
from memplan.sweeping.largest import candidates, largest_of
from memplan.sweeping.sweep import Sweeper

app = typer.Typer(**APP)
Over = Annotated[list[str] | None, typer.Option("--over", metavar="NAME=VALUES", help="What to vary; may be repeated.")]


@app.command(
    cls=LlamaCommand.but(without=PATHS),
    epilog="""\
NAME is a llama-server flag (np, ncmoe, fa, --ubatch-size, ...), several that
take the same value (ctk+ctv), or one of
  ctx, batch, ubatch, slots   -c, -b, -ub, -np
  cache                       -ctk and -ctv
  llama                       releases of llama.cpp; all
  indexer                     fused, unfused
  gpu                         rigs: 2*RTX 3090+RTX 5090
  app                         server, cli
VALUES are separated by commas, or by semicolons where one has commas; on, off
for flags without a value. Of numbers:
  4096:1048576                doubled from the first to the last
  0:40:10                     counted in steps of 10
  512:4096:x1.5               multiplied by 1.5
  128k, 1m                    131072, 1048576
A flag that is swept is replaced.

Examples:
  memplan sweep deepseek-v4-flash --gpu "RTX PRO 6000" -np 1 --over ctx=8k:128k
  memplan sweep deepseek-v4-flash --gpu "RTX PRO 6000" -c 8192 --max np --csv
  memplan sweep deepseek-v4-flash --gpu "2*RTX 3090" -np 1 -c 65536 --min ncmoe
""",
)
def sweep(
    ctx: typer.Context,
    over: Over = None,
    largest: Annotated[str | None, typer.Option("--max", metavar="NAME")] = None,
    smallest: Annotated[str | None, typer.Option("--min", metavar="NAME")] = None,
    margin: Annotated[int | None, number("--margin", 0, 1 << 30, "MIB")] = None,
    csv: Annotated[bool, typer.Option("--csv")] = False,
    json: Json = False,
    check: Annotated[bool, typer.Option("--check")] = False,
) -> int:
    """What llama.cpp will allocate, for every combination of the values given; or, with --max or --min, the largest or
    smallest value of one setting with which everything fits.

    --max: The largest value of NAME that fits: of those that --over gives, else of all that make sense (ctx, np, ub,
        ngl).
    --min: The smallest, as of layers whose experts are on the host (ncmoe).
    --margin: With --max or --min: what to leave on every GPU, in place of the reserve.
    --csv: Print CSV; sizes in bytes.
    --check: Exit with 1 when nothing fits.
    """
    if json and csv:
        raise FlagError("--csv and --json: give only one of them")
    arguments: Arguments = ctx.obj
    axes = [parse_axis(text) for text in over or ()]
    if largest is not None and smallest is not None:
        raise FlagError("--max and --min: give only one of them")
    style = "json" if json else "csv" if csv else "table"
    if largest is not None or smallest is not None:
        name, down = (largest, False) if largest is not None else (smallest or "", True)
        kept = None if margin is None else margin << 20
        fits, text = _last_that_fits(arguments, axes, name, down, kept, style)
        sys.stdout.write(text)
        return CHECK_FAILED if check and not fits else 0
    if margin is not None:
        raise FlagError("--margin: goes with --max or --min")
    if not axes:
        raise FlagError("what is to be varied? name it, as in --over ctx=4096:1048576, or give --max ctx")
    sweeper = make_sweeper(arguments, axes)
    with terminal.ProgressBar("sweeping") as bar:
        found = sweeper.run(bar)

    from memplan.output import sweep as output

    if style == "json":
        text = output.sweep_json(found)
    elif style == "csv":
        text = output.sweep_csv(found)
    else:
        given = sweeper.question.flags.words()
        text = output.render_sweep(found, given, **terminal.look())
    sys.stdout.write(text)
    fits = any(point.estimate.fits for point in found.points)
    return CHECK_FAILED if check and not fits else 0


def make_sweeper(arguments: Arguments, axes: Sequence[Axis]) -> Sweeper:
    """What answers for the axes' values, on the question that was asked. Raises MemplanError."""
    if any(axis.name == "gpu" for axis in axes):
        if arguments.gpus or arguments.rig is not None or arguments.no_gpu:
            raise FlagError("--over gpu: sets what --gpu, --rig or --no-gpu sets already")
        arguments = replace(arguments, no_gpu=True)
    return Sweeper(read_question(arguments).without(NAMES_MODEL), axes)


def _last_that_fits(
    arguments: Arguments, axes: list[Axis], name: str, down: bool, margin: int | None, style: str
) -> tuple[bool, str]:
    """Whether any value fits, and what to print."""
    option = "--min" if down else "--max"
    sweeper = make_sweeper(arguments, axes)
    kept = max(sweeper.question.reserves, default=0) if margin is None else margin
    axis, values = candidates(sweeper, name, option)
    asked = axis in sweeper.axes
    if not asked:
        sweeper = Sweeper(sweeper.question, [*axes, axis])
    others = tuple(other for other in sweeper.axes if other is not axis)

    from memplan.output import largest as output

    hunt = output.Hunt(axis, others, "smallest" if down else "largest", kept, asked)
    rows = []
    with terminal.ProgressBar("searching") as bar:
        sweeper.on_ask = bar
        for combination in product(*(other.values for other in others)):
            found = largest_of(sweeper, axis, values[::-1] if down else values, combination, margin)
            rows.append(output.LargestRow(combination, found))
    if style == "json":
        text = output.largest_json(hunt, rows)
    elif style == "csv":
        text = output.largest_csv(hunt, rows)
    else:
        given = sweeper.question.flags.words()
        text = output.render_largest(hunt, rows, given, **terminal.look())
    return any(row.largest.value is not None for row in rows), text
