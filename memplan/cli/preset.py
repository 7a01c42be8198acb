"""``memplan preset``: presets for common rigs, and margins for llama.cpp's own ``--fit``."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated, Literal

import typer

from memplan.cli import complete, terminal
from memplan.cli.command import APP, CHECK_FAILED, PATHS, Arguments, Json, LlamaCommand, number
from memplan.cli.waiting import working
from memplan.errors import FlagError, shown

app = typer.Typer(**APP)


@app.command(
    cls=LlamaCommand.but(without=PATHS, most=2, usage="list | show NAME | --fit MODEL"),
    epilog="""\
Examples:
  memplan preset show 2x-rtx-3090
  memplan preset --fit deepseek-v4-flash --gpu "RTX 3090" --mmproj mmproj.gguf

Exit status: 0 answered, 1 nothing fits with such margins, 2 bad input.
""",
)
def preset(
    ctx: typer.Context,
    models: Annotated[list[str] | None, typer.Argument(autocompletion=complete.presets)] = None,
    fit: Annotated[bool, typer.Option("--fit")] = False,
    growth: Annotated[int | None, number("--growth", 0, 1 << 24, "MIB")] = None,
    style: Annotated[Literal["args", "ini", "json"] | None, typer.Option("--format")] = None,
    json: Json = False,
) -> int:
    """list: the presets for common rigs, files for llama-server's --models-preset. show: one of them; the beginning of
    its name will do. --fit: margins for llama.cpp's own --fit: what it does not count, for each GPU, and --fit-ctx; and
    when --fit would stop, fail or waste.

    --fit: Margins for llama.cpp's own --fit with this model.
    --growth: With --fit: for what kernels take at run time, in place of the rules.
    --format: With --fit: one line of flags (args, by default), keys of a preset, or JSON.
    """
    alone = models or []
    if fit:
        if len(alone) > 1:
            raise FlagError(f"more than one model: {' and '.join(map(shown, alone))}; or is a flag missing?")
        style = style or ("json" if json else "args")
        return _fit(replace(ctx.obj, models=alone), style, growth)
    match alone:
        case []:
            sys.stdout.write(f"{ctx.get_help()}\n")
            return 0
        case ["list"]:
            return _list(json)
        case ["show", name]:
            return _show(name)
        case ["show"]:
            raise FlagError("preset show: give one name; memplan preset list has them")
        case ["list", other]:
            raise FlagError(f"preset list: unexpected {shown(other)}")
    raise FlagError(f"preset {shown(alone[0])}: must be list, show NAME, or --fit MODEL; see memplan preset --help")


FIT_FLAGS = frozenset({"-fit", "--fit", "-fitt", "--fit-target", "-fitc", "--fit-ctx"})
"""What ``preset --fit`` writes itself."""


def _list(json: bool) -> int:
    from memplan.planning.presets import about, presets_folder

    files = sorted(presets_folder().glob("*.ini"))
    rows = [(file.stem, about(file.read_text(encoding="utf-8"))) for file in files]
    if json:
        from json import dumps

        listed = [{"name": name, "about": text} for name, text in rows]
        sys.stdout.write(dumps({"presets": listed}, indent=2) + "\n")
        return 0
    for name, text in rows:
        sys.stdout.write(terminal.fitted(f"{name}\n    {text}\n", indent=""))
    return 0


def _show(name: str) -> int:
    from memplan.planning.presets import find_preset

    sys.stdout.write(terminal.fitted(find_preset(name).read_text(encoding="utf-8"), indent=";   "))
    return 0


def _fit(arguments: Arguments, style: str, growth: int | None) -> int:
    from memplan.cli.asked import read_question
    from memplan.cli.plan import left_out
    from memplan.output.fit import fit_ini, fit_json, fit_remarks, fit_text, no_fit_text
    from memplan.planning.fit import fit_preset
    from memplan.planning.plan import Plan
    from memplan.planning.problem import Problem

    question = read_question(arguments)
    written = sorted(FIT_FLAGS & question.flags.given)
    if written:
        raise FlagError(f"{' and '.join(written)}: preset --fit writes what goes there; leave it out")
    with working("planning"):
        preset = fit_preset(Problem.of(question, (0,) * len(question.rig.gpus)), growth)
    fits = isinstance(preset.plan, Plan)
    if fits or style == "json":
        if style == "args":
            said = (*fit_remarks(preset), *left_out(arguments))
            sys.stderr.writelines(terminal.fitted(f"memplan: {line}\n", sys.stderr) for line in said)
        text = {"args": fit_text, "ini": fit_ini, "json": fit_json}[style](preset)
        sys.stdout.write(terminal.fitted(text, indent=";   ") if style == "ini" else text)
    else:
        sys.stderr.write(no_fit_text(preset, terminal.width()))
    return 0 if fits else CHECK_FAILED
