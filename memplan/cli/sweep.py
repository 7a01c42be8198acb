"""``memplan sweep``: one estimate for every combination of some settings' values, or the largest value that fits."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import product

from memplan.cli import terminal
from memplan.cli.arguments import Arguments, parse_arguments
from memplan.cli.estimate import DOES_NOT_FIT, read_question
from memplan.errors import FlagError
from memplan.llama.flag_values import whole
from memplan.sweeping.axes import MODELS, Axis, parse_axis
from memplan.sweeping.largest import candidates, largest_of
from memplan.sweeping.sweep import Sweeper

USAGE = """\
Usage: memplan sweep MODEL [llama-server's flags] --over NAME=VALUES [options]

  What llama.cpp will allocate, for every combination of the values given; or,
  with --max or --min, the largest or smallest value of one setting with which
  everything fits.

Options:
  --over NAME=VALUES  what to vary; may be repeated. NAME is a llama-server flag
                      (np, ncmoe, fa, --ubatch-size, ...), several that take the
                      same value (ctk+ctv), or one of
                        ctx, batch, ubatch, slots   -c, -b, -ub, -np
                        cache                       -ctk and -ctv
                        llama                       releases of llama.cpp; all
                        indexer                     fused, unfused
                        gpu                         rigs: 2*RTX 3090+RTX 5090
                        app                         server, cli
                      VALUES are separated by commas, or by semicolons where one
                      has commas; on, off for flags without a value. Of numbers:
                        4096:1048576      doubled from the first to the last
                        0:40:10           counted in steps of 10
                        512:4096:x1.5     multiplied by 1.5
                        128k, 1m          131072, 1048576
  --max NAME          the largest value of NAME that fits: of those that --over
                      gives, else of all that make sense (ctx, np, ub, ngl)
  --min NAME          the smallest, as of the layers whose experts are on the
                      host (ncmoe)
  --margin MIB        with --max or --min: what to leave on every GPU, in place
                      of the reserve (see --reserve of memplan estimate)
  --csv, --json       CSV, or one JSON object; sizes in bytes
  --check             exit with 1 when nothing fits
  -h, --help          print this

  --gpu, --rig, --no-gpu, --host-mib, --llama, --app, --without-op and
  llama-server's flags are those of memplan estimate; a flag that is swept is
  replaced.

Examples:
  memplan sweep deepseek-v4-flash --gpu "RTX PRO 6000" -np 1 --over ctx=8k:128k
  memplan sweep deepseek-v4-flash --gpu "RTX PRO 6000" -c 8192 --max np --csv
  memplan sweep deepseek-v4-flash --gpu "2*RTX 3090" -np 1 -c 65536 --min ncmoe

Exit status: 0 answered, 1 with --check, 2 bad input (one line says what).
"""

VALUES = ("--over", "--max", "--min", "--margin")
SWITCHES = ("--csv",)


def run(argv: Sequence[str]) -> int:
    """Answer ``memplan sweep`` on stdout; the exit status. Raises MemplanError for bad input."""
    arguments = parse_arguments(argv, VALUES, SWITCHES)
    if arguments.help:
        sys.stdout.write(USAGE)
        return 0
    if arguments.json and "--csv" in arguments.own:
        raise FlagError("--csv and --json: give only one of them")
    axes = read_axes(arguments)
    hunted = [option for option in ("--max", "--min") if option in arguments.own]
    if len(hunted) > 1:
        raise FlagError("--max and --min: give only one of them")
    if hunted:
        return _last_that_fits(arguments, axes, hunted[0])
    if "--margin" in arguments.own:
        raise FlagError("--margin: goes with --max or --min")
    if not axes:
        raise FlagError("what is to be varied? name it, as in --over ctx=4096:1048576, or give --max ctx")
    sweeper = make_sweeper(arguments, axes)
    with terminal.ProgressBar("sweeping") as bar:
        sweep = sweeper.run(bar)

    from memplan.output import sweep as output

    if arguments.json:
        text = output.sweep_json(sweep)
    elif "--csv" in arguments.own:
        text = output.sweep_csv(sweep)
    else:
        given = sweeper.question.flags.words()
        text = output.render_sweep(
            sweep, given, colour=terminal.colour(), unicode=terminal.unicode(), width=terminal.limit()
        )
    sys.stdout.write(text)
    fits = any(point.estimate.fits for point in sweep.points)
    return DOES_NOT_FIT if arguments.check and not fits else 0


def read_axes(arguments: Arguments) -> list[Axis]:
    """The axes of every ``--over``. Raises FlagError."""
    return [parse_axis(text) for text in arguments.own.get("--over", ())]


def make_sweeper(arguments: Arguments, axes: Sequence[Axis]) -> Sweeper:
    """What answers for the axes' values, on the question that was asked. Raises MemplanError."""
    if any(axis.name == "gpu" for axis in axes):
        if arguments.gpus or arguments.rig is not None or arguments.no_gpu:
            raise FlagError("--over gpu: sets what --gpu, --rig or --no-gpu sets already")
        arguments = _with_no_gpu(arguments)
    return Sweeper(read_question(arguments).without(MODELS), axes)


def _with_no_gpu(arguments: Arguments) -> Arguments:
    from dataclasses import replace

    return replace(arguments, no_gpu=True)


def _last_that_fits(arguments: Arguments, axes: list[Axis], option: str) -> int:
    name = arguments.own[option][0]
    sweeper = make_sweeper(arguments, axes)
    given = arguments.own.get("--margin")
    margin = None if given is None else whole("--margin", given[0], 0, 1 << 30) << 20
    kept = max(sweeper.question.reserves, default=0) if margin is None else margin
    axis, values = candidates(sweeper, name, option)
    asked = axis in sweeper.axes
    if not asked:
        sweeper = Sweeper(sweeper.question, [*axes, axis])
    others = tuple(other for other in sweeper.axes if other is not axis)
    down = option == "--min"

    from memplan.output import largest as output

    hunt = output.Hunt(axis, others, "smallest" if down else "largest", kept, asked)
    rows = []
    with terminal.ProgressBar("searching") as bar:
        sweeper.on_ask = bar
        for combination in product(*(other.values for other in others)):
            found = largest_of(sweeper, axis, values[::-1] if down else values, combination, margin)
            rows.append(output.LargestRow(combination, found))
    if arguments.json:
        text = output.largest_json(hunt, rows)
    elif "--csv" in arguments.own:
        text = output.largest_csv(hunt, rows)
    else:
        given = sweeper.question.flags.words()
        text = output.render_largest(
            hunt, rows, given, colour=terminal.colour(), unicode=terminal.unicode(), width=terminal.limit()
        )
    sys.stdout.write(text)
    return DOES_NOT_FIT if arguments.check and all(row.largest.value is None for row in rows) else 0
