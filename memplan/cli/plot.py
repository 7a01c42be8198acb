"""``memplan plot``: a sweep as a picture, in a file or in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from memplan.cli import terminal
from memplan.cli.arguments import Arguments, parse_arguments
from memplan.cli.sweep import make_sweeper, read_axes
from memplan.errors import FlagError, shown
from memplan.llama.flags import parse_flags
from memplan.sweeping.axes import Axis, make_axis
from memplan.sweeping.sweep import Sweeper

if TYPE_CHECKING:
    pass

USAGE = """\
Usage: memplan plot MODEL [llama-server's flags] [--over NAME=VALUES]... -o FILE

  Context against memory as a picture. With nothing else varied, what each GPU
  holds: weights, context and compute, and where that outgrows the card. With
  --over, a line for each combination of what is varied. Without --over
  ctx=VALUES and -c: the context, from 4096 to the model's own.

Options:
  --over NAME=VALUES  what to vary; see memplan sweep --help
  -o, --output FILE   .png (1600 wide, 900 high or more), .svg or .pdf. In
                      place of a picture as memplan drew it, too. How far it
                      fits is said on stderr
  --force             draw it in place of any other file but a model
  --terminal          draw in the terminal instead
  --x NAME            the setting along the bottom: ctx if it is varied, or else
                      the first with numbers
  --linear            equal distances for equal steps; doublings without it
  --log-y             doublings on the axis of memory as well, where lines are
                      drawn
  --dark              on a dark ground
  -h, --help          print this

  --gpu, --rig, --no-gpu, --host-mib, --llama, --app, --without-op and
  llama-server's flags are those of memplan estimate; a flag that is varied is
  replaced.

Examples:
  memplan plot deepseek-v4-flash --gpu "RTX PRO 6000" -np 1 --terminal

Exit status: 0 answered, 2 bad input (one line says what; no file is written).
"""

VALUES = ("--over", "-o", "--output", "--x")
SWITCHES = ("--force", "--terminal", "--linear", "--log-y", "--dark")


def run(argv: Sequence[str]) -> int:
    """Answer ``memplan plot``; the exit status. Raises MemplanError for bad input."""
    arguments = parse_arguments(argv, VALUES, SWITCHES)
    if arguments.help:
        sys.stdout.write(USAGE)
        return 0
    own = arguments.own
    files = [*own.get("-o", ()), *own.get("--output", ())]
    in_terminal, force = "--terminal" in own, "--force" in own
    if arguments.json or arguments.check:
        raise FlagError(f"memplan plot has no {'--json' if arguments.json else '--check'}; memplan sweep has")
    if len(files) > 1:
        raise FlagError(f"-o: given twice ({shown(files[0])} and {shown(files[1])}); give one file")
    if files and in_terminal:
        raise FlagError("-o and --terminal: give only one of them")
    if not files and not in_terminal:
        raise FlagError("where to? give -o FILE.png (or .svg, .pdf), or --terminal")
    if files:
        from memplan.output.figures import check_figure_path

        check_figure_path(files[0], force=force)
    elif alone := [switch for switch in ("--force", "--dark", "--log-y") if switch in own]:
        raise FlagError(f"{alone[0]} is for the file of -o FILE")
    axes = read_axes(arguments)
    x_name = own.get("--x", ("",))[-1]
    axes, x = _with_x(arguments, axes, x_name)

    from memplan.output.chart import check_lines, make_chart

    is_lines = check_lines(axes, x) > 1
    if "--log-y" in own and not is_lines:
        raise FlagError("--log-y: parts that are stacked need an axis from 0; it is for lines, with a second --over")
    if "--linear" in own and in_terminal and not is_lines:
        raise FlagError("--linear: bars in the terminal have no axis; it is for lines, or the file of -o FILE")
    sweeper = make_sweeper(arguments, axes)
    if not x.values:
        from memplan.estimator import model_of

        x = make_axis("ctx", [f"4096:{max(4096 * 2, model_of(sweeper.question).hparams.n_ctx_train)}"])
        sweeper = Sweeper(sweeper.question, [x if axis.name == x.name else axis for axis in axes])
    with terminal.ProgressBar("sweeping") as bar:
        sweep = sweeper.run(bar)

    chart = make_chart(sweeper, sweep, x.name, sweeper.question.flags.words())
    if files:
        from memplan.output.figures import write_figure
        from memplan.output.plot import chart_figure
        from memplan.output.words import printable

        figure = chart_figure(chart, dark="--dark" in own, log_x="--linear" not in own, log_y="--log-y" in own)
        write_figure(files[0], figure, force=force)
        sys.stderr.write(f"{printable(files[0])}: {chart.in_short}\n")
        return 0
    from memplan.output.terminal_plot import render_chart

    text = render_chart(
        chart,
        width=terminal.width(),
        colour=terminal.colour(),
        unicode=terminal.unicode(),
        log_x="--linear" not in own,
    )
    sys.stdout.write(text)
    return 0


def _with_x(arguments: Arguments, axes: list[Axis], wanted: str) -> tuple[list[Axis], Axis]:
    """The axes and the one along the bottom; a context that nobody gave has no values yet."""
    if wanted:
        for axis in axes:
            if axis.is_called(wanted):
                return axes, axis
        raise FlagError(f"--x {shown(wanted)}: not among the settings of --over")
    numbers = [axis for axis in axes if axis.is_number and len(axis.values) > 1]
    for axis in numbers:
        if axis.is_context:
            return axes, axis
    swept = next((axis for axis in axes if axis.is_context), None)
    fixed = parse_flags(arguments.flags, arguments.app).n_ctx
    if numbers and (swept or fixed):
        return axes, numbers[0]
    if swept:
        return axes, swept
    if fixed:
        raise FlagError(
            f"-c {fixed}: fixes the context, and no other number is varied; leave it out, or vary it:"
            f" --over ctx=4096:{max(8192, fixed)}"
        )
    context = Axis("ctx", ("-c",), ())
    return [*axes, context], context
