"""``memplan verify``: llama.cpp's own numbers beside memplan's."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from memplan.backends.cards import find_card
from memplan.backends.devices import Rig
from memplan.cli.asked import access_of, host_of, loads_of, model_of, rig_of, started_in
from memplan.cli.command import APP, CHECK_FAILED, PATHS, Arguments, Json, LlamaCommand
from memplan.cli.waiting import waiting
from memplan.errors import FlagError, ProgramError
from memplan.llama.flags import Flags, check_devices, parse_flags
from memplan.llama.spelling import spelled_for

if TYPE_CHECKING:
    from memplan.diagnosing.measure import Measured
    from memplan.machine.detected import Detected
    from memplan.output.verification import Comparison
    from memplan.result import Estimate

app = typer.Typer(**APP)


@app.command(
    cls=LlamaCommand.but(without=(*PATHS, "changes", "without_ops", "filled", "reserve")),
    epilog="""\
GPUs, memory and the release are the program's own if they are not given.

Examples:
  memplan verify deepseek-v4-flash -c 65536 -np 1 -ncmoe 40
  memplan verify model.gguf -c 65536 -np 1 --program build/bin/llama-fit-params
""",
)
def verify(
    ctx: typer.Context,
    program: Annotated[str | None, typer.Option("--program", metavar="FILE")] = None,
    json: Json = False,
    check: Annotated[bool, typer.Option("--check")] = False,
) -> int:
    """Run your own llama-fit-params with the same flags, in the mode in which it allocates nothing, and put its numbers
    beside memplan's, device by device. It is taken from PATH, or from beside llama-server, or is llama's own command;
    without any llama-server is started and ended before it loads, which gives the compute buffers alone.

    MODEL is what memplan estimate takes. Of a model that is not whole on this machine a file with its header and a hole
    for its data is made for the while.

    --program: The llama-fit-params, llama or llama-server to run.
    --check: Exit with 1 when a figure differs, or a refusal.
    """
    arguments: Arguments = ctx.obj
    flags = parse_flags(arguments.flags, arguments.app)
    if program == "":
        raise FlagError("--program: an empty name; is a variable of the shell not set?")
    model = model_of(arguments, flags)

    from memplan.diagnosing.measure import Measured, NoFigures, find_measurer, is_server, measure, version_of
    from memplan.estimator import answer
    from memplan.explaining.run_time import explain_run_time
    from memplan.output.verification import (
        Verification,
        compare,
        render_verification,
        render_verification_json,
        unaccounted,
    )
    from memplan.question import Question

    loads, _ = loads_of(arguments, model, flags)
    header = loads[0].header
    program = find_measurer(program or "")
    name = os.path.basename(program)
    with waiting(f"{name} --version"):
        version = version_of(program)
    with waiting(f"{name} --list-devices"), started_in(arguments.environment):
        machine = _machine(arguments, program)
    rig = machine.rig
    check_devices(flags, rig)
    llama = arguments.llama if arguments.llama != "latest" or not version else version
    alone = Question.of(header, _as_measured(flags, is_server(program)), rig, llama)
    words, respelled = spelled_for(arguments.flags, alone.release.build, alone.release.name)
    result = answer(alone).estimate
    refusal: NoFigures | None = None
    measured = Measured(program, version, (), {})
    with _whole(model, header.nbytes, arguments) as path:
        try:
            with waiting(name), started_in(arguments.environment):
                measured = measure(program, path, words, flags.n_parallel)
        except NoFigures as error:
            if result.refused is None:
                raise ProgramError(f"{error}; memplan predicts that it starts") from None
            refusal = error
            measured = Measured(program, version, error.command, {})
    rows = compare(measured, result)
    notes = [*respelled, *_notes(measured, flags, result, rows)]
    whole = explain_run_time(alone.with_(loads=loads, flags=flags).with_draft_kind())
    if len(loads) > 1 or flags.drafting:
        notes.append(_beside(name, whole.estimate))
    notes += [why for why in (result.approximate, machine.inexact) if why]
    if not all(row.agrees for row in rows) and not machine.source:
        notes = [*_other_rig(program, rig), *notes]
    said = refusal.said if refusal is not None else ""
    verified = Verification(measured, result, rows, unaccounted(whole), notes, said)
    sys.stdout.write((render_verification_json if json else render_verification)(verified))
    return CHECK_FAILED if check and not verified.agrees else 0


def _notes(measured: Measured, flags: Flags, result: Estimate, rows: Sequence[Comparison]) -> Iterator[str]:
    """What to know about the program's answer."""
    program = os.path.basename(measured.program)
    if not measured.version:
        yield f"{program} does not say which build it is; --llama names it"
    if flags.kv_unified and flags.n_parallel > 1:
        yield "llama-fit-params has no --kv-unified: both sides give each slot its part of the context"
    repacked = result.buffers.get("CPU_REPACK")
    if repacked is not None and repacked.model and not measured.partial:
        yield f"{repacked.model >> 20:,} MiB of weights that the CPU repacks are in neither: {program} leaves them out"
    if any(row.name == "Host" and row.part == "model" and not row.agrees for row in rows):
        yield "weights that the CPU repacks are left out, and which ones depends on the CPU: memplan follows AVX2"


def _as_measured(flags: Flags, server: bool) -> Flags:
    """What the program makes of them: llama-fit-params reserves an output for every token, as llama-cli does.

    Neither is given what drafts, or a projector.
    """
    bare = Flags()
    beside = ("drafting", "draft_model", "n_draft", "n_rs_seq", "load_mtp", "projector")
    without = {name: getattr(bare, name) for name in beside}
    return replace(flags, app="server" if server else "cli", kv_unified=False, **without)


def _beside(program: str, whole: Estimate) -> str:
    """What is loaded beside the model, which the program does not measure."""
    from memplan.notes import mib

    uses = {device.name: device.draft + device.projector for device in whole.devices}
    uses["the host"] = whole.host.draft + whole.host.projector
    sizes = " and ".join(f"{mib(size)} on {name}" for name, size in uses.items() if size)
    takes = f"by memplan it takes {sizes or 'nothing'}"
    return f"{program} does not measure what drafts or a projector: both sides are without; {takes}"


def _other_rig(program: str, rig: Rig) -> Iterator[str]:
    """In what the GPUs given are not those that the program sees, which is why its figures are others."""
    from memplan.machine.detected import detected
    from memplan.machine.llama_server import list_devices

    try:
        seen = detected(list_devices(program), program, (None, None), []).rig
    except ProgramError:
        return
    name, leave = os.path.basename(program), "without --gpu, --rig or --no-gpu the program's own are taken"
    if len(seen.gpus) != len(rig.gpus):
        listed = ", ".join(gpu.description for gpu in seen.gpus)
        count = f"{len(seen.gpus)} GPU{'' if len(seen.gpus) == 1 else 's'}{f' ({listed})' if listed else ''}"
        yield f"{name} lists {count}, you gave {len(rig.gpus) or 'none'}; {leave}"
        return
    for device, own, given in zip(seen.names, seen.gpus, rig.gpus, strict=True):
        card = find_card(own.description)
        if card != find_card(given.description) or (card is None and own.description != given.description):
            yield f"{device} is {own.description} for {name}, you gave {given.description}; {leave}"
            return
        if own.free >> 20 != given.free >> 20:
            free = f"{own.free >> 20:,} MiB free for {name}, you gave {given.free >> 20:,}"
            yield f"{device} has {free}, by which llama.cpp shares layers out; {leave}"
            return


def _machine(arguments: Arguments, program: str) -> Detected:
    """The rig: the program's own, or that given, whose ``source`` is empty."""
    from memplan.machine.detected import Detected, detected
    from memplan.machine.host import host_memory
    from memplan.machine.llama_server import list_devices

    if arguments.gpus or arguments.rig is not None or arguments.no_gpu:
        return Detected(rig_of(arguments)[0], "")
    machine = detected(list_devices(program), program, host_memory(), [])
    host = host_of(arguments)
    return machine if host is None else replace(machine, rig=replace(machine.rig, host_total=host))


@contextmanager
def _whole(model: str, size: int, arguments: Arguments) -> Iterator[str]:
    """The path of a file that is as long as the model: its own, or one made for the while, with a hole for its data."""
    if os.path.isfile(model) and os.path.getsize(model) > size:
        yield model
        return
    from memplan.models.raw import header_file
    from memplan.outfile import write_atomically

    made = header_file(model, access_of(arguments, model), vocabulary=False)
    try:
        temporary = tempfile.TemporaryDirectory(prefix="memplan-")
    except OSError as error:
        raise ProgramError(f"no temporary folder can be made: {error.strerror}; set TMPDIR to one") from None
    with temporary as folder:
        path = Path(folder) / "model.gguf"
        try:
            write_atomically(path, made.parts, made.size)
        except OSError as error:
            raise ProgramError(
                f"a sparse file of {made.size:,} bytes cannot be made in {folder}: {error.strerror}; set TMPDIR"
            ) from None
        yield str(path)
