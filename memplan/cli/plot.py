"""``memplan plot``: a sweep as a picture, in a file or in the terminal."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from memplan.cli import terminal
from memplan.cli.command import APP, PATHS, Arguments, LlamaCommand
from memplan.cli.sweep import Over, make_sweeper
from memplan.errors import FlagError, shown
from memplan.llama.flags import parse_flags
from memplan.sweeping.axes import Axis, make_axis, parse_axis
from memplan.sweeping.sweep import Sweeper

app = typer.Typer(**APP)


@app.command(
    cls=LlamaCommand.but(without=PATHS),
    epilog="""\
Examples:
  memplan plot deepseek-v4-flash --gpu "RTX PRO 6000" -np 1 --terminal
""",
)
def plot(
    ctx: typer.Context,
    over: Over = None,
    file: Annotated[str | None, typer.Option("-o", "--output", metavar="FILE")] = None,
    force: Annotated[bool, typer.Option("--force")] = False,
    in_terminal: Annotated[bool, typer.Option("--terminal")] = False,
    x_name: Annotated[str, typer.Option("--x", metavar="NAME")] = "",
    linear: Annotated[bool, typer.Option("--linear")] = False,
    log_y: Annotated[bool, typer.Option("--log-y")] = False,
    dark: Annotated[bool, typer.Option("--dark")] = False,
) -> int:
    """Context against memory as a picture. With nothing else varied, what each GPU holds: weights, context and compute,
    and where that outgrows the card. With --over, a line for each combination of what is varied (see memplan sweep).
    Without --over ctx=VALUES and -c: the context, from 4096 to the model's own.

    --output: A .png (1600 wide, 900 high or more), .svg or .pdf. In place of a picture as memplan drew it, too. How far
        it fits is said on stderr.
    --force: Draw it in place of any other file but a model.
    --terminal: Draw in the terminal instead.
    --x: What is along the bottom: ctx if it is varied, or else the first with numbers.
    --linear: Equal distances for equal steps; doublings without it.
    --log-y: Doublings on the axis of memory as well, where lines are drawn.
    --dark: On a dark ground.
    """
    arguments: Arguments = ctx.obj
    if file is not None and in_terminal:
        raise FlagError("-o and --terminal: give only one of them")
    if file is None and not in_terminal:
        raise FlagError("where to? give -o FILE.png (or .svg, .pdf), or --terminal")
    given = {"--force": force, "--dark": dark, "--log-y": log_y}
    if file is not None:
        from memplan.output.figures import check_figure_path

        check_figure_path(file, force=force)
    elif alone := [switch for switch in given if given[switch]]:
        raise FlagError(f"{alone[0]} is for the file of -o FILE")
    axes, x = _with_x(arguments, [parse_axis(text) for text in over or ()], x_name)

    from memplan.output.chart import check_lines, make_chart

    is_lines = check_lines(axes, x) > 1
    if log_y and not is_lines:
        raise FlagError("--log-y: parts that are stacked need an axis from 0; it is for lines, with a second --over")
    if linear and in_terminal and not is_lines:
        raise FlagError("--linear: bars in the terminal have no axis; it is for lines, or the file of -o FILE")
    sweeper = make_sweeper(arguments, axes)
    if not x.values:
        from memplan.estimator import model_of

        x = make_axis("ctx", [f"4096:{max(4096 * 2, model_of(sweeper.question).hparams.n_ctx_train)}"])
        sweeper = Sweeper(sweeper.question, [x if axis.name == x.name else axis for axis in axes])
    with terminal.ProgressBar("sweeping") as bar:
        sweep = sweeper.run(bar)

    chart = make_chart(sweeper, sweep, x.name, sweeper.question.flags.words())
    if file is not None:
        from memplan.output.figures import write_figure
        from memplan.output.plot import chart_figure
        from memplan.output.words import printable

        figure = chart_figure(chart, dark=dark, log_x=not linear, log_y=log_y)
        write_figure(file, figure, force=force)
        sys.stderr.write(f"{printable(file)}: {chart.in_short}\n")
        return 0
    from memplan.output.terminal_plot import render_chart

    text = render_chart(
        chart,
        width=terminal.width(),
        colour=terminal.colour(),
        unicode=terminal.unicode(),
        log_x=not linear,
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
