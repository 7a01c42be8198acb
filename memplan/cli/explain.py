"""``memplan explain``: which tensors a compute buffer is made of, and where everything else lies."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from memplan.cli import terminal
from memplan.cli.asked import read_question
from memplan.cli.command import APP, Json, LlamaCommand, number
from memplan.cli.waiting import working
from memplan.errors import FlagError, shown
from memplan.llama.flag_fields import NAMES_MODEL

if TYPE_CHECKING:
    from memplan.explaining.result import Explanation
    from memplan.question import Question
    from memplan.result import Estimate

app = typer.Typer(**APP)


@app.command(
    cls=LlamaCommand,
    epilog="""\
Examples:
  memplan explain deepseek-v4-flash --gpu "RTX PRO 6000" -c 8192 -np 1
  memplan explain deepseek-v4-flash --no-gpu -c 4096 -np 1 --device CPU --top 3
""",
)
def explain(
    ctx: typer.Context,
    run_time: Annotated[bool, typer.Option("--run-time")] = False,
    device: Annotated[str | None, typer.Option("--device", metavar="NAME")] = None,
    top: Annotated[int, number("--top")] = 10,
    timeline: Annotated[str | None, typer.Option("--timeline", metavar="FILE")] = None,
    force: Annotated[bool, typer.Option("--force")] = False,
    dark: Annotated[bool, typer.Option("--dark")] = False,
    json: Json = False,
) -> int:
    """What is alive when each device's compute buffer is fullest: every tensor with its name, op, shape, type and size,
    and the gaps between them, which add up to the buffer. Also the largest tensors of the graph, its splits with what
    is copied in for them, and where each weight, cache and state lies.

    --run-time: In place of all that what kernels take at run time: which op of which layers decides, and what its
        scratch is for, once slots hold --filled tokens.
    --device: One device: CUDA0, CPU.
    --top: Lines of each list.
    --timeline: A picture (.png, .svg, .pdf) of what is alive, node by node, with the peak marked. In place of a picture
        as memplan drew it, too.
    --force: Draw it in place of any other file but a model.
    --dark: A dark one.
    """
    if timeline is not None:
        from memplan.output.figures import check_figure_path

        check_figure_path(timeline, force=force)
    elif force or dark:
        raise FlagError(f"{'--dark' if dark else '--force'} is for the picture of --timeline FILE")
    question = read_question(ctx.obj)
    if device is not None:
        there = [*question.rig.names, "CPU"]
        if device not in there:
            raise FlagError(f"--device {shown(device)}: no such device; this rig has {', '.join(there)}")

    if run_time:
        if timeline is not None:
            raise FlagError("--timeline is of compute buffers: give it without --run-time")
        sys.stdout.write(_run_time(question, top, device or "", json))
        return 0

    from memplan.estimator import check_compute
    from memplan.explaining.explain import explained
    from memplan.output.explain import explanation_json, render_explanation

    check_compute(question)
    with working("explaining"):
        x = explained(question)
    if timeline:
        if x.estimate.refused is not None:
            raise FlagError(f"--timeline: llama.cpp does not start with these settings: {x.estimate.refused.message}")
        from memplan.output.figures import write_figure
        from memplan.output.timeline import timeline_chart, timeline_figure

        given = question.flags.without(NAMES_MODEL).words()
        figure = timeline_figure(timeline_chart(x, device or "", given), dark=dark)
        write_figure(timeline, figure, force=force)
    if json:
        text = explanation_json(x)
    else:
        smaller = _smaller(x, question)
        text = render_explanation(x, top=top, device=device or "", smaller=smaller, **terminal.look())
    sys.stdout.write(text)
    return 0


def _run_time(question: Question, top: int, device: str, json: bool) -> str:
    from memplan.explaining.run_time import explain_run_time
    from memplan.output.run_time import render_run_time, run_time_json

    with working("explaining"):
        found = explain_run_time(question)
    if json:
        return run_time_json(found)
    return render_run_time(found, top=top, device=device, **terminal.look())


def _smaller(x: Explanation, question: Question) -> list[tuple[str, Estimate]]:
    """The same question with half the ubatch, and with half the context."""
    if x.estimate.refused is not None:
        return []
    from memplan.estimator import answer

    flags = question.flags
    halves = [("-ub", min(flags.n_ubatch, flags.n_batch) // 2), ("-c", x.estimate.n_ctx // 2)]
    words = [(flag, str(half)) for flag, half in halves if half > 0]
    return [(" ".join(pair), answer(question.with_words(*pair)).estimate) for pair in words]
