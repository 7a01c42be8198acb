"""``memplan preset``: presets for common rigs, and margins for llama.cpp's own ``--fit``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from memplan.cli.arguments import Arguments, parse_arguments
from memplan.errors import FlagError, SourceError, shown
from memplan.llama.flag_values import whole

USAGE = """\
Usage: memplan preset list
       memplan preset show NAME
       memplan preset --fit MODEL [llama-server's flags] [options]

  list   the presets for common rigs, files for llama-server's --models-preset
  show   one of them; the beginning of its name will do
  --fit  margins for llama.cpp's own --fit: what it does not count, for each GPU,
         and --fit-ctx; and when --fit would stop, fail or waste

Options of --fit:
  --projector FILE|MIB  a multimodal projector beside the model, on the first GPU
  --draft MIB           what a draft model's context will take on each GPU
  --growth MIB          for pools that grow at run time (512)
  --format args|ini     one line of flags (default), or keys of a preset
  --json                one JSON object
  -h, --help            print this

  --gpu, --rig, --host-mib, --llama, --app are those of memplan estimate.

Examples:
  memplan preset show 2x-rtx-3090
  memplan preset --fit deepseek-v4-flash --gpu "2*RTX 3090" --projector mmproj.gguf

Exit status: 0 answered, 2 bad input.
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
    sys.stdout.write(_fit(arguments))
    return 0


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
        sys.stdout.write(f"{name}\n    {text}\n")
    return 0


def _show(rest: Sequence[str]) -> int:
    from memplan.planning.presets import find_preset

    if len(rest) != 1:
        raise FlagError("preset show: give one name; memplan preset list has them")
    sys.stdout.write(find_preset(rest[0]).read_text(encoding="utf-8"))
    return 0


def _fit(arguments: Arguments) -> str:
    from memplan.cli.estimate import read_question
    from memplan.output.plan import fit_ini, fit_json, fit_text
    from memplan.planning.fit import GROWTH_MIB, Extra, fit_preset
    from memplan.planning.setting import Setting
    from memplan.planning.speed import find_bandwidths

    style = arguments.own.get("--format", ("json" if arguments.json else "args",))[-1]
    if style not in ("args", "ini", "json"):
        raise FlagError(f"--format {shown(style)}: must be args, ini or json")
    extra = Extra(
        projector=_projector(arguments),
        draft=_mib(arguments, "--draft", 0),
        growth=_mib(arguments, "--growth", GROWTH_MIB),
    )
    asked = read_question(arguments)
    gpus = asked.rig.gpus
    setting = Setting(
        asked.header, arguments.flags, asked.rig, (0,) * len(gpus), find_bandwidths(gpus), asked.llama, arguments.app,
        asked.without_ops,
    )  # fmt: skip
    preset = fit_preset(setting, extra)
    return {"args": fit_text, "ini": fit_ini, "json": fit_json}[style](preset)


def _mib(arguments: Arguments, option: str, default: int) -> int:
    texts = arguments.own.get(option, ())
    return whole(option, texts[-1], 0, 1 << 24) if texts else default


def _projector(arguments: Arguments) -> int:
    texts = arguments.own.get("--projector", ())
    if not texts:
        return 0
    if texts[-1].isascii() and texts[-1].isdigit():
        return _mib(arguments, "--projector", 0)
    try:
        size = Path(texts[-1]).stat().st_size
    except (OSError, ValueError) as error:
        raise SourceError(f"--projector {shown(texts[-1])}: {getattr(error, 'strerror', None) or error}") from None
    if not size or not Path(texts[-1]).is_file():
        raise SourceError(f"--projector {shown(texts[-1])}: {'an empty file' if not size else 'no file'}")
    return -(-size // (1 << 20))
