"""``memplan compare``: two releases, settings or models, and what moves between them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from memplan.cli import complete, terminal
from memplan.cli.asked import read_question
from memplan.cli.command import APP, PATHS, Arguments, Json, LlamaCommand, number, shared_params
from memplan.cli.waiting import working
from memplan.errors import FlagError, shown
from memplan.llama.flag_fields import NAMES_MODEL, same_setting
from memplan.llama.flag_words import normalized, split_words, without
from memplan.llama.flags import parse_flags

app = typer.Typer(**APP)
side = typer.Typer(**APP)

_EXPERTS = same_setting("-cmoe", "-ncmoe")
"""Which experts are on the host: one of these replaces the other, where for llama-server both would hold."""

TWICE = ("llama", "app", *PATHS)
"""Fields of Arguments of which there is one elsewhere: given twice, they are what is compared."""

AS_GIVEN = "as given"
"""What the first side is called when only the second has a setting of its own."""


@app.command(
    cls=LlamaCommand.but(most=2, usage="MODEL [MODEL]", too_many="releases are compared by --llama A,B"),
    epilog="""\
--llama, --app, --path, --indexer and --hyper-connections, given twice, are what
is compared; all that is given once holds for both sides.

Examples:
  memplan compare flash.gguf --gpu "RTX 4090" -cmoe --llama b10549,b10568
  memplan compare flash.gguf --gpu "RTX 4090" -cmoe --with "-ub 512"
""",
)
def compare(
    ctx: typer.Context,
    settings: Annotated[list[str] | None, typer.Option("--with", metavar="SETTINGS")] = None,
    llama: Annotated[
        list[str] | None, typer.Option("--llama", metavar="RELEASE", autocompletion=complete.releases)
    ] = None,
    app: Annotated[list[str] | None, typer.Option("--app", metavar="APP")] = None,
    path: Annotated[list[str] | None, typer.Option("--path", metavar="NAME=WAY", autocompletion=complete.paths)] = None,
    indexer: Annotated[list[str] | None, typer.Option("--indexer", metavar="WAY")] = None,
    hyper_connections: Annotated[list[str] | None, typer.Option("--hyper-connections", metavar="WAY")] = None,
    top: Annotated[int, number("--top")] = 8,
    json: Json = False,
) -> int:
    """What moves between two releases, two settings or two models: weights, context and compute of every device; and
    what moves them: which weights and caches lie elsewhere, which tensors are alive when a compute buffer is fullest,
    which live longer or lie in another's place, and what is lost in gaps between them. Of two releases, what those
    between them changed, and what of it moves anything here. The last line is the verdict: what is more or less on each
    device, and whether it still fits.

    --with: A side's own settings: llama-server's flags, or options such as --gpu or --llama; given twice, or once for
        it and what is given.
    --llama: A release of llama.cpp; two to compare them, or --llama A,B.
    --app: As estimate has it, or two to compare.
    --path: As estimate has it, or two.
    --indexer: As --path indexer=WAY.
    --hyper-connections: As --path hyper-connections=WAY.
    --top: Lines of each list.
    """
    (a, first), (b, second) = sides(ctx.obj, settings or (), ctx.params)
    asked = read_question(first)
    other = read_question(second)
    named = [(side.model, side.changes, question.flags.model) for side, question in ((first, asked), (second, other))]
    if named[0] == named[1]:
        other = other.with_(loads=(asked.loads[0], *other.loads[1:]))  # what is known of a header is kept with it

    from memplan.comparing.compare import compare as compared
    from memplan.comparing.steps import release_steps
    from memplan.explaining.explain import explained

    with working("comparing"):
        comparison = replace(compared(explained(asked), explained(other)), steps=release_steps(asked, other))
    if json:
        from memplan.output.compare_json import comparison_json

        text = comparison_json(comparison, (a, b))
    else:
        from memplan.output.compare import render_comparison

        text = render_comparison(
            comparison,
            (a, b),
            top=top,
            **terminal.look(),
            fill=terminal.width(),
        )
    sys.stdout.write(text)
    return 0


@side.command(cls=LlamaCommand.but(environment=False))
def _side(ctx: typer.Context) -> int:
    return 0


def sides(arguments: Arguments, settings: Sequence[str], own: Mapping[str, Any]) -> list[tuple[str, Arguments]]:
    """The two questions, each with what it is called. Raises FlagError unless exactly one pair is given.

    ``own``: the command's own parameters, some of them fields of Arguments of which there is one elsewhere.
    """
    twice: dict[str, list[str]] = {field: own[field] or [] for field in TWICE}
    twice["llama"] = [name for text in twice["llama"] for name in text.split(",")]
    pairs: list[list[tuple[str, Arguments]]] = []
    once = {field: _value(field, texts[0]) for field, texts in twice.items() if len(texts) == 1}
    arguments = replace(arguments, **once)
    models = arguments.models or []
    if len(models) > 1:
        pairs.append([(model, replace(arguments, models=[model])) for model in models])
    for field, texts in twice.items():
        if len(texts) > 1:
            name = "" if field == "llama" else f"--{field.replace('_', '-')} "
            pairs.append([(f"{name}{text}", replace(arguments, **{field: _value(field, text)})) for text in texts])
    if settings:
        asked = [(text, _with(arguments, text)) for text in settings]
        pairs.append([(AS_GIVEN, arguments), *asked] if len(asked) == 1 else asked)
    if not pairs:
        if once:
            raise FlagError(f"compared with what? give a second --{next(iter(once)).replace('_', '-')}")
        raise FlagError("what is to be compared? give --llama A --llama B, --with A --with B, or two models")
    if len(pairs) > 1 or len(pairs[0]) > 2:
        raise FlagError("more than two sides: compare two releases, two settings or two models at a time")
    return pairs[0]


def _value(field: str, text: str) -> Any:
    """A field's value: there may be several paths."""
    return [text] if field == "path" else text


def _with(arguments: Arguments, text: str) -> Arguments:
    """The question with one more setting: what sets the same is replaced."""
    if not text.strip() or {"-h", "--help"} & set(text.split()):
        raise FlagError(f"--with {shown(text)}: give llama-server's flags or options, as in --with '-ub 2048'")
    if inner := [word for word in text.split() if word in ("--with", "--top")]:
        raise FlagError(f"--with {shown(text)}: {inner[0]} is no setting of a side; write --with '-ub 2048'")
    try:
        extra: Arguments = typer.main.get_command(side).make_context("--with", [text]).obj
    except FlagError as error:
        raise FlagError(f"--with {shown(text)}: {error}") from None
    replaced = {name for words in split_words(extra.flags) for name in same_setting(normalized(words[0]))}
    replaced |= _EXPERTS if replaced & _EXPERTS else set()
    model = extra.model or parse_flags(extra.flags).model
    replaced |= NAMES_MODEL if model else set()
    set_here = {param.name: getattr(extra, param.name) for param in shared_params() if param.opts[-1] in extra.given}
    if set_here.keys() & {"gpus", "rig", "no_gpu"}:
        set_here = {"gpus": [], "rig": None, "no_gpu": False, **set_here}
    if model:
        set_here["models"] = [model]
    return replace(arguments, flags=(*without(arguments.flags, replaced), *extra.flags), **set_here)
