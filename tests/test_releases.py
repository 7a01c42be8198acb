from __future__ import annotations

import re
from dataclasses import fields
from itertools import pairwise

import pytest

from memplan.errors import UnknownRelease
from memplan.models.deepseek4.switches import switches
from memplan.releases import BUILDS, FORKS, LATEST, RELEASES, Release, changed_between, find_release
from memplan.releases.concerns import concerning
from memplan.releases.known import OF_ONE_ARCHITECTURE
from memplan.releases.other_backends import SINCE


def test_their_own_names() -> None:
    for r in RELEASES:
        assert r.asked
        names = {r.name, r.name.upper(), f"b{r.build}", str(r.build), f" {r.name} "}
        if r.name.startswith("v"):
            names.add(r.name[1:])
        assert all(find_release(n) == (r, None) for n in names)


def test_latest_is_the_newest_tag() -> None:
    assert find_release("latest") == (LATEST, None)
    assert LATEST is max((r for r in RELEASES if r.name.startswith("v")), key=lambda r: r.build)


def test_builds_are_in_order_and_each_has_changed_since_one_before() -> None:
    assert list(BUILDS) == sorted(BUILDS, key=lambda r: r.build)
    assert len({r.build for r in BUILDS}) == len(BUILDS)
    for before, r in pairwise(BUILDS):
        assert before.build <= r.after < r.build
        assert r.changed


def test_every_switch_is_turned_by_some_build() -> None:
    names = [f.name for f in fields(Release)][6:]
    assert not [name for name in names if len({getattr(r, name) for r in (*BUILDS, *FORKS)}) == 1]


def test_builds_that_turned_a_switch_of_deepseek_v4_s_own() -> None:
    turned = {r.build for before, r in pairwise(BUILDS) if switches(r) != switches(before)}
    assert turned == OF_ONE_ARCHITECTURE
    assert [r.name for r in changed_between(find_release("b10216")[0], find_release("b10289")[0], ())] == [
        "b10235", "b10240", "b10248", "b10289",
    ]  # fmt: skip


def test_builds_with_switches_of_other_backends_are_listed() -> None:
    assert {build for build, _ in SINCE} <= {r.build for r in BUILDS}


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        (
            "9865",
            "b9842",
            "build 9865 is not modelled: taken as b9842, the newest modelled before it; it may have",
        ),
        ("10103", "b10103", "build 10103 was not asked: its rules were read in its source"),
        ("10131", "b10103", "build 10131 is not modelled: taken as b10103, the newest modelled before it, whose rules"),
        ("10150", "b10103", "whose rules were read in its source; it may have what b10159 changed"),
        ("10236", "b10235", "taken as b10235, the newest modelled before it, whose rules were read"),
        ("10243", "b10240", "taken as b10240"),
        ("10250", "b10248", "taken as b10248"),
        ("10340", "b10289", "taken as b10289"),
        ("10355", "b10355", "build 10355 was not asked"),
        ("10066", "b9988", "taken as b9988"),
        ("v0.3.0", "b10605", "v0.3.0 (build 10621) is not modelled: taken as b10605"),
        ("v0.3.2", "b10605", "v0.3.2 is not modelled: taken as b10605"),
        ("b11000", "b10985", "build 11000 is not modelled: taken as b10985"),
        ("0.4.7", "v0.4.0", "v0.4.7 is not modelled: taken as v0.4.0"),
        ("11300", "b11258", "build 11300 is not modelled: taken as b11258"),
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
    with pytest.raises(UnknownRelease, match=rf"older than any .*{len(BUILDS)} builds, b9842 to .*memplan releases"):
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


def test_a_build_in_no_gap_is_known_whole() -> None:
    note = find_release("10131")[1]
    assert note is not None and "it may have" not in note


@pytest.mark.parametrize(
    ("build", "arch", "device", "weight", "says", "not_said"),
    [
        ("b11434", "gpt-oss", "CUDA0", "ffn_up_exps", "With other models than", "shared expert|Metal|Recurrent"),
        ("b11434", "llama", "CUDA0", "ffn_up", "a batch may hold", "shared expert|Metal|Recurrent"),
        ("b11434", "deepseek4", "CUDA0", "ffn_up_shexp", "CUDA computes a shared expert", "With other|Metal"),
        ("b10909", "llama", "Vulkan0", "ffn_up", "A split has as many inputs", "CUDA|hyper-connections|GLM"),
        ("b10216", "deepseek4", "CUDA0", "ffn_up_exps", "K and V caches of DeepSeek-V4", "Qwen"),
        ("b10216", "qwen35", "CUDA0", "ffn_up", "Qwen3.5's MTP blocks", "K and V"),
        ("b10103", "llama", "CUDA0", "ffn_up", "Before, they lay in plain memory", "Vulkan"),
    ],
)
def test_what_concerns_a_model_and_its_devices(
    build: str, arch: str, device: str, weight: str, says: str, not_said: str
) -> None:
    changed = find_release(build)[0].changed
    said = concerning(changed, arch, {device}, {f"blk.0.{weight}.weight"})
    assert says in said and not re.search(not_said, said)
    assert all(sentence in changed for sentence in said.split(". "))
