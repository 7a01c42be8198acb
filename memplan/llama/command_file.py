"""Files in which a command line stands: shell scripts, systemd units, compose files and presets.

A word that names one is read in its place; ``FILE#NAME`` says which service, or section, is meant.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from memplan.errors import FlagError, shown
from memplan.infile import read_input
from memplan.llama.command_line import CommandLine, container_line, read_script
from memplan.llama.preset_file import OPTION, split_name
from memplan.llama.shells import CMD, POWERSHELL, SH, SYSTEMD, commands, filled_in

_SHELLS: Final = {
    ".sh": SH, ".bash": SH, ".zsh": SH, ".command": SH, ".bat": CMD, ".cmd": CMD, ".ps1": POWERSHELL,
}  # fmt: skip
_LARGEST: Final = 1 << 16


def open_line(word: str) -> CommandLine | None:
    """The line in the file that ``word`` names, by its ending; None where it names none.

    Raises FlagError for a file that starts no llama-server, or several.
    """
    path, part = split_name(word)
    ending = os.path.splitext(path)[1].lower()
    if ending not in (".ini", ".service", ".yml", ".yaml", *_SHELLS) or not os.path.isfile(path):
        return None
    if ending == ".ini":
        return CommandLine((OPTION, word))
    text, name = _text(path), shown(path)
    if ending in _SHELLS:
        line = read_script(text, _SHELLS[ending], name, os.environ)
    else:
        line = _unit(text, path) if ending == ".service" else _compose(text, path, part)
    if line is None:
        raise FlagError(f"{name}: nothing in it starts llama-server or llama-cli")
    return line


def _text(path: str) -> str:
    try:
        data = read_input(path, _LARGEST)
        if len(data) > _LARGEST:
            raise FlagError(f"{shown(path)}: larger than any file with a command line")
        return data.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise FlagError(f"{shown(path)}: {getattr(error, 'strerror', None) or 'not text'}") from None


def _variables(text: str) -> Iterator[tuple[str, str]]:
    """The variables that a file of them sets, as ``--env-file`` and ``EnvironmentFile`` read it."""
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith("#"):
            yield name.removeprefix("export ").strip(), value.strip().strip("\"'")


def _unit(text: str, path: str) -> CommandLine | None:
    """The line of a systemd unit's ``ExecStart``, with what ``Environment`` sets (systemd.service(5))."""
    environment: dict[str, str] = {}
    started = ""
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        key, _, value = (side.strip() for side in line.partition("="))
        if key == "Environment":
            for command in commands(value, SYSTEMD):
                environment |= {name: text for name, _, text in (word.partition("=") for word in command.words)}
        elif key == "EnvironmentFile" and os.path.isfile(file := value.lstrip("-")):
            environment |= _variables(_text(file))
        elif key == "ExecStart":
            started = value.lstrip("@-:+!|")
    found = read_script(started, SYSTEMD, shown(path), environment)
    return found and found.within(environment)


def _compose(text: str, path: str, part: str) -> CommandLine | None:
    """The line of a service of a compose file, the only one that runs llama.cpp or the one called ``part``."""
    file = _yaml(text, path)
    services = file.get("services") if isinstance(file, dict) else None
    if not isinstance(services, dict):
        raise FlagError(f"{shown(path)}: no services in it; give a compose file")
    beside = os.path.join(os.path.dirname(path), ".env")
    variables = {**(dict(_variables(_text(beside))) if os.path.isfile(beside) else {}), **os.environ}
    found = {
        str(name): line
        for name, service in services.items()
        if isinstance(service, dict) and (line := _service(service, os.path.dirname(path), variables)) is not None
    }
    if part:
        if part not in found:
            raise FlagError(f"{shown(path)}: {shown(part)} is no service of it that runs llama.cpp: {', '.join(found)}")
        return found[part]
    if len(found) > 1:
        raise FlagError(f"{shown(path)}: which service? write FILE#SERVICE; it has {', '.join(list(found)[:6])}")
    return next(iter(found.values()), None)


def _yaml(text: str, path: str) -> Any:
    """A file as YAML, of which JSON is a part."""
    import yaml  # type: ignore[import-untyped, unused-ignore]

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise FlagError(f"{shown(path)}{where}: {getattr(error, 'problem', None) or 'not YAML'}") from None


def _service(service: dict[Any, Any], folder: str, variables: Mapping[str, str]) -> CommandLine | None:
    """The line that a service runs; None for one that is not llama.cpp's."""

    def filled(text: object) -> str:
        kept = str(text).replace("$$", "\0")
        return filled_in(kept, SH, variables).replace("\0", "$")

    def words(value: object) -> list[str]:
        if isinstance(value, list):
            return [filled(word) for word in value]
        return [word for command in commands(filled(value or ""), SYSTEMD) for word in command.words]

    environment: dict[str, str] = {}
    for file in _listed(service.get("env_file")):
        name = os.path.join(folder, filled(file.get("path", "") if isinstance(file, dict) else file))
        if os.path.isfile(name):
            environment |= _variables(_text(name))
    given = service.get("environment")
    pairs = given.items() if isinstance(given, dict) else [str(pair).split("=", 1) for pair in _listed(given)]
    for variable, *value in pairs:
        passed_on = not value or value[0] is None
        environment[str(variable)] = variables.get(str(variable), "") if passed_on else filled(value[0])
    entrypoint, *first = words(service.get("entrypoint")) or [""]
    mounts = (filled(volume).split(":") for volume in _listed(service.get("volumes")))
    volumes = {mount[1]: os.path.join(folder, mount[0]) for mount in mounts if len(mount) > 1}
    command = [*first, *words(service.get("command"))]
    return container_line(filled(service.get("image", "")), entrypoint, command, environment, _gpus(service), volumes)


def _listed(value: Any) -> list[Any]:
    """What may be given as one or as a list."""
    return value if isinstance(value, list) else [] if value is None else [value]


def _gpus(service: dict[Any, Any]) -> str:
    """The GPUs that a service reserves, as ``docker run --gpus`` has them; empty for all."""
    value: Any = service
    for key in ("deploy", "resources", "reservations", "devices"):
        value = value.get(key) if isinstance(value, dict) else None
    for device in _listed(value):
        if isinstance(device, dict) and isinstance(ids := device.get("device_ids"), list):
            return f"device={','.join(map(str, ids))}"
        if isinstance(device, dict) and isinstance(device.get("count"), int):
            return str(device["count"])
    return ""
