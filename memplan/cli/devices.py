"""``memplan devices``: this machine's GPUs and memory, and a rig file of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from memplan.cli import terminal
from memplan.cli.options import read_options
from memplan.cli.waiting import waiting
from memplan.errors import FlagError, RigError, printable

if TYPE_CHECKING:
    from memplan.backends.devices import Gpu
    from memplan.machine.detected import Detected

HELP: Final = """\
Usage: memplan devices [options]

  Which GPUs this machine has, in llama.cpp's order, and how much memory is
  free. memplan estimate and memplan plan take them when no --gpu is given.

  Asked are llama-server --list-devices, if one is on PATH; else NVIDIA's driver
  (with the nvml extra: pip install 'memplan[nvml]'); else AMD's, in sysfs. What
  Vulkan's drivers allow is asked of vulkaninfo, where that is installed.

Options:
  --server FILE      the llama-server to ask
  --vulkaninfo FILE  the devices in what vulkaninfo said, on any machine: its
                     text, or its JSON (vulkaninfo --json) for limits alone
  --known            list every card that --gpu knows by name
  -o, --output FILE  write a rig file for --rig: JSON if its name ends in .json,
                     TOML otherwise. In place of one that memplan wrote, too
  --force            write it in place of any other file but a model
  --json             print one JSON object, sizes in bytes
  -h, --help         print this

Examples:
  memplan devices
  memplan devices --json
  memplan devices -o this-machine.toml
  memplan devices --known

Exit status: 0 answered, 2 bad input (one line says what).
"""


def run(argv: Sequence[str]) -> int:
    """Print what was found; the exit status. Raises MemplanError."""
    options = read_options(
        argv,
        "devices",
        values=("--server", "--vulkaninfo", "-o --output"),
        switches=("--known", "--json", "--force"),
    )
    if options.help:
        sys.stdout.write(HELP)
        return 0
    if "--known" in options:
        alone = [word for word in options.values if word not in ("--known", "--json")]
        if alone:
            raise FlagError(f"--known lists cards and looks at no machine: leave {alone[0]} out")
        return _list_known("--json" in options)

    from memplan.machine.detect import detect

    server, said = options.get("--server"), options.get("--vulkaninfo")
    if said is not None and server is not None:
        raise FlagError("--server and --vulkaninfo: give one of them")
    if server == "":
        raise FlagError("--server: an empty name; is a variable of the shell not set?")
    server = server or ""
    path, force = options.get("--output"), "--force" in options
    if path is not None:
        from memplan.outfile import check_output
        from memplan.rig_file import RIG

        check_output(path, RIG, [server, said or ""], force=force)
    elif force:
        raise FlagError("--force is for the file of -o FILE")
    if said is not None:
        machine = _from_vulkaninfo(said)
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
        write_output(path, text.encode(), RIG, inputs=[server, said or ""], force=force)
        count = len(machine.rig.gpus)
        gpus = f"{count} GPU{'s' * (count > 1)}" if count else "no GPU"
        print(f"{path}: a rig file of {gpus}; memplan estimate takes it with --rig", file=sys.stderr)
    if "--json" in options:
        import json

        sys.stdout.write(json.dumps(devices_object(machine), indent=2) + "\n")
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
