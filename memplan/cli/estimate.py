"""``memplan estimate``: what llama.cpp will allocate on every device."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from memplan.cli import terminal
from memplan.cli.asked import about_machine, loads_of, model_of, rig_in, rig_of
from memplan.cli.command import APP, Arguments, Json, LlamaCommand
from memplan.errors import FlagError, shown
from memplan.llama.context import Path, Paths
from memplan.llama.environment import UNMODELLED
from memplan.llama.flag_values import whole
from memplan.llama.flags import check_devices, parse_flags
from memplan.llama.spelling import spelled_for
from memplan.result import Estimate

if TYPE_CHECKING:
    from memplan.backends.devices import Rig
    from memplan.question import Question

DOES_NOT_FIT = 1

app = typer.Typer(**APP)


@app.command(
    cls=LlamaCommand,
    epilog="""\
llama-server's flags that decide memory (others are accepted; see its own help):
  -c, --ctx-size N               tokens of context; 0: the model's own (default)
  -b, --batch-size N             tokens of a batch (2048)
  -ub, --ubatch-size N           tokens computed at once (512)
  -np, --parallel N              slots; without it 4, sharing one context
  -kvu, -no-kvu                  one context shared by all slots, or a part each
  -fa, --flash-attn on|off|auto  flash attention (auto)
  -ctk, -ctv TYPE                types of the K and V caches (f16)
  -ngl, --n-gpu-layers N         layers on the GPUs (all)
  -sm none|layer|row, -mg INDEX  how layers are split; the GPU to use with none
  -ts, --tensor-split N0,N1,...  the share of each GPU
  -ot PATTERN=BUFFER,...         tensors to a buffer, as in exps=CPU
  -cmoe; -ncmoe N                experts on the host: all; of the first N layers
  -nkvo, --no-op-offload, --no-host, --no-repack, --swa-full
  -dev, --override-kv, --kv-unified-per-slot
  --spec-type, --spec-draft-n-max, -md FILE, -ngld, -devd, -otd, -cmoed, -ncmoed
  -ctkd, -ctvd                   what drafts: an MTP block, or another model
  --mmproj FILE, --no-mmproj-offload, -mmdev
  --models-preset FILE#SECTION   what a section of a preset says
  LLAMA_ARG_* are read from the environment, as llama-server reads them

Examples:
  memplan estimate deepseek-v4-flash --gpu "2*RTX 3090" -c 65536 -np 1 -cmoe
  memplan estimate llama-server -m model.gguf -c 8192 -ub 1024 --gpu "RTX 5090"
  memplan estimate model.gguf --rig examples/two-3090.toml -ncmoe 36 --json
""",
)
def estimate(ctx: typer.Context, json: Json = False, check: Annotated[bool, typer.Option("--check")] = False) -> int:
    """What llama.cpp will allocate on every device with these flags, to the byte, from the model's header alone; the
    GPUs need not be there.

    MODEL is a GGUF file (any shard of a split one, or a header-only file), an address (https://...,
    hf:OWNER/REPO/FILE.gguf, hf:OWNER/REPO:QUANT, and the same with modelscope:), of which only the header is read, or a
    built-in name (see memplan models). A whole llama-server command line can be pasted in its place: memplan estimate
    llama-server -m FILE -c 131072 ..., with what stands before it (variables, sudo, docker run IMAGE), or be read from
    a file: a script (.sh, .bat, .ps1), a systemd unit, a compose file, an INI preset; FILE#NAME says which of several
    services or sections.

    --check: Exit with 1 when it does not fit, or llama.cpp refuses.
    """
    question = read_question(ctx.obj)

    from memplan.full_estimate import full_estimate

    result = full_estimate(question)
    if json:
        from memplan.output.json import render_json

        sys.stdout.write(render_json(result))
    else:
        sys.stdout.write(_table(result))
        if not (result.fits or result.refused or result.draft_refused):
            sys.stdout.write(advice(question, result))
    return DOES_NOT_FIT if check and not result.fits else 0


def advice(question: Question, result: Estimate) -> str:
    """What would make settings fit that do not: text for the end of the table."""
    from memplan.cli.waiting import working
    from memplan.output.plan import advice_text
    from memplan.output.words import host_unchecked
    from memplan.planning.advice import advise
    from memplan.planning.fit import survives
    from memplan.planning.probing import Change
    from memplan.planning.problem import Problem

    problem = Problem.of(question)
    with working("what would fit"):
        found, plan = advise(problem, result)
    if plan is None:
        return advice_text(found, None, terminal.width())
    drop, targets = (plan.drop, ()) if isinstance(plan, Change) else ((), survives(problem, plan))
    host = plan.estimate.host.used if host_unchecked(plan.estimate) else 0
    return advice_text(found, plan.args, terminal.width(), drop, host, targets)


def read_question(arguments: Arguments) -> Question:
    """Look up what was named: flags, GPUs, release, and last the model, which may take a while. Raises MemplanError."""
    flags = parse_flags(arguments.flags, arguments.app)
    model = model_of(arguments, flags)
    rig, machine = rig_of(arguments)
    rig, seen = rig_in(arguments.environment, rig, machine)
    check_devices(flags, rig)
    from memplan.question import Question, check_op

    without_ops = tuple(dict.fromkeys(check_op(name, "--without-op ") for name in arguments.without_ops or ()))

    from memplan.releases import find_release

    release, note = find_release(arguments.llama)
    words, respelled = spelled_for(arguments.flags, release.build, release.name)
    flags = parse_flags(words, arguments.app)
    paths = paths_of(arguments)
    notes, inexact = about_machine(machine)
    loads, absent = loads_of(arguments, model, flags)
    reserve = read_reserve(arguments, rig)
    filled, notes = arguments.filled, (*arguments.notes, *respelled, *seen, *absent, *notes)
    inexact = (*inexact, *(f"{name} is not modelled" for name in UNMODELLED if name in arguments.environment))
    question = Question(loads, flags, rig, release, without_ops, paths, note or "", notes, inexact, filled, reserve)
    return question.with_draft_kind()


def read_reserve(arguments: Arguments, rig: Rig) -> tuple[int, ...]:
    """Bytes to be left on each GPU, from ``--reserve``; empty where it is not given. Raises FlagError."""
    mibs = reserve_mibs(arguments)
    if not mibs:
        return ()
    from memplan.planning.problem import one_each

    return one_each("--reserve", mibs, len(rig.gpus))


def reserve_mibs(arguments: Arguments) -> tuple[int, ...]:
    """The values of ``--reserve``. Raises FlagError."""
    texts = () if arguments.reserve is None else arguments.reserve.split(",")
    return tuple([whole("--reserve", text, 0, 1 << 30) for text in texts])


def paths_of(arguments: Arguments) -> Paths:
    """What ``--path NAME=WAY`` and its other spellings, ``--indexer WAY`` and ``--hyper-connections WAY``, ask for."""
    named = [part for text in arguments.path or () for part in text.split(",")]
    given = [("--path", part, *part.partition("=")[::2]) for part in named]
    ways = {"indexer": arguments.indexer, "hyper-connections": arguments.hyper_connections}
    given += [(f"--{name}", way, name, way) for name, way in ways.items() if way]
    asked: dict[str, Path] = {"auto": "auto", "fused": "fused", "unfused": "unfused"}
    paths = Paths()
    for option, text, name, way in given:
        if way not in asked:
            wanted = "NAME=WAY, and WAY auto, fused or unfused" if option == "--path" else "auto, fused or unfused"
            raise FlagError(f"{option} {shown(text)}: must be {wanted}")
        if paths[name] not in ("auto", way):
            raise FlagError(f"{option} {shown(text)}: {name} is given as {paths[name]} too; give only one")
        paths = paths.with_(name, asked[way])
    return paths


def _table(result: Estimate) -> str:
    from memplan.output.table import render_table

    return render_table(result, width=terminal.width(), colour=terminal.colour(), unicode=terminal.unicode())
