"""``memplan diagnose``: a log of llama.cpp, explained."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from io import FileIO
from typing import IO, TYPE_CHECKING, Annotated, Final

import typer

from memplan.cli import terminal
from memplan.cli.asked import opened, reserve_mibs, rig_in, rig_of
from memplan.cli.command import APP, CHECK_FAILED, PATHS, Arguments, Json, LlamaCommand
from memplan.cli.waiting import working
from memplan.errors import FlagError, LogError, shown
from memplan.infile import open_input
from memplan.llama.flag_fields import same_setting
from memplan.llama.flag_words import split_words
from memplan.llama.flags import parse_flags

if TYPE_CHECKING:
    from memplan.diagnosing.log import Load

app = typer.Typer(**APP)

_TOO_MANY: Final = "give one at a time (a model by -m), or all of them piped: cat A B | memplan diagnose -"
_CHUNK: Final = 1 << 20


@app.command(
    cls=LlamaCommand.but(
        without=(*PATHS, "changes", "without_ops", "filled"), what="log", too_many=_TOO_MANY, environment=False
    ),
    epilog="""\
Examples:
  memplan diagnose examples/unfused.log
  llama-server -m model.gguf -v 2>&1 | tee log.txt; memplan diagnose log.txt
  memplan diagnose log.txt -m deepseek-v4-flash -ncmoe 36 --gpu "2*RTX 3090"
""",
)
def diagnose(
    ctx: typer.Context,
    models: Annotated[list[str] | None, typer.Argument(metavar="LOG")] = None,
    every: Annotated[bool, typer.Option("--all")] = False,
    json: Json = False,
    check: Annotated[bool, typer.Option("--check")] = False,
) -> int:
    """What a log of llama.cpp says about each load of a model: which buffers it asked for, what memplan predicts for
    the same, whether they agree, why it failed, and which flags mend it. LOG is a file, or - for what is piped in;
    timestamps, colours and other lines in it do not matter, nor does its end. Loads that are the same, of a service
    that restarts, are explained once.

    A log from llama-server -v (or --verbosity 4) shows the most. What it does not show can be given after it: the flags
    llama-server was started with (its whole command line can be pasted), the model (-m MODEL: a GGUF file, an address
    or a built-in name; it is found by itself when it is one of those built in), the GPUs, the release.

    --all: Every load, also those that --fit makes to measure.
    --check: Exit with 1 when the last load failed.
    """
    arguments: Arguments = ctx.obj
    if not models:
        raise FlagError("which log? give a file, or - for what is piped in")
    log = _STDIN if models[0] == "-" else models[0]
    # flags with values that llama-server would not take are the user's, not the log's
    flags = parse_flags(arguments.flags, arguments.app)

    from memplan.diagnosing.diagnosis import diagnose_all
    from memplan.diagnosing.placing import with_placement
    from memplan.diagnosing.reader import read_log
    from memplan.diagnosing.result import Given
    from memplan.output.diagnosis import render_diagnoses, render_diagnoses_json

    loads = read_log(_chunks(log))
    if not loads:
        name = "the log" if log == _STDIN else shown(log)
        raise LogError(f"{name}: llama.cpp loads no model in it; give what llama-server prints, best with -v")
    notes = list[str]()
    named = ((flags.model, _built_in(arguments)), (flags.draft_model, ""), (flags.projector, ""))
    otherwise = "the log's own model is taken, where it is known" if arguments.pasted else ""
    header, draft, projector = [opened(arguments, name, notes, instead, otherwise) for name, instead in named]
    given = arguments.gpus or arguments.rig is not None or arguments.no_gpu
    if arguments.host_mib is not None and not given:
        raise FlagError("--host-mib: the log says what memory there is; give it with --gpu, --rig or --no-gpu")
    rig = rig_in(arguments.environment, rig_of(arguments)[0], None)[0] if given else None
    llama = "" if arguments.llama == "latest" else arguments.llama
    reserve = reserve_mibs(arguments)
    given_beside = Given(header, arguments.flags, rig, llama, arguments.pasted, tuple(notes), draft, projector, reserve)
    with terminal.ProgressBar("explaining loads") as bar:
        diagnoses = diagnose_all(chosen(loads, every), given_beside, bar)
    with working("what would fit"):
        last, placed = diagnoses[-1], with_placement(diagnoses[-1])
    diagnoses = [
        replace(each, placement=placed.placement) if replace(each, load=last.load) == last else each
        for each in diagnoses
    ]
    if json:
        sys.stdout.write(render_diagnoses_json(diagnoses))
    else:
        sys.stdout.write(render_diagnoses(diagnoses, width=terminal.width()))
    return CHECK_FAILED if check and diagnoses[-1].load.failed is not None else 0


_STDIN: Final = "/dev/stdin"


def _built_in(arguments: Arguments) -> str:
    """A built-in model that stands before a pasted line, for a file of it that is not here; "" for none."""
    from memplan.models.builtin import is_builtin

    names = (words[1] for words in split_words(arguments.flags) if words[0] in same_setting("-m"))
    return next((name for name in names if is_builtin(name)), "")


def chosen(loads: list[Load], every: bool) -> list[Load]:
    """The loads worth a diagnosis: those without memory, by which ``--fit`` measures, if there are no others."""
    real = [load for load in loads if not load.dry]
    return loads if every or not real else real


def _chunks(path: str) -> Iterator[bytes]:
    if path == _STDIN and sys.stdin is None:
        raise LogError("stdin is closed: pipe a log in, or give its file")
    try:
        with contextlib.nullcontext(sys.stdin.buffer) if path == _STDIN else open_input(path) as file:
            size = 0 if path == _STDIN else os.fstat(file.fileno()).st_size
            with terminal.ProgressBar("reading MiB:", unit="") as bar:
                yield from _read(file, size, bar)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise LogError(f"{shown(path)}: {reason}; give the log that llama-server printed") from None


def _read(file: IO[bytes] | FileIO, size: int, bar: terminal.ProgressBar) -> Iterator[bytes]:
    read = 0
    while chunk := file.read(_CHUNK):
        yield chunk
        read += len(chunk)
        bar(read >> 20, max(size, read) >> 20 if size > _CHUNK else None)
