"""What a command line asks, looked up: the whole question, its model and rig, and how the network may be used."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.backends.devices import Rig
from memplan.cli import terminal
from memplan.cli.command import Arguments
from memplan.errors import FlagError, MemplanError, RigError, shown
from memplan.llama.context import Paths
from memplan.llama.environment import UNMODELLED
from memplan.llama.flag_values import whole
from memplan.llama.flags import Flags, check_devices, parse_flags
from memplan.llama.spelling import spelled_for

if TYPE_CHECKING:
    from memplan.gguf.header import Header
    from memplan.gguf.remote import Access
    from memplan.machine.detected import Detected
    from memplan.question import Load, Question


def read_question(arguments: Arguments) -> Question:
    """Look up what was named: flags, GPUs, release, and last the model, which may take a while. Raises MemplanError."""
    flags = parse_flags(arguments.flags, arguments.app)
    model = model_of(arguments, flags)
    check_model(arguments, model)
    rig, machine = rig_of(arguments)
    rig, seen = rig_in(arguments.environment, rig, machine)
    check_devices(flags, rig)
    from memplan.question import Question, check_op
    from memplan.rig import one_each

    without_ops = tuple(dict.fromkeys(check_op(name, "--without-op ") for name in arguments.without_ops or ()))

    from memplan.releases import find_release

    release, note = find_release(arguments.llama)
    words, respelled = spelled_for(arguments.flags, release.build, release.name)
    flags = parse_flags(words, arguments.app)
    paths = paths_of(arguments)
    notes, inexact = about_machine(machine)
    loads, absent = loads_of(arguments, model, flags)
    reserve = one_each("--reserve", reserve_mibs(arguments), len(rig.gpus))
    filled, notes = arguments.filled, (*arguments.notes, *respelled, *seen, *absent, *notes)
    inexact = (*inexact, *(f"{name} is not modelled" for name in UNMODELLED if name in arguments.environment))
    question = Question(loads, flags, rig, release, without_ops, paths, note or "", notes, inexact, filled, reserve)
    return question.with_draft_kind()


def reserve_mibs(arguments: Arguments) -> tuple[int, ...]:
    """The values of ``--reserve``. Raises FlagError."""
    from memplan.rig import parse_mibs

    return () if arguments.reserve is None else parse_mibs("--reserve", arguments.reserve)


def paths_of(arguments: Arguments) -> Paths:
    """What ``--path NAME=WAY`` and its other spellings, ``--indexer WAY`` and ``--hyper-connections WAY``, ask for."""
    from memplan.models.paths import parse_paths

    ways = {"indexer": arguments.indexer, "hyper-connections": arguments.hyper_connections}
    return parse_paths(arguments.path or (), {name: way for name, way in ways.items() if way})


def rig_of(arguments: Arguments) -> tuple[Rig, Detected | None]:
    """The rig of ``--gpu``, ``--rig`` or ``--no-gpu``; with none of them this machine's, and how it was found.

    With ``--host-mib`` its host has so much memory. Raises RigError, FlagError.
    """
    host = host_of(arguments)
    rig, machine = _named(arguments)
    return (rig if host is None else replace(rig, host_total=host)), machine


def host_of(arguments: Arguments) -> int | None:
    """The host's memory that ``--host-mib`` gives, bytes. Raises FlagError."""
    if arguments.host_mib is None:
        return None
    from memplan.rig import FEW_HOST_MIB, check_mib

    return check_mib("--host-mib", arguments.host_mib, few=FEW_HOST_MIB)


def _named(arguments: Arguments) -> tuple[Rig, Detected | None]:
    from memplan.rig import parse_gpus

    ways = [name for name, used in (
        ("--gpu", bool(arguments.gpus)), ("--rig", arguments.rig is not None), ("--no-gpu", arguments.no_gpu),
    ) if used]  # fmt: skip
    if len(ways) > 1:
        raise RigError(f"{' and '.join(ways)}: give only one of them")
    if arguments.rig is not None:
        from memplan.rig_file import load_rig

        return load_rig(arguments.rig), None
    if ways:
        return parse_gpus(arguments.gpus or ()), None
    from memplan.cli.waiting import waiting
    from memplan.machine.detect import detect

    with waiting("llama-server --list-devices"), started_in(arguments.environment):
        machine = detect()
    if not machine.rig.gpus:
        raise RigError(
            f"which GPUs? none is found on this machine ({machine.source}): "
            'name them, as in --gpu "2*RTX 3090", or give --rig FILE or --no-gpu'
        )
    return machine.rig, machine


@contextmanager
def started_in(variables: Mapping[str, str]) -> Iterator[None]:
    """Have programs that memplan asks see what a pasted line sets for its own."""
    before = dict(os.environ)
    os.environ.update({name: value for name, value in variables.items() if value.isprintable()})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def rig_in(environment: Mapping[str, str], rig: Rig, machine: Detected | None) -> tuple[Rig, list[str]]:
    """The rig as a program sees it that starts with these variables, and what to say of it. Raises RigError.

    ``machine``: where the rig is this machine's, which was asked with the same variables.
    """
    if not environment:
        return rig, []
    from memplan.backends.visible import UNIFIED, rig_seen, with_unified_memory

    rig, notes = rig_seen(rig, environment) if machine is None else (rig, [])
    if UNIFIED not in environment:
        return rig, notes
    rig, more = with_unified_memory(rig, rig.host_total if machine is None else machine.host_free)
    return rig, [*notes, *more]


def about_machine(machine: Detected | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What to say with every estimate for this machine, and why none is exact; nothing where the rig was named."""
    if machine is None:
        return (), ()
    return (f"for this machine's GPUs, from {machine.source}", *machine.notes), (machine.inexact,)


def stands_in(arguments: Arguments, flags: Flags) -> bool:
    """Whether MODEL is for the file that a pasted line names, which is not here."""
    return arguments.pasted and arguments.model not in ("", flags.model) and not os.path.exists(flags.model or os.sep)


def model_of(arguments: Arguments, flags: Flags) -> str:
    """The one model that is named, as MODEL or by ``-m``. Raises FlagError when none is, or two are."""
    if arguments.model and flags.model and arguments.model != flags.model:
        if stands_in(arguments, flags):
            return arguments.model
        raise FlagError(
            f"more than one model: {shown(arguments.model)} and {shown(flags.model)} of the flags; give only one"
        )
    model = arguments.model or flags.model
    if not model:
        raise FlagError("which model? give a GGUF file or a built-in name (see memplan models), or -m FILE")
    return model


def check_model(arguments: Arguments, model: str) -> None:
    """Raises MemplanError for a model that is not there, before anything else is looked for."""
    from memplan.models.open import check_named

    try:
        check_named(model)
    except MemplanError as fault:
        if arguments.pasted and not arguments.model:
            raise FlagError(f"{fault}; or put a built-in model before the line, to stand in for it") from None
        raise


def loads_of(arguments: Arguments, model: str, flags: Flags) -> tuple[tuple[Load, ...], list[str]]:
    """The model, and what the flags load beside it, opened; and what to say of files that are not here.

    Of a line whose model has a stand-in they may be missing: a built-in drafter stands in for its own, and others are
    not counted. Raises MemplanError.
    """
    from memplan.models.open import open_model
    from memplan.question import Load

    loads = [Load(open_model(model, access_of(arguments, model), arguments.changes or ()))]
    said = list[str]()
    elsewhere = stands_in(arguments, flags)
    if elsewhere:
        said.append(f"{shown(model)} is taken for {shown(flags.model)}, which is not here")
    for name, role, flag in ((flags.draft_model, "draft", "-md"), (flags.projector, "projector", "-mm")):
        instead = _drafter_like(name, loads[0].header) if role == "draft" else ""
        otherwise = f"{flag} FILE behind the line names one that is"
        header = opened(arguments, name, said, instead, otherwise if elsewhere else "")
        if header is not None:
            loads.append(Load(header, role))
    return tuple(loads), said


def opened(arguments: Arguments, name: str, said: list[str], instead: str, otherwise: str) -> Header | None:
    """The header of a file that a line names; None for no name. Raises MemplanError.

    ``otherwise``: what to say where it is not here, of a line for which it need not be: then ``instead``, a built-in
    model, is taken for it, if there is one.
    """
    from memplan.models.open import open_model

    try:
        return open_model(name, access_of(arguments, name)) if name else None
    except MemplanError:
        if not otherwise or os.path.exists(name):
            raise
    said.append(f"{shown(name)} is not here: {f'{instead} is taken for it' if instead else otherwise}")
    return open_model(instead) if instead else None


def _drafter_like(name: str, model: Header) -> str:
    """The built-in drafter that a file's name means, which DeepSeek-V4-Flash ships with; empty for any other."""
    flash = model.metadata.get("deepseek4.embedding_length") == 4096
    return "deepseek-v4-flash-dspark" if flash and "dspark" in os.path.basename(name).lower() else ""


def access_of(arguments: Arguments, model: str) -> Access | None:
    """How the network may be used; None for a model that is on no network."""
    return access_for(model, offline=arguments.offline, cache=not arguments.no_cache, timeout=arguments.timeout)


def access_for(model: str, *, offline: bool, cache: bool, timeout: str = "") -> Access | None:
    """The same from what was given; progress is shown on a terminal only."""
    from memplan.models.open import is_remote

    if not is_remote(model):
        return None
    from memplan.gguf.http import Policy
    from memplan.gguf.remote import Access

    policy = Policy(total=float(whole("--timeout", timeout, 1, 86400))) if timeout else Policy()
    progress = _progress() if sys.stderr.isatty() else None
    return Access(offline=offline, cache=cache, policy=policy, progress=progress, warn=warn)


def warn(line: str) -> None:
    """Say something on stderr."""
    print("memplan: warning:", terminal.one_line(line), file=sys.stderr)


def _progress() -> Callable[[str, int], None]:
    """Shows how far it is, after a moment, in one line that is overwritten and wiped when the command ends."""
    import atexit

    started = shown = time.monotonic()
    received: dict[str, int] = {}

    def show(name: str, done: int) -> None:
        nonlocal shown
        received[name] = done
        now = time.monotonic()
        if now - started < terminal.PATIENCE or now - shown < 0.1:
            return
        if shown == started:
            atexit.register(lambda: terminal.overwrite(sys.stderr))
        shown = now
        files = f", {len(received)} files" if len(received) > 1 else ""
        terminal.overwrite(sys.stderr, f"reading headers: {sum(received.values()) / 1e6:.1f} MB{files}")

    return show
