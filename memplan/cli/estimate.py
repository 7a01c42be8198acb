"""``memplan estimate``: what llama.cpp will allocate on every device."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from memplan.cli import terminal
from memplan.cli.asked import read_question
from memplan.cli.command import APP, CHECK_FAILED, Json, LlamaCommand
from memplan.result import Estimate

if TYPE_CHECKING:
    from memplan.question import Question

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
  config.ini of llama.cpp and LLAMA_ARG_* are read, as llama-server reads them

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
    return CHECK_FAILED if check and not result.fits else 0


def advice(question: Question, result: Estimate) -> str:
    """What would make settings fit that do not: text for the end of the table."""
    from memplan.cli.waiting import working
    from memplan.errors import BadHyperParameter
    from memplan.output.plan import advice_text
    from memplan.output.words import host_unchecked
    from memplan.planning.advice import advise
    from memplan.planning.fit import survives
    from memplan.planning.probing import Change
    from memplan.planning.problem import Problem

    problem = Problem.of(question)
    try:
        with working("what would fit"):
            found, plan = advise(problem, result)
    except BadHyperParameter as fault:
        return f"\n{fault}\n"
    if plan is None:
        return advice_text(found, None, terminal.width())
    drop, targets = (plan.drop, ()) if isinstance(plan, Change) else ((), survives(problem, plan))
    host = plan.estimate.host.used if host_unchecked(plan.estimate) else 0
    return advice_text(found, plan.args, terminal.width(), drop, host, targets)


def _table(result: Estimate) -> str:
    from memplan.output.table import render_table

    return render_table(result, width=terminal.width(), colour=terminal.colour(), unicode=terminal.unicode())
