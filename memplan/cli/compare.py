"""``memplan compare``: two releases, settings or models, and what moves between them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace

from memplan.cli import terminal
from memplan.cli.arguments import Arguments, parse_arguments
from memplan.cli.estimate import PATHS, read_question
from memplan.errors import FlagError, shown
from memplan.llama.flag_fields import same_setting
from memplan.llama.flag_values import whole
from memplan.llama.flag_words import arity, normalized
from memplan.llama.flags import parse_flags

USAGE = """\
Usage: memplan compare MODEL [MODEL] [llama-server's flags] [options]

  What moves between two releases, two settings or two models: weights, context
  and compute of every device; and what moves them: which weights and caches lie
  elsewhere, which tensors are alive when a compute buffer is fullest, which
  live longer or lie in another's place, and what is lost in gaps between them.
  Of two releases, what those between them changed, and what of it moves
  anything here. The last line is the verdict: what is more or less on each
  device, and whether it still fits.

Options, one pair of:
  --llama A --llama B   two releases of llama.cpp, or --llama A,B; --app,
                        --path, --indexer and --hyper-connections can be given
                        twice
  --with A --with B     two settings: llama-server's flags, or options such as
                        --gpu or --llama; with one, it and what is given
  MODEL MODEL           two models
and
  --top N               lines of each list (8)
  --json                print one JSON object, sizes in bytes
  -h, --help            print this

  --gpu, --rig, --no-gpu, --host-mib, --without-op and llama-server's flags are
  those of memplan estimate, as is all of the above given once; they hold for
  both sides.

Examples:
  memplan compare flash.gguf --gpu "RTX 4090" -cmoe --llama b10549,b10568
  memplan compare flash.gguf --gpu "RTX 4090" -cmoe --with "-ub 512"

Exit status: 0 answered, 2 bad input (one line says what).
"""

SETTINGS = ("--llama", "--app", *PATHS)
"""Options of which there is one elsewhere: given twice, they are what is compared."""

VALUES = ("--with", "--top", *SETTINGS)
_EXPERTS = same_setting("-cmoe") | same_setting("-ncmoe")
_MODELS = same_setting("-m") | same_setting("-hf") | same_setting("-hff")
"""Which experts are on the host: one of these replaces the other, where for llama-server both would hold."""

AS_GIVEN = "as given"
"""What the first side is called when only the second has a setting of its own."""


def run(argv: Sequence[str]) -> int:
    """Answer ``memplan compare`` on stdout; the exit status. Raises MemplanError for bad input."""
    arguments = parse_arguments(argv, VALUES, most_models=2, repeated=("--with", *SETTINGS))
    if arguments.help:
        sys.stdout.write(USAGE)
        return 0
    top = whole("--top", arguments.own.get("--top", ("8",))[-1], 1, 1_000_000)
    (a, first), (b, second) = sides(arguments)
    asked = read_question(first)
    other = read_question(second)
    if first.model == second.model and asked.flags.model == other.flags.model:
        other = other.with_(loads=asked.loads)  # what is known of a header is kept with it

    from memplan.comparing.compare import compare
    from memplan.comparing.steps import release_steps
    from memplan.explaining.explain import explained

    comparison = replace(compare(explained(asked), explained(other)), steps=release_steps(asked, other))
    if arguments.json:
        from memplan.output.compare_json import comparison_json

        text = comparison_json(comparison, (a, b))
    else:
        from memplan.output.compare import render_comparison

        text = render_comparison(
            comparison,
            (a, b),
            top=top,
            colour=terminal.colour(),
            unicode=terminal.unicode(),
            width=terminal.limit(),
            fill=terminal.width(),
        )
    sys.stdout.write(text)
    return 0


def sides(arguments: Arguments) -> list[tuple[str, Arguments]]:
    """The two questions, each with what it is called. Raises FlagError unless exactly one pair is given."""
    own = arguments.own
    pairs: list[list[tuple[str, Arguments]]] = []
    settings = own.get("--with", ())
    if arguments.more_models:
        models = (arguments.model, *arguments.more_models)
        pairs.append([(model, replace(arguments, model=model)) for model in models])
    for option in SETTINGS:
        texts = own.get(option, ())
        if option == "--llama":
            texts = tuple([name for text in texts for name in text.split(",")])
        if len(texts) > 1:
            name = "" if option == "--llama" else f"{option} "
            pairs.append([(f"{name}{text}", _set(arguments, option, text)) for text in texts])
    if settings:
        asked = [(text, _with(arguments, text)) for text in settings]
        pairs.append([(AS_GIVEN, arguments), *asked] if len(asked) == 1 else asked)
    if not pairs:
        raise FlagError("what is to be compared? give --llama A --llama B, --with A --with B, or two models")
    if len(pairs) > 1 or len(pairs[0]) > 2:
        raise FlagError("more than two sides: compare two releases, two settings or two models at a time")
    return pairs[0]


def _with(arguments: Arguments, text: str) -> Arguments:
    """The question with one more setting: what sets the same is replaced."""
    extra = parse_arguments([text], VALUES, environ={})
    if inner := [option for option in ("--with", "--top") if option in extra.own]:
        raise FlagError(f"--with {shown(text)}: {inner[0]} is no setting of a side; write --with '-ub 2048'")
    if not text.strip() or extra.help or extra.json or extra.check:
        raise FlagError(f"--with {shown(text)}: give llama-server's flags or options, as in --with '-ub 2048'")
    kept: list[str] = []
    words = list(arguments.flags)
    replaced = {name for flag in _names(extra.flags) for name in same_setting(flag)}
    replaced |= _EXPERTS if replaced & _EXPERTS else set()
    model = extra.model or parse_flags(extra.flags).model
    replaced |= _MODELS if model else set()
    while words:
        flag = words.pop(0)
        count = arity(flag) or 0
        if normalized(flag) not in replaced:
            kept += [flag, *words[:count]]
        del words[:count]
    found = replace(arguments, flags=(*kept, *extra.flags))
    if model:
        found = replace(found, model=model)
    if extra.gpus or extra.rig is not None or extra.no_gpu:
        found = replace(found, gpus=extra.gpus, rig=extra.rig, no_gpu=extra.no_gpu)
    if extra.host_mib is not None:
        found = replace(found, host_mib=extra.host_mib)
    if extra.without_ops:
        found = replace(found, without_ops=extra.without_ops)
    for option, texts in extra.own.items():
        found = _set(found, option, texts[-1])
    return found


def _set(arguments: Arguments, option: str, text: str) -> Arguments:
    """The question with one option of ``SETTINGS`` set."""
    own = {**arguments.own, option: (text,)}
    return replace(
        arguments,
        own=own,
        llama=text if option == "--llama" else arguments.llama,
        app=text if option == "--app" else arguments.app,
    )


def _names(flags: Sequence[str]) -> list[str]:
    """The flags among words, without their values."""
    words, names = list(flags), []
    while words:
        flag = words.pop(0)
        names.append(normalized(flag))
        del words[: arity(flag) or 0]
    return names
