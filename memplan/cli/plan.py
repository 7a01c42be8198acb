"""``memplan plan``: flags with which a model fits a rig."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from memplan.cli import terminal
from memplan.cli.asked import read_question
from memplan.cli.command import APP, CHECK_FAILED, Arguments, LlamaCommand
from memplan.cli.waiting import working
from memplan.errors import FlagError

if TYPE_CHECKING:
    from memplan.backends.devices import Rig
    from memplan.gguf.header import Header
    from memplan.planning.speed import Bandwidths
    from memplan.question import Question

Style = Literal["table", "args", "sh", "ini", "json"]

app = typer.Typer(**APP)


@app.command(
    cls=LlamaCommand,
    epilog="""\
Examples:
  memplan plan deepseek-v4-flash --gpu "2*RTX 3090" -c 131072 -np 1
  memplan plan flash.gguf --gpu "RTX 5090" --gpu "RTX 3060" --format args

Exit status: 0 a plan, 1 nothing fits (what would is printed), 2 bad input.
""",
)
def plan(
    ctx: typer.Context,
    margin: Annotated[str | None, typer.Option("--margin", metavar="MIB[,MIB...]")] = None,
    search: Annotated[list[str] | None, typer.Option("--search", metavar="NAMES")] = None,
    style: Annotated[Style | None, typer.Option("--format")] = None,
    json: Annotated[bool, typer.Option("--json")] = False,
    gpu_bandwidth: Annotated[str | None, typer.Option("--gpu-bandwidth", metavar="GB/S[,...]")] = None,
    host_bandwidth: Annotated[str | None, typer.Option("--host-bandwidth", metavar="GB/S|KIND")] = None,
) -> int:
    """Flags with which llama.cpp loads the model on these GPUs and leaves a margin on each: -ngl, -ts, and -ot with as
    few and as short patterns as will do. Attention, shared experts and the output layer go on GPUs, then as many
    experts as fit. Every plan is proved by an exact estimate.

    The flags given are kept: -c, -np, -ub, -ctk, but also -ot, -ncmoe, -ts, -ngl.

    --margin: What to leave free: on every GPU, or on each (the reserve, or what --fit-target says).
    --search: Choose these too, of c, ub, np, cache: as large as costs no expert its place, or as small as must be; with
        np each slot keeps the context that it had.
    --format: A table (default), one line to paste (args), a script (sh), keys for llama-server's --models-preset (ini),
        or JSON.
    --json: The same as --format json.
    --gpu-bandwidth: For the estimated time a token: known cards' by default.
    --host-bandwidth: As in 96 or 8xDDR4-3200; 2xDDR5-5600 by default.
    """
    if json and style not in (None, "json"):
        raise FlagError(f"--json and --format {style}: give only one of them")
    style = "json" if json else style or "table"
    names = [name.strip() for text in search or () for name in text.split(",")]
    if "" in names:
        raise FlagError("--search: a name is missing; choose of c, ub, np, cache")
    arguments: Arguments = ctx.obj
    question = read_question(arguments)

    from memplan.output import plan as output
    from memplan.planning.plan import NoPlan, make_plan
    from memplan.planning.problem import Problem

    problem = Problem(question, _margins(margin, question), _bandwidths(gpu_bandwidth, host_bandwidth, question.rig))
    with working("planning"):
        found = make_plan(problem, list(dict.fromkeys(names)))
    name = question.header.name
    model, remark = _model_file(question.header) if style in ("sh", "ini") else (None, "")
    remark = "; ".join(filter(None, (remark, *left_out(arguments))))
    if style == "json":
        text = output.plan_json(found)
    elif isinstance(found, NoPlan):
        text = output.no_plan_text(found, terminal.width())
    elif style == "args":
        text = output.plan_args(found)
        said = (*output.cautions(found), *output.unchecked(found), *left_out(arguments))
        sys.stderr.writelines(terminal.fitted(f"memplan: {line}\n", sys.stderr) for line in said)
    elif style == "sh":
        text = output.plan_script(found, model, remark)
    elif style == "ini":
        text = output.plan_ini(found, model, name, remark)
    else:
        text = output.plan_table(found, width=terminal.width(), colour=terminal.colour(), unicode=terminal.unicode())
    if isinstance(found, NoPlan) and style not in ("json", "table"):
        sys.stderr.write(text)  # a script must not paste this
    else:
        sys.stdout.write(text)
    return CHECK_FAILED if isinstance(found, NoPlan) else 0


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


def _margins(text: str | None, question: Question) -> tuple[int, ...]:
    """Bytes to leave on each GPU, from ``--margin``, ``--fit-target``, or the reserve. Raises FlagError."""
    from memplan.planning.problem import default_margins
    from memplan.rig import one_each, parse_mibs

    if text is None:
        return default_margins(question)
    return one_each("--margin", parse_mibs("--margin", text), len(question.rig.gpus))


def _bandwidths(gpus: str | None, host: str | None, rig: Rig) -> Bandwidths:
    from memplan.planning.speed import bandwidth, find_bandwidths

    given = [] if gpus is None else [bandwidth("--gpu-bandwidth", part) for part in gpus.split(",")]
    return find_bandwidths(rig.gpus, given, rig.host_bandwidth if host is None else host, rig.unified)
