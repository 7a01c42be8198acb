"""``memplan explain``: which tensors a compute buffer is made of, and where everything else lies."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.cli import terminal
from memplan.cli.arguments import Arguments, parse_arguments
from memplan.cli.asked import for_machine
from memplan.cli.estimate import PATHS, Asked, read_question
from memplan.cli.sweep import subject_of
from memplan.errors import FlagError, shown
from memplan.llama.flags import parse_flags
from memplan.sweeping.axes import Axis
from memplan.sweeping.sweep import Subject

if TYPE_CHECKING:
    from memplan.explaining.result import Explanation
    from memplan.result import Estimate

USAGE = """\
Usage: memplan explain MODEL [llama-server's flags] [options]

  What is alive when each device's compute buffer is fullest: every tensor with
  its name, op, shape, type and size, and the gaps between them, which add up to
  the buffer. Also the largest tensors of the graph, its splits with what is
  copied in for them, and where each weight, cache and state lies.

Options:
  --device NAME        one device: CUDA0, CPU
  --top N              lines of each list (10)
  --timeline FILE      a picture (.png, .svg, .pdf) of what is alive, node by
                       node, with the peak marked; needs memplan[plot]. In place
                       of another picture of memplan's, too
  --force              draw it in place of any other file but a model
  --dark               a dark one
  --json               print one JSON object, sizes in bytes
  -h, --help           print this

  --gpu, --rig, --no-gpu, --host-mib, --llama, --app, --without-op, --indexer,
  --hyper-connections and llama-server's flags are those of memplan estimate.

Examples:
  memplan explain deepseek-v4-flash --gpu "RTX PRO 6000" -c 8192 -np 1
  memplan explain deepseek-v4-flash --no-gpu -c 4096 -np 1 --device CPU --top 3

Exit status: 0 answered, 2 bad input (one line says what).
"""

VALUES = ("--device", "--top", "--timeline", *PATHS)
SWITCHES = ("--dark", "--force")


def run(argv: Sequence[str]) -> int:
    """Answer ``memplan explain`` on stdout; the exit status. Raises MemplanError for bad input."""
    arguments = parse_arguments(argv, VALUES, SWITCHES)
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
    asked = read_question(arguments)
    if "--device" in arguments.own:
        there = [*asked.rig.names, "CPU"]
        if device not in there:
            raise FlagError(f"--device {shown(device)}: no such device; this rig has {', '.join(there)}")

    from memplan.explaining.explain import explain
    from memplan.output.explain import explanation_json, render_explanation

    x = explain(asked.header, asked.flags, asked.rig, asked.llama, asked.without_ops, asked.paths)
    if asked.machine is not None:
        x = replace(x, estimate=for_machine(x.estimate, asked.machine))
    if timeline:
        if x.estimate.refused is not None:
            raise FlagError(f"--timeline: llama.cpp does not start with these settings: {x.estimate.refused.said}")
        from memplan.output.figures import write_figure
        from memplan.output.timeline import timeline_chart, timeline_figure

        given = subject_of(arguments, asked).flags
        figure = timeline_figure(timeline_chart(x, device, given), dark="--dark" in arguments.own)
        write_figure(timeline, figure, force="--force" in arguments.own)
    if arguments.json:
        text = explanation_json(x)
    else:
        smaller = _smaller(x, asked, arguments)
        text = render_explanation(
            x, top=top, device=device, smaller=smaller, colour=terminal.colour(), unicode=terminal.unicode()
        )
    sys.stdout.write(text)
    return 0


def _smaller(x: Explanation, asked: Asked, arguments: Arguments) -> list[tuple[str, Estimate]]:
    """The same question with half the ubatch, and with half the context."""
    if x.estimate.refused is not None:
        return []
    from memplan.estimator import estimate

    subject = Subject(asked.header, arguments.flags, asked.rig, asked.llama, asked.without_ops, asked.flags.app)
    halves = {"-ub": min(asked.flags.n_ubatch, asked.flags.n_batch) // 2, "-c": x.estimate.n_ctx // 2}
    found = []
    for flag, value in halves.items():
        axis = Axis(flag, (flag,), (value,))
        if value > 0:
            flags = parse_flags(subject.without(axis).at(axis, value).flags, subject.app)
            half = estimate(asked.header, flags, asked.rig, asked.llama, asked.without_ops, asked.paths)
            found.append((f"{flag} {value}", half))
    return found


def _last(arguments: Arguments, option: str) -> str:
    return arguments.own.get(option, ("",))[-1]


def _top(arguments: Arguments) -> int:
    text = arguments.own.get("--top", ("10",))[-1]
    if not re.fullmatch(r"[0-9]{1,6}", text, re.ASCII) or int(text) == 0:
        raise FlagError(f"--top {shown(text)}: must be a whole number of 1 or more")
    return int(text)
