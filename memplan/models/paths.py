"""Paths by name: what of an architecture is computed in ops of its own (fused) or from small ones, and which it is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from memplan.errors import FlagError, shown
from memplan.llama.context import AS_RELEASED, Fused, Path, Paths, Probe
from memplan.models.base import Architecture
from memplan.models.registry import ARCHITECTURES, find_architecture
from memplan.releases import Release


def path_names() -> tuple[str, ...]:
    """The names of all architectures' paths."""
    return tuple(dict.fromkeys(name for known in ARCHITECTURES for name in find_architecture(known).paths))


def path_ways(arch: Architecture[Any], name: str, release: Release) -> tuple[Path, ...]:
    """The ways in which a release can compute what a path is of."""
    return ("fused", "unfused") if _ops(arch, name, release) else ("unfused",)


def path_taken(
    arch: Architecture[Any], name: str, release: Release, paths: Paths, disabled: Collection[str] = ()
) -> Path:
    """The way that was taken; ``disabled``: what probes turned off, in llama.cpp's words."""
    turned_off = any(probe.said in disabled for probe in _probes(arch, name, release))
    fused = _ops(arch, name, release) and paths[name] != "unfused" and not turned_off
    return "fused" if fused else "unfused"


def parse_paths(named: Iterable[str], ways: Mapping[str, str]) -> Paths:
    """What is asked of paths: texts of ``NAME=WAY,...``, and ways by names with an option of their own.

    Raises FlagError for what is no way, and for two of one path.
    """
    given = [("--path", part, *part.partition("=")[::2]) for text in named for part in text.split(",")]
    given += [(f"--{name}", way, name, way) for name, way in ways.items()]
    asked: dict[str, Path] = {"auto": "auto", "fused": "fused", "unfused": "unfused"}
    paths = Paths()
    for option, text, name, way in given:
        if way not in asked:
            wanted = "NAME=WAY, and WAY auto, fused or unfused" if option == "--path" else "auto, fused or unfused"
            raise FlagError(f"{option} {shown(text)}: must be {wanted}")
        if paths[name] not in ("auto", way):
            raise FlagError(f"{option} {shown(text)}: {name} is given as {paths[name]} too; give only one")
        paths = paths.with_(name, asked[way])
    return paths


def check_paths(arch: Architecture[Any], release: Release, paths: Paths) -> None:
    """Raises FlagError for a name that the architecture has not got, and for ops that the release has not got."""
    for name, way in paths.forced:
        if name not in arch.paths:
            there = f"it has {', '.join(arch.paths)}" if arch.paths else "it has none"
            raise FlagError(f"--path {shown(name)}: no such path of {arch.name}; {there}")
        if way == "fused" and not _ops(arch, name, release):
            raise FlagError(f"--path {name}=fused: {release.name} has no fused {name}; give auto, or a newer --llama")


def path_notes(arch: Architecture[Any], release: Release, paths: Paths) -> tuple[str, ...]:
    """What was forced, and what llama.cpp itself would do."""
    notes = []
    for name, way in paths.forced:
        probed = bool(_probes(arch, name, release))
        if way == "fused":
            itself = " where its probe would turn it off" if probed else ""
            said = f"kept as asked{itself}; a device that lacks the op leaves it to the host"
        elif not _ops(arch, name, release):
            continue
        else:
            itself = "does so only where a device lacks the fused op" if probed else "never does so"
            said = f"built from small ops, as asked; {release.name} itself {itself}"
        notes.append(f"--path {name}={way}: {said}")
    return tuple(notes)


def _ops(arch: Architecture[Any], name: str, release: Release) -> Fused:
    """The ops of a path that is fused; none where the release has not got them."""
    return arch.fused(release, AS_RELEASED) - arch.fused(release, AS_RELEASED.with_(name, "unfused"))


def _probes(arch: Architecture[Any], name: str, release: Release) -> list[Probe]:
    ops = _ops(arch, name, release)
    return [probe for probe in arch.probes(release, AS_RELEASED) if probe.op in ops]
