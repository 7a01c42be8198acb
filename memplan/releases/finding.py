"""The release that a tag, a build or a fork's name means."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise

from memplan.errors import UnknownRelease, shown
from memplan.releases.cuda_pools import pool_rules
from memplan.releases.known import BUILDS, FORKS, LATEST, OF_ONE_ARCHITECTURE, RELEASES, TAGGED
from memplan.releases.other_backends import BACKENDS, switches_of
from memplan.releases.switches import Release


def find_release(text: str) -> tuple[Release, str | None]:
    """The modelled release for ``v0.5.0``, ``0.5.0``, ``b11200``, ``11200``, ``lid-cuda`` or ``latest``, and a note.

    ``latest`` is the newest tag. A release between two modelled ones takes the newest not after it; one newer than all
    takes the newest. The note says so; it is None for a release that is modelled itself.

    Raises:
        UnknownRelease: not a release at all, or one older than all that are modelled.
    """
    if not isinstance(text, str):
        raise TypeError(f"a release is named by a text such as 'v0.5.0'; this is of type {type(text).__name__}")
    wanted = text.strip().lower()
    if wanted == "latest":
        return LATEST, None
    for fork in FORKS:
        if wanted == fork.name:
            return fork, None
    if m := re.fullmatch(r"b?([0-9]{1,9})", wanted):
        return _by_build(int(m[1]), f"build {int(m[1])}")
    if m := re.fullmatch(r"v?([0-9]{1,2})\.([0-9]{1,6})(?:\.([0-9]{1,6}))?", wanted):
        version = (int(m[1]), int(m[2]), int(m[3] or 0))
        return _by_version(version, "v{}.{}.{}".format(*version))
    hint = f"write a tag (v0.5.0), a build (b11200) or latest; {_known()}"
    raise UnknownRelease(f"llama.cpp release {shown(text)}: {hint}")


def changed_between(a: Release, b: Release, others: Collection[str] = (*BACKENDS, "cuda")) -> tuple[Release, ...]:
    """The modelled builds that turn a switch, after the older of the two up to the newer, oldest first.

    ``others``: the backends whose own switches count, ``metal``, ``vulkan`` or ``rpc``, and ``cuda`` for its pools. A
    fork among the two comes first. Empty for one and the same release.
    """
    if a.name == b.name:
        return ()
    low, high = sorted((a.build, b.build))
    forks = [r for r in (a, b) if r in FORKS]
    turned = [
        r
        for before, r in pairwise(BUILDS)
        if r.build in OF_ONE_ARCHITECTURE
        or _switches(r) != _switches(before)
        or ("cuda" in others and pool_rules(r) != pool_rules(before))
        or any(switches_of(r, name) != switches_of(before, name) for name in others)
    ]
    return (*forks, *(r for r in turned if low < r.build <= high))


def _switches(r: Release) -> Release:
    return replace(r, name="", build=0, after=0, asked=True, others_asked=True, changed="")


def _by_build(build: int, label: str) -> tuple[Release, str | None]:
    return _newest([r for r in BUILDS if r.build <= build], label, build)


def _by_version(version: tuple[int, int, int], label: str) -> tuple[Release, str | None]:
    for r in RELEASES:
        if r.name == label:
            return r, None
    if label in TAGGED:
        return _by_build(TAGGED[label], f"{label} (build {TAGGED[label]})")
    tagged = [(r, _version(r.name)) for r in RELEASES if r.name.startswith("v")]
    if version < min(_version(tag) for tag in (*TAGGED, tagged[0][0].name)):
        raise UnknownRelease(f"llama.cpp {label}: which build that is is not known here; write the build; {_known()}")
    if version > tagged[-1][1]:
        return _newest(list(BUILDS), label, None)
    not_after = [r for r, v in tagged if v <= version]
    if not not_after:  # between a tag whose build is known and the first that is modelled
        build = max(build for tag, build in TAGGED.items() if _version(tag) <= version)
        not_after = [r for r in BUILDS if r.build <= build]
    return _newest(not_after, label, None)


def _newest(not_after: list[Release], label: str, build: int | None) -> tuple[Release, str | None]:
    if not not_after:
        raise UnknownRelease(f"llama.cpp {label} is older than any release that is modelled; {_known()}")
    r = not_after[-1]
    if r.build == build:
        read = f"llama.cpp {label} was not asked: its rules were read in its source"
        return r, None if r.asked else read
    if r is BUILDS[-1]:
        return r, f"llama.cpp {label} is newer than any modelled release: assumed to do as {_label(r)}"
    note = f"llama.cpp {label} is not modelled: taken as {_label(r)}, the newest modelled before it"
    if not r.asked:
        note += ", whose rules were read in its source"
    after = BUILDS[BUILDS.index(r) + 1]
    if build is None or build > after.after:
        note += f"; it may have what {_label(after)} changed"
    return r, note


def _label(r: Release) -> str:
    return r.name if r.name.startswith("b") else f"{r.name} (build {r.build})"


def _version(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in name[1:].split("."))


def _known() -> str:
    forks = " and ".join(fork.name for fork in FORKS)
    return f"modelled: {len(BUILDS)} builds, {BUILDS[0].name} to {BUILDS[-1].name}, and {forks} (memplan releases)"
