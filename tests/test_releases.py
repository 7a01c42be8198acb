from __future__ import annotations

import pytest

from memplan.errors import UnknownRelease
from memplan.releases import LATEST, RELEASES, find_release


def test_their_own_names() -> None:
    for r in RELEASES:
        names = {r.name, r.name.upper(), f"b{r.build}", str(r.build), f" {r.name} "}
        if r.name.startswith("v"):
            names.add(r.name[1:])
        assert all(find_release(n) == (r, None) for n in names)


def test_latest_is_the_newest_tag() -> None:
    assert find_release("latest") == (LATEST, None)
    assert LATEST is max((r for r in RELEASES if r.name.startswith("v")), key=lambda r: r.build)
    assert list(RELEASES) == sorted(RELEASES, key=lambda r: r.build)


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("9865", "b9842", "build 9865 is not modelled: taken as b9842, the newest"),
        ("10066", "b9988", "taken as b9988"),
        ("v0.3.0", "b10568", "v0.3.0 (build 10621) is not modelled: taken as b10568"),
        ("v0.3.2", "b10568", "v0.3.2 is not modelled: taken as b10568"),
        ("b11000", "v0.4.0", "build 11000 is not modelled: taken as v0.4.0"),
        ("0.4.7", "v0.4.0", "v0.4.7 is not modelled: taken as v0.4.0"),
        ("11300", "v0.5.0", "build 11300 is not modelled: taken as v0.5.0"),
        ("11500", "b11434", "newer than any modelled release: assumed to do as b11434"),
        ("v0.6", "b11434", "v0.6.0 is newer than any"),
    ],
)
def test_releases_between_and_after(text: str, name: str, says: str) -> None:
    release, note = find_release(text)
    assert release.name == name
    assert note is not None and says in note


@pytest.mark.parametrize("text", ["b1", "9841"])
def test_too_old(text: str) -> None:
    with pytest.raises(UnknownRelease, match=r"older than any .* modelled: .*v0\.5\.0 \(b11200\)"):
        find_release(text)


@pytest.mark.parametrize("text", ["0.1.0", "v0.2.9"])
def test_tags_of_builds_unknown(text: str) -> None:
    with pytest.raises(UnknownRelease, match="which build that is"):
        find_release(text)


@pytest.mark.parametrize(
    "text", ["", "newest", "v", "b", "0.5.0-rc1", "b11200x", "1.2.3.4", "-1", "٣", "10068.5", "v100.0"]
)
def test_not_a_release(text: str) -> None:
    with pytest.raises(UnknownRelease, match="write a tag"):
        find_release(text)
