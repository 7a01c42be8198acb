"""``memplan plan``: flags with which a model fits a rig."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from memplan.cli import terminal
from memplan.cli.arguments import Arguments, parse_arguments
from memplan.cli.estimate import DOES_NOT_FIT, PATHS, read_question
from memplan.errors import FlagError, shown
from memplan.llama.flag_values import whole

if TYPE_CHECKING:
    from memplan.backends.devices import Rig
    from memplan.gguf.header import Header
    from memplan.planning.speed import Bandwidths
    from memplan.question import Question

USAGE = """\
Usage: memplan plan MODEL [llama-server's flags] [options]

  Flags with which llama.cpp loads the model on these GPUs and leaves a margin
  on each: -ngl, -ts, and -ot with as few and as short patterns as will do.
  Attention, shared experts and the output layer go on GPUs, then as many
  experts as fit. Every plan is proved by an exact estimate.

  The flags given are kept: -c, -np, -ub, -ctk, but also -ot, -ncmoe, -ts, -ngl.

Options:
  --margin MIB[,MIB...]  what to leave free: on every GPU, or on each
                         (the reserve, or what --fit-target says)
  --search NAMES         choose these too, of c, ub, np, cache: as large as
                         costs no expert its place, or as small as must be;
                         with np each slot keeps the context that it had
  --format FORMAT        table (default), args (one line to paste), sh (a
                         script), ini (for llama-server's --models-preset), json
  --json                 the same as --format json
  --gpu-bandwidth GB/S[,...]   for the estimated time a token: known cards'
  --host-bandwidth GB/S|KIND   as in 96 or 8xDDR4-3200; 2xDDR5-5600 by default
  -h, --help             print this

  --gpu, --rig, --host-mib, --llama, --app, --without-op, --filled, --reserve,
  --path, --indexer and --hyper-connections are those of memplan estimate.

Examples:
  memplan plan deepseek-v4-flash --gpu "2*RTX 3090" -c 131072 -np 1
  memplan plan flash.gguf --gpu "RTX 5090" --gpu "RTX 3060" --format args

Exit status: 0 a plan, 1 nothing fits (what would is printed), 2 bad input.
"""

VALUES = ("--margin", "--search", "--format", "--gpu-bandwidth", "--host-bandwidth")


def run(argv: Sequence[str]) -> int:
    """Answer ``memplan plan`` on stdout; the exit status. Raises MemplanError for bad input."""
    arguments = parse_arguments(argv, (*VALUES, *PATHS))
    if arguments.help:
        sys.stdout.write(USAGE)
        return 0
    style = _format(arguments)
    question = read_question(arguments)

    from memplan.output import plan as output
    from memplan.planning.plan import NoPlan, make_plan
    from memplan.planning.problem import Problem

    problem = Problem(question, read_margins(arguments, question), _bandwidths(arguments, question.rig))
    plan = make_plan(problem, _names(arguments))
    name = question.header.name
    model, remark = _model_file(question.header) if style in ("sh", "ini") else (None, "")
    remark = "; ".join(filter(None, (remark, *left_out(arguments))))
    if style == "json":
        text = output.plan_json(plan)
    elif isinstance(plan, NoPlan):
        text = output.no_plan_text(plan, terminal.width())
    elif style == "args":
        text = output.plan_args(plan)
        said = (*output.cautions(plan), *output.unchecked(plan), *left_out(arguments))
        sys.stderr.writelines(terminal.fitted(f"memplan: {line}\n", sys.stderr) for line in said)
    elif style == "sh":
        text = output.plan_script(plan, model, remark)
    elif style == "ini":
        text = output.plan_ini(plan, model, name, remark)
    else:
        text = output.plan_table(plan, width=terminal.width(), colour=terminal.colour(), unicode=terminal.unicode())
    if isinstance(plan, NoPlan) and style not in ("json", "table"):
        sys.stderr.write(text)  # a script must not paste this
    else:
        sys.stdout.write(text)
    return DOES_NOT_FIT if isinstance(plan, NoPlan) else 0


def left_out(arguments: Arguments) -> tuple[str, ...]:
    """What of the flags given is not written, since it is secret, in a sentence; empty when there is none."""
    flags = " and ".join(arguments.left_out)
    return (f"{flags} left out, whose value is secret: give it beside these flags, or in a file",) if flags else ()


def _model_file(header: Header) -> tuple[str | None, str]:
    """The file to start llama-server with, None if there is none here; and what to say of it."""
    name = header.name
    if not os.path.isfile(name):
        return None, ""
    if getattr(os.stat(name), "st_blocks", 0) * 512 < header.nbytes // 2:
        from memplan.gguf.raw import is_header_only

        with open(name, "rb") as file:
            if is_header_only(file):
                return (
                    None,
                    f"{os.path.basename(name)} is a header without weights: name the GGUF file it was made from",
                )
    if header.shards > 1:  # llama.cpp wants the first of them
        name = re.sub(r"-[0-9]{5}(-of-[0-9]{5}\.gguf)$", r"-00001\1", name)
    return name, ""


def read_margins(arguments: Arguments, question: Question) -> tuple[int, ...]:
    """Bytes to leave on each GPU, from ``--margin``, ``--fit-target``, or the reserve. Raises FlagError."""
    from memplan.planning.problem import default_margins, one_each

    count = len(question.rig.gpus)
    texts = arguments.own.get("--margin", ())
    if not texts:
        return default_margins(question)
    values = tuple(whole("--margin", part, 0, 1 << 30) for part in texts[-1].split(","))
    return one_each("--margin", values, count)


def _bandwidths(arguments: Arguments, rig: Rig) -> Bandwidths:
    from memplan.planning.speed import bandwidth, find_bandwidths

    texts = arguments.own.get("--gpu-bandwidth", ())
    given = [bandwidth("--gpu-bandwidth", part) for part in texts[-1].split(",")] if texts else []
    host = arguments.own.get("--host-bandwidth", (rig.host_bandwidth,))[-1]
    return find_bandwidths(rig.gpus, given, host)


def _names(arguments: Arguments) -> list[str]:
    names = [name.strip() for text in arguments.own.get("--search", ()) for name in text.split(",")]
    if "" in names:
        raise FlagError("--search: a name is missing; choose of c, ub, np, cache")
    return list(dict.fromkeys(names))


def _format(arguments: Arguments) -> str:
    from memplan.output.plan import FORMATS

    style = arguments.own.get("--format", ("json" if arguments.json else "table",))[-1]
    if style not in FORMATS:
        raise FlagError(f"--format {shown(style)}: must be one of {', '.join(FORMATS)}")
    if arguments.json and style != "json":
        raise FlagError(f"--json and --format {style}: give only one of them")
    return style
