"""The typer commands: how their words are read, what those with llama-server's flags share, how help is written."""

import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import Annotated, Any, ClassVar, Final, Literal

import typer
from typer.core import TyperCommand

from memplan.cli import complete
from memplan.cli.arguments import Known, Words, sort_words
from memplan.errors import FlagError, shown
from memplan.llama.config_files import config_files
from memplan.llama.flag_values import whole
from memplan.llama.flag_words import without

App = Literal["server", "cli"]
Way = Literal["auto", "fused", "unfused"]

APP: Final[dict[str, Any]] = {"add_completion": False, "rich_markup_mode": None}
"""What every command's typer app is made with."""

PATHS: Final = ("path", "indexer", "hyper_connections")
"""Fields of Arguments that say how ops that can be fused are computed; for commands that ask for such a thing."""


CHECK_FAILED: Final = 1
"""The exit status with ``--check`` where the answer is no; of plan and preset where nothing fits."""


def number(name: str, low: int = 1, high: int = 1_000_000, metavar: str = "N", **settings: Any) -> Any:
    """A typer option that takes a whole number from ``low`` to ``high``."""

    def parse(text: str | int) -> int:
        return text if isinstance(text, int) else whole(name, text, low, high)

    return typer.Option(name, metavar=metavar, parser=parse, **settings)


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, sizes in bytes.")]
Offline = Annotated[bool, typer.Option("--offline", help="Read no header from the network, only from the cache.")]
NoCache = Annotated[
    bool,
    typer.Option(
        "--no-cache",
        help="Read headers from the network anew and keep none; what was kept before is kept as it is there now.",
    ),
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A hyper-parameter that a built-in model has otherwise, by its GGUF name, such as expert_count=132 of a"
        " variant with fewer experts; may be repeated. Its tensors are those that llama.cpp then asks for.",
    ),
]
Timeout = Annotated[
    str,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        help="How long the network may take in all (30); the next try goes on from where one broke off.",
    ),
]


@dataclass(frozen=True)
class Shared:
    """The options of every command that takes llama-server's flags.

    --gpu: A GPU, in device order; may be repeated. SPEC is [N*]NAME[:TOTAL_MIB[:FREE_MIB[:CC]]], such as "2*RTX 3090"
        or "RTX 3090:24268:23868:8.6". Others than NVIDIA's are for Vulkan or Metal ("M2 Ultra"), approximately; in CC's
        place Vulkan, Metal or ROCm asks for that. A server's: rpc:HOST:PORT:TOTAL_MIB[:FREE_MIB].
    --rig: The GPUs and the host's memory, in TOML or JSON.
    --host-mib: The host's memory; without it, or a rig file that says it, the host is not checked.
    --no-gpu: No GPU. With none of these four: this machine's memory and GPUs (see memplan devices).
    --llama: A release of llama.cpp, by tag (v0.5.0) or build (b10068); the newest tag by default (memplan releases
        marks it).
    --app: llama-server or llama-cli.
    --without-op: GPUs refuse this op, as if they had no kernel for it; may be repeated. What follows is llama.cpp's
        choice: without LIGHTNING_INDEXER, releases from v0.4.0 on run that op on the host, older ones build it from
        small ops on the GPUs.
    --path: How a part of the graph is computed, whatever the GPUs can do: fused (in ops of its own), unfused (from
        small ops), or auto (default), which is the release's own choice; may be repeated. DeepSeek-V4 has indexer and
        hyper-connections.
    --indexer: Another spelling of --path indexer=WAY.
    --hyper-connections: Another spelling of --path hyper-connections=WAY.
    --filled: Tokens that each slot holds when the run time is counted; all that it can hold by default. With it buffers
        are those of a server that has loaded, which differ a little from what llama.cpp plans, and its file is mapped
        (CPU_Mapped).
    --reserve: What should be left on every GPU, or on each, for what has no rule: the code of kernels, loaded as they
        are used. By default 300 on a CUDA device; with less left it is tight.
    """

    models: Annotated[list[str] | None, typer.Argument(metavar="MODEL", autocompletion=complete.models)] = None
    gpus: Annotated[list[str] | None, typer.Option("--gpu", metavar="SPEC", autocompletion=complete.cards)] = None
    rig: Annotated[str | None, typer.Option("--rig", metavar="FILE")] = None
    host_mib: Annotated[int | None, number("--host-mib", high=1 << 30, metavar="MIB")] = None
    no_gpu: Annotated[bool, typer.Option("--no-gpu")] = False
    changes: Changes = None
    llama: Annotated[
        str, typer.Option("--llama", metavar="RELEASE", show_default=False, autocompletion=complete.releases)
    ] = "latest"
    app: Annotated[App, typer.Option("--app")] = "server"
    without_ops: Annotated[
        list[str] | None, typer.Option("--without-op", metavar="OP", autocompletion=complete.ops)
    ] = None
    path: Annotated[list[str] | None, typer.Option("--path", metavar="NAME=WAY", autocompletion=complete.paths)] = None
    indexer: Annotated[Way | None, typer.Option("--indexer")] = None
    hyper_connections: Annotated[Way | None, typer.Option("--hyper-connections")] = None
    filled: Annotated[int | None, number("--filled", 0, (1 << 31) - 1)] = None
    reserve: Annotated[str | None, typer.Option("--reserve", metavar="MIB[,MIB...]")] = None
    offline: Offline = False
    no_cache: NoCache = False
    timeout: Timeout = ""


@dataclass(frozen=True)
class Arguments(Shared):
    """What was asked, before any of it is looked up."""

    flags: tuple[str, ...] = ()
    """llama-server's flags with their values, in order; before them those that its environment stands for."""
    left_out: tuple[str, ...] = ()
    """llama-server's flags that were given with a secret, which is neither kept nor shown."""
    given: Collection[str] = ()
    """Names of memplan's options that were given."""
    pasted: bool = False
    """Whether a program of llama.cpp's is named: the flags are a whole command line."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that stand before the program in a pasted command line."""
    notes: tuple[str, ...] = ()
    """What to say of the environment with every estimate."""

    @property
    def model(self) -> str:
        """The first MODEL argument; empty when only a flag names the model."""
        return (self.models or [""])[0]


class Command(TyperCommand):
    """A command without llama-server's flags.

    Its help is its function's docstring: what it does, and last what each option is for, as in ``--top: Lines of each
    list.``  ``epilog``: its examples, a line each, and what to know beside.
    """

    allow_extra_args = True  # as far as typer is concerned: parse_args has words of its own for them
    shared: Sequence[Any] = ()
    """Parameters that the command's function has not."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **{**settings, "add_help_option": False})
        self.help, *said = re.split(r"\n(?=--[a-z-]+: )", self.help or "")
        for name, text in [about.split(": ", 1) for about in said]:
            option = next(option for option in options_of(self.params) if name in option.opts)
            option.help = " ".join(text.split())

    def referred(self) -> Sequence[Any]:
        """Options that another command's help explains."""
        return () if self.name == "estimate" else self.shared

    def known(self) -> Known:
        """The command's own options."""
        options = options_of(self.params)
        return Known(
            {spelled: option.opts[-1] for option in options for spelled in option.opts},
            [option.opts[-1] for option in options if option.is_flag],
            [option.opts[-1] for option in options if option.multiple],
            self.name or "",
        )

    def sorted(self, args: Sequence[str]) -> Words:
        """The words, sorted. Raises FlagError."""
        return sort_words(args, self.known(), llama=False)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Sort the words, and let typer convert the command's own. Raises FlagError."""
        ctx.obj = words = Words(names=args) if ctx.resilient_parsing else self.sorted(args)
        if "--help" in words.own:
            sys.stdout.write(f"{self.get_help(ctx)}\n")
            raise typer.Exit
        own = [[name, value] for name, values in words.own.items() for value in values]
        own += [[name] for name, values in words.own.items() if not values]
        rest = super().parse_args(ctx, [*chain(*own), "--", *words.names])
        if rest and not ctx.resilient_parsing:
            named = f"argument{'' if len(rest) == 1 else 's'} {' and '.join(map(shown, rest))}"
            raise FlagError(f"unexpected {named}; see {ctx.command_path} --help")
        return rest

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What the line of usage has after the command's name."""
        return [*(param.metavar or "" for param in self.params if param not in options_of(self.params)), "[options]"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the command's own options."""
        own = [param for param in self.params if param not in self.referred()]
        with formatter.section("Options"):
            formatter.write_dl([*records(ctx, own), ("-h, --help", "Print this.")], col_max=20)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the epilog as it stands, and what the exit status says."""
        check = ", 1 with --check" if "--check" in self.known().names else ""
        status = f"\nExit status: 0 answered{check}, 2 bad input (one line says what)."
        formatter.write(f"\n{self.epilog}{'' if 'Exit status' in (self.epilog or '') else status}")


def records(ctx: Any, params: Iterable[Any]) -> list[tuple[str, str]]:
    """How options are spelled, and what they are for."""
    return [record for option in options_of(params) if (record := option.get_help_record(ctx))]


def options_of(params: Iterable[Any]) -> list[Any]:
    """Those that are options."""
    return [param for param in params if param.param_type_name == "option"]


@cache
def shared_params() -> list[Any]:
    """The parameters that the fields of Shared stand for."""
    made = typer.Typer(add_completion=False)
    made.command(cls=Command)(Shared)
    return list(typer.main.get_command(made).params)


class LlamaCommand(Command):
    """A command with llama-server's flags, whose function finds Arguments in ``ctx.obj``.

    The flags are taken out of the words by their arity before typer sees them, which would read ``-ctk`` as ``-c tk``.
    """

    without: ClassVar[Sequence[str]] = ()
    """Fields of Arguments whose options it has not."""
    most: ClassVar[int] = 1
    """How many MODEL arguments it takes."""
    usage: ClassVar[str] = ""
    """What stands for the MODEL arguments in the line of usage, if not just that."""
    what: ClassVar[str] = "model"
    """What MODEL is."""
    too_many: ClassVar[str] = "or is a flag missing?"
    """What to do about more than ``most``."""
    environment: ClassVar[bool] = True
    """Whether llama-server's variables count that are set where memplan runs."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        left_out = {*self.without, *(param.name for param in self.params)}
        self.shared = [param for param in shared_params() if param.name not in left_out]
        self.params = [*self.shared, *self.params]

    @classmethod
    def but(cls, **attributes: Any) -> type[TyperCommand]:
        """This class with other attributes."""
        return type(cls.__name__, (cls,), attributes)

    def sorted(self, args: Sequence[str]) -> Words:
        """The words, sorted. Raises FlagError."""
        words = sort_words(args, self.known())
        if len(words.names) > self.most:
            count = f"one {self.what}" if self.most == 1 else f"{self.most} {self.what}s"
            raise FlagError(
                f"more than {count}: {' and '.join(map(shown, words.names[: self.most + 1]))}; {self.too_many}"
            )
        if words.line.app:
            words.own.setdefault("--app", [words.line.app])
        return words

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Sort the words, and make Arguments of those that this command shares with others. Raises FlagError."""
        rest = super().parse_args(ctx, args)
        if ctx.resilient_parsing:
            return rest
        words: Words = ctx.obj
        environ = {**(os.environ if self.environment else {}), **words.line.environment}
        of_environment, notes = _environment_flags(environ, words.own.get("--llama", ["latest"])[-1], bool(words.names))
        shared = {param.name: _plain(ctx.params.pop(param.name)) for param in self.shared}
        flags, model = _with_preset(words.flags, words.names[0] if words.names else "", of_environment)
        if words.names and "models" in shared:
            shared["models"] = [*filter(None, [model]), *words.names[1:]]
        ctx.obj = Arguments(
            **shared,
            flags=tuple(flags),
            left_out=tuple(dict.fromkeys(words.left_out)),
            given=words.own.keys(),
            pasted=bool(words.line.app),
            environment=words.line.environment,
            notes=tuple(notes),
        )
        return rest

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What the line of usage has after the command's name."""
        return [self.usage or self.what.upper(), "[llama-server's flags]", "[options]"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the command's own options, and which it shares with ``memplan estimate``."""
        super().format_options(ctx, formatter)
        if options := [option.opts[-1] for option in options_of(self.referred())]:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(f"{', '.join(options)} and llama-server's flags are those of memplan estimate.")

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Options, and llama-server's flags."""
        return [*super().shell_complete(ctx, incomplete), *complete.flags(incomplete)]


def _plain(value: Any) -> Any:
    """A parameter's value with a list of several, as annotations have it."""
    return list(value) if isinstance(value, tuple) else value


def _with_preset(flags: list[str], model: str, environment: list[str]) -> tuple[list[str], str]:
    """All flags and the model, where ``--models-preset`` is given with what its section says. Raises FlagError."""
    if not any(word.replace("_", "-").startswith("--models-preset") for word in (*environment, *flags)):
        return [*environment, *flags], model
    from memplan.llama.preset_file import with_preset

    return with_preset(flags, model, environment)


def _environment_flags(variables: Mapping[str, str], llama: str, named: bool) -> tuple[list[str], list[str]]:
    """The flags that llama.cpp's configuration files and then its variables stand for, and what to say of them.

    ``named``: whether a model is, in place of the files' own. Raises FlagError, UnknownRelease.
    """
    words: list[str] = []
    notes: list[str] = []
    if any(map(os.path.isfile, config_files(variables))):
        from memplan.llama.config_files import config_flags
        from memplan.releases import find_release

        words, notes = config_flags(variables, find_release(llama)[0].build)
        words = [*without(words, ("-m", "--model"))] if named else words
    if any(name.startswith("LLAMA_ARG_") for name in variables):
        from memplan.llama.environment import environment_flags
        from memplan.releases import find_release

        more, said = environment_flags(variables, find_release(llama)[0].build)
        words, notes = [*words, *more], [*notes, *said]
    return words, notes
