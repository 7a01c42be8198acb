"""``memplan devices``: this machine's GPUs and memory, and a rig file of them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memplan.cli import terminal
from memplan.cli.command import APP, Command, Json
from memplan.cli.waiting import waiting
from memplan.errors import FlagError, RigError, printable

if TYPE_CHECKING:
    from memplan.backends.devices import Gpu
    from memplan.machine.detected import Detected

app = typer.Typer(**APP)


@app.command(
    cls=Command,
    epilog="""\
Examples:
  memplan devices
  memplan devices --json
  memplan devices -o this-machine.toml
  memplan devices --known
""",
)
def devices(
    server: Annotated[str | None, typer.Option("--server", metavar="FILE")] = None,
    vulkaninfo: Annotated[str | None, typer.Option("--vulkaninfo", metavar="FILE")] = None,
    known: Annotated[bool, typer.Option("--known")] = False,
    path: Annotated[str | None, typer.Option("-o", "--output", metavar="FILE")] = None,
    force: Annotated[bool, typer.Option("--force")] = False,
    json: Json = False,
) -> int:
    """Which GPUs this machine has, in llama.cpp's order, and how much memory is free. memplan estimate and memplan plan
    take them when no --gpu is given.

    Asked are llama-server --list-devices, if one is on PATH; else NVIDIA's driver (with the nvml extra: pip install
    'memplan[nvml]'); else AMD's, in sysfs. What Vulkan's drivers allow is asked of vulkaninfo, where that is installed.

    --server: The llama-server to ask.
    --vulkaninfo: The devices in what vulkaninfo said, on any machine: its text, or its JSON (vulkaninfo --json) for
        limits alone.
    --known: List every card that --gpu knows by name.
    --output: Write a rig file for --rig: JSON if its name ends in .json, TOML otherwise. In place of one that memplan
        wrote, too.
    --force: Write it in place of any other file but a model.
    """
    if known:
        given = {"--server": server, "--vulkaninfo": vulkaninfo, "--output": path, "--force": force or None}
        if alone := [option for option, value in given.items() if value is not None]:
            raise FlagError(f"--known lists cards and looks at no machine: leave {alone[0]} out")
        return _list_known(json)

    from memplan.machine.detect import detect

    if vulkaninfo is not None and server is not None:
        raise FlagError("--server and --vulkaninfo: give one of them")
    if server == "":
        raise FlagError("--server: an empty name; is a variable of the shell not set?")
    server = server or ""
    if path is not None:
        from memplan.outfile import check_output
        from memplan.rig_file import RIG

        check_output(path, RIG, [server, vulkaninfo or ""], force=force)
    elif force:
        raise FlagError("--force is for the file of -o FILE")
    if vulkaninfo is not None:
        machine = _from_vulkaninfo(vulkaninfo)
    else:
        with waiting("llama-server --list-devices"):
            machine = detect(server)
    if path is not None:
        if not machine.rig.gpus and machine.rig.host_total is None:
            raise RigError(
                f"nothing is known of this machine ({machine.source}): no rig file; write one, as in examples/"
            )
        from memplan.outfile import write_output
        from memplan.rig_file import RIG, write_rig

        about = f"from {machine.source}" if machine.rig.gpus else "no GPU found"
        text = write_rig(machine.rig, json=path.lower().endswith(".json"), about=about)
        write_output(path, text.encode(), RIG, inputs=[server, vulkaninfo or ""], force=force)
        count = len(machine.rig.gpus)
        gpus = f"{count} GPU{'s' * (count > 1)}" if count else "no GPU"
        print(f"{path}: a rig file of {gpus}; memplan estimate takes it with --rig", file=sys.stderr)
    if json:
        from json import dumps

        sys.stdout.write(dumps(devices_object(machine), indent=2) + "\n")
    else:
        sys.stdout.write("\n".join(_lines(machine)) + "\n")
    return 0


def _from_vulkaninfo(path: str) -> Detected:
    """A machine of which vulkaninfo alone is known. Raises RigError."""
    from memplan.backends.devices import Rig
    from memplan.machine.detected import Detected
    from memplan.machine.vulkaninfo import load_vulkaninfo
    from memplan.rig import check_gpus, share_host

    gpus = check_gpus([device.gpu() for device in load_vulkaninfo(path)])
    return Detected(Rig(gpus, unified=share_host(gpus)), path, tuple(gpu.backend for gpu in gpus))


def _list_known(json: bool) -> int:
    """Print every card that ``--gpu`` knows."""
    from memplan.output.cards import known_object, render_known

    sys.stdout.write(f"{known_object()}\n" if json else terminal.fitted(render_known(), indent=""))
    return 0


def devices_object(machine: Detected) -> dict[str, Any]:
    """What was found as plain dictionaries and lists; sizes in bytes."""
    rig = machine.rig
    return {
        "source": machine.source if rig.gpus else None,
        "gpus": [
            {
                "name": f"{backend}{machine.backends[:i].count(backend)}",
                "description": gpu.description,
                "total": gpu.total,
                "free": gpu.free,
                "compute_capability": _capability(gpu) if backend == "CUDA" else None,
            }
            for i, (gpu, backend) in enumerate(zip(rig.gpus, machine.backends, strict=True))
        ],
        "host": {"total": rig.host_total, "free": machine.host_free},
        "unified": rig.unified,
        "notes": _notes(machine),
    }


def _notes(machine: Detected) -> list[str]:
    """What to know, with why an estimate would not be exact."""
    return [*machine.notes, *([machine.inexact] if machine.guessed and machine.inexact else [])]


def _lines(machine: Detected) -> list[str]:
    from memplan.output.words import mib

    found = devices_object(machine)
    rows = [
        (gpu["name"], mib(gpu["total"]), mib(gpu["free"]), printable(gpu["description"]), gpu["compute_capability"])
        for gpu in found["gpus"]
    ]
    host = found["host"]
    if host["total"] is not None:
        rows.append(("host", mib(host["total"]), mib(host["free"]), "", None))
    lines = [f"{'MiB':8}{'total':>10}{'free':>10}"] if rows else []
    for name, total, free, description, capability in rows:
        about = f"  {description}" + (f", compute capability {capability}" if capability else "")
        lines.append(f"{name:8}{total:>10}{free:>10}{about}".rstrip())
    lines.append(f"from {machine.source}" if found["gpus"] else f"no GPU found: {machine.source}")
    lines += [f"- {note}" for note in _notes(machine)]
    return terminal.fitted("\n".join(lines)).splitlines()


def _capability(gpu: Gpu) -> str | None:
    return None if gpu.compute_capability is None else "{}.{}".format(*gpu.compute_capability)
