"""``memplan preset``: presets for common rigs, and margins for llama.cpp's own ``--fit``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from memplan.cli import terminal
from memplan.cli.arguments import Arguments, parse_arguments
from memplan.errors import FlagError, MemplanError, SourceError, shown
from memplan.llama.flag_values import whole

USAGE = """\
Usage: memplan preset list
       memplan preset show NAME
       memplan preset --fit MODEL [llama-server's flags] [options]

  list   the presets for common rigs, files for llama-server's --models-preset
  show   one of them; the beginning of its name will do
  --fit  margins for llama.cpp's own --fit: what it does not count, for each
         GPU, and --fit-ctx; and when --fit would stop, fail or waste

Options of --fit:
  --projector FILE|MIB  a multimodal projector beside the model, on GPU 0
  --draft MIB           what a draft model's context will take on each GPU
  --growth MIB          for what kernels take at run time, in place of the rules
  --format args|ini     one line of flags (default), or keys of a preset
  --json                one JSON object
  -h, --help            print this

  --gpu, --rig, --host-mib, --llama, --app are those of memplan estimate.

Examples:
  memplan preset show 2x-rtx-3090
  memplan preset --fit deepseek-v4-flash --gpu "RTX 3090" --projector 900

Exit status: 0 answered, 1 nothing fits with such margins, 2 bad input.
"""

VALUES = ("--projector", "--draft", "--growth", "--format")


def run(argv: Sequence[str]) -> int:
    """Answer ``memplan preset`` on stdout; the exit status. Raises MemplanError for bad input."""
    words = list(argv)
    if not words or words[0] in ("-h", "--help"):
        sys.stdout.write(USAGE)
        return 0
    if words[0] == "list":
        return _list(words[1:])
    if words[0] == "show":
        return _show(words[1:])
    if "--fit" not in words:
        raise FlagError(f"preset {shown(words[0])}: must be list, show NAME, or --fit MODEL; see memplan preset --help")
    words.remove("--fit")
    arguments = parse_arguments(words, VALUES)
    if arguments.help:
        sys.stdout.write(USAGE)
        return 0
    return _fit(arguments)


FIT_FLAGS = frozenset({"-fit", "--fit", "-fitt", "--fit-target", "-fitc", "--fit-ctx"})
"""What ``preset --fit`` writes itself."""


def _list(rest: Sequence[str]) -> int:
    from memplan.planning.presets import about, presets_folder

    if rest and list(rest) != ["--json"]:
        raise FlagError(f"preset list: unexpected {shown(rest[0])}")
    files = sorted(presets_folder().glob("*.ini"))
    rows = [(file.stem, about(file.read_text(encoding="utf-8"))) for file in files]
    if rest:
        import json

        listed = [{"name": name, "about": text} for name, text in rows]
        sys.stdout.write(json.dumps({"presets": listed}, indent=2) + "\n")
        return 0
    for name, text in rows:
        sys.stdout.write(terminal.fitted(f"{name}\n    {text}\n", indent=""))
    return 0


def _show(rest: Sequence[str]) -> int:
    from memplan.planning.presets import find_preset

    if len(rest) != 1:
        raise FlagError("preset show: give one name; memplan preset list has them")
    sys.stdout.write(terminal.fitted(find_preset(rest[0]).read_text(encoding="utf-8"), indent=";   "))
    return 0


def _fit(arguments: Arguments) -> int:
    from memplan.cli.estimate import DOES_NOT_FIT, read_question
    from memplan.cli.plan import left_out
    from memplan.output.fit import fit_ini, fit_json, fit_remarks, fit_text, no_fit_text
    from memplan.planning.fit import Extra, fit_preset
    from memplan.planning.plan import Plan
    from memplan.planning.problem import Problem
    from memplan.planning.speed import find_bandwidths

    style = arguments.own.get("--format", ("json" if arguments.json else "args",))[-1]
    if style not in ("args", "ini", "json"):
        raise FlagError(f"--format {shown(style)}: must be args, ini or json")
    extra = Extra(
        projector=_projector(arguments),
        draft=_mib(arguments, "--draft", 0),
        growth=_mib(arguments, "--growth", 0) if "--growth" in arguments.own else None,
    )
    question = read_question(arguments)
    written = sorted(FIT_FLAGS & question.flags.given)
    if written:
        raise FlagError(f"{' and '.join(written)}: preset --fit writes what goes there; leave it out")
    gpus = question.rig.gpus
    preset = fit_preset(Problem(question, (0,) * len(gpus), find_bandwidths(gpus)), extra)
    fits = isinstance(preset.plan, Plan)
    if fits or style == "json":
        if style == "args":
            said = (*fit_remarks(preset), *left_out(arguments))
            sys.stderr.writelines(terminal.fitted(f"memplan: {line}\n", sys.stderr) for line in said)
        text = {"args": fit_text, "ini": fit_ini, "json": fit_json}[style](preset)
        sys.stdout.write(terminal.fitted(text, indent=";   ") if style == "ini" else text)
    else:
        sys.stderr.write(no_fit_text(preset, terminal.width()))
    return 0 if fits else DOES_NOT_FIT


def _mib(arguments: Arguments, option: str, default: int) -> int:
    texts = arguments.own.get(option, ())
    return whole(option, texts[-1], 0, 1 << 24) if texts else default


def _projector(arguments: Arguments) -> int:
    texts = arguments.own.get("--projector", ())
    if not texts:
        return 0
    if texts[-1].isascii() and texts[-1].isdigit():
        return _mib(arguments, "--projector", 0)
    from memplan.models.open import open_model

    try:
        header = open_model(texts[-1])
    except MemplanError as error:
        raise SourceError(f"--projector: {error}") from None
    kind = header.metadata.get("general.architecture")
    if kind != "clip":  # tools/mtmd/clip.cpp
        raise SourceError(f"--projector {shown(texts[-1])}: a model of {shown(str(kind))}, not a projector (clip)")
    return -(-header.nbytes // (1 << 20))
