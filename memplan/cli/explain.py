"""``memplan explain``: which tensors a compute buffer is made of, and where everything else lies."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from memplan.cli import terminal
from memplan.cli.arguments import Arguments, parse_arguments
from memplan.cli.estimate import PATHS, read_question
from memplan.errors import FlagError, shown
from memplan.sweeping.axes import MODELS

if TYPE_CHECKING:
    from memplan.explaining.result import Explanation
    from memplan.question import Question
    from memplan.result import Estimate

USAGE = """\
Usage: memplan explain MODEL [llama-server's flags] [options]

  What is alive when each device's compute buffer is fullest: every tensor with
  its name, op, shape, type and size, and the gaps between them, which add up to
  the buffer. Also the largest tensors of the graph, its splits with what is
  copied in for them, and where each weight, cache and state lies.

Options:
  --run-time           in place of all that what kernels take at run time: which
                       op of which layers decides, and what its scratch is for,
                       once slots hold --filled tokens
  --device NAME        one device: CUDA0, CPU
  --top N              lines of each list (10)
  --timeline FILE      a picture (.png, .svg, .pdf) of what is alive, node by
                       node, with the peak marked. In place of a picture as
                       memplan drew it, too
  --force              draw it in place of any other file but a model
  --dark               a dark one
  --json               print one JSON object, sizes in bytes
  -h, --help           print this

  --gpu, --rig, --no-gpu, --host-mib, --llama, --app, --without-op, --filled,
  --reserve, --path, --indexer, --hyper-connections and llama-server's flags are
  those of memplan estimate.

Examples:
  memplan explain deepseek-v4-flash --gpu "RTX PRO 6000" -c 8192 -np 1
  memplan explain deepseek-v4-flash --no-gpu -c 4096 -np 1 --device CPU --top 3

Exit status: 0 answered, 2 bad input (one line says what).
"""

VALUES = ("--device", "--top", "--timeline", *PATHS)
SWITCHES = ("--dark", "--force")
"""Those of a picture."""


def run(argv: Sequence[str]) -> int:
    """Answer ``memplan explain`` on stdout; the exit status. Raises MemplanError for bad input."""
    arguments = parse_arguments(argv, VALUES, (*SWITCHES, "--run-time"))
    if arguments.help:
        sys.stdout.write(USAGE)
        return 0
    top = _top(arguments)
    device = _last(arguments, "--device")
    timeline = _last(arguments, "--timeline")
    if "--timeline" in arguments.own:
        from memplan.output.figures import check_figure_path

        check_figure_path(timeline, force="--force" in arguments.own)
    elif alone := [switch for switch in SWITCHES if switch in arguments.own]:
        raise FlagError(f"{alone[0]} is for the picture of --timeline FILE")
    question = read_question(arguments)
    if "--device" in arguments.own:
        there = [*question.rig.names, "CPU"]
        if device not in there:
            raise FlagError(f"--device {shown(device)}: no such device; this rig has {', '.join(there)}")

    if "--run-time" in arguments.own:
        sys.stdout.write(_run_time(arguments, question, top, device))
        return 0

    from memplan.estimator import check_compute
    from memplan.explaining.explain import explained
    from memplan.output.explain import explanation_json, render_explanation

    check_compute(question)
    x = explained(question)
    if timeline:
        if x.estimate.refused is not None:
            raise FlagError(f"--timeline: llama.cpp does not start with these settings: {x.estimate.refused.message}")
        from memplan.output.figures import write_figure
        from memplan.output.timeline import timeline_chart, timeline_figure

        given = question.flags.without(MODELS).words()
        figure = timeline_figure(timeline_chart(x, device, given), dark="--dark" in arguments.own)
        write_figure(timeline, figure, force="--force" in arguments.own)
    if arguments.json:
        text = explanation_json(x)
    else:
        smaller = _smaller(x, question)
        text = render_explanation(
            x,
            top=top,
            device=device,
            smaller=smaller,
            colour=terminal.colour(),
            unicode=terminal.unicode(),
            width=terminal.limit(),
        )
    sys.stdout.write(text)
    return 0


def _run_time(arguments: Arguments, question: Question, top: int, device: str) -> str:
    from memplan.explaining.run_time import explain_run_time
    from memplan.output.run_time import render_run_time, run_time_json

    if "--timeline" in arguments.own:
        raise FlagError("--timeline is of compute buffers: give it without --run-time")
    found = explain_run_time(question)
    if arguments.json:
        return run_time_json(found)
    return render_run_time(
        found, top=top, device=device, colour=terminal.colour(), unicode=terminal.unicode(), width=terminal.limit()
    )


def _smaller(x: Explanation, question: Question) -> list[tuple[str, Estimate]]:
    """The same question with half the ubatch, and with half the context."""
    if x.estimate.refused is not None:
        return []
    from memplan.estimator import answer

    flags = question.flags
    halves = [("-ub", min(flags.n_ubatch, flags.n_batch) // 2), ("-c", x.estimate.n_ctx // 2)]
    words = [(flag, str(half)) for flag, half in halves if half > 0]
    return [(" ".join(pair), answer(question.with_words(*pair)).estimate) for pair in words]


def _last(arguments: Arguments, option: str) -> str:
    return arguments.own.get(option, ("",))[-1]


def _top(arguments: Arguments) -> int:
    text = arguments.own.get("--top", ("10",))[-1]
    if not re.fullmatch(r"[0-9]{1,6}", text, re.ASCII) or int(text) == 0:
        raise FlagError(f"--top {shown(text)}: must be a whole number of 1 or more")
    return int(text)
