from __future__ import annotations

from dataclasses import replace

import pytest

from memplan.comparing.result import Comparison, PartChange
from memplan.explaining.result import Explanation
from memplan.llama.refusals import REFUSED, Refusal
from memplan.output.compare_verdict import changed, releases_heading, undone, verdict
from memplan.result import DeviceUse, Estimate, HostUse
from tests.estimates import MIB, made_up


def side(computes: tuple[int, ...], host: HostUse | None = None) -> Estimate:
    """GPUs with 1000 MiB free each, of which so many MiB are taken."""
    devices = tuple(
        DeviceUse(f"CUDA{i}", "RTX 3090", 1000 * MIB, 1000 * MIB, compute=size * MIB) for i, size in enumerate(computes)
    )
    return replace(made_up(), devices=devices, host=host or HostUse())


def between(before: Estimate, after: Estimate) -> Comparison:
    parts = [
        PartChange(a.name, "compute", a.compute, b.compute) for a, b in zip(before.devices, after.devices, strict=True)
    ]
    parts.append(PartChange("host", "compute", before.host.compute, after.host.compute))
    return Comparison(Explanation(before), Explanation(after), tuple(parts))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            (100, 50),
            (90, 1284),
            "1,234 MiB more on CUDA1, 10 MiB less on CUDA0; no longer fits on CUDA1 (284 MiB short)",
        ),
        ((100, 50), (80, 450), "400 MiB more on CUDA1, 20 MiB less on CUDA0; still fits"),
        ((1100, 50), (80, 50), "1,020 MiB less on CUDA0; fits now"),
        ((1100, 50), (1200, 50), "100 MiB more on CUDA0; still does not fit on CUDA0 (200 MiB short)"),
        ((10, 10), (1001, 1002), "no longer fits on CUDA0 (1 MiB short) and CUDA1 (2 MiB short)"),
        ((10, 10), (10, 10), "the same on every device; still fits"),
        ((1,) * 6, (101,) * 6, "100 MiB more on CUDA3, and changes on 2 more; still fits"),
    ],
)
def test_what_is_more_or_less_and_whether_it_fits(before: tuple[int, ...], after: tuple[int, ...], said: str) -> None:
    found = verdict(between(side(before), side(after)), "b")
    assert found.startswith("b: ") and said in found


def test_the_host_is_a_device_too() -> None:
    host = HostUse(compute=10 * MIB, total=100 * MIB)
    after = side((1,), replace(host, compute=300 * MIB))
    said = verdict(between(side((1,), host), after), "b")
    assert said == "b: 290 MiB more on the host; no longer fits on the host (200 MiB short)"


def test_refusals_are_told_in_place_of_sizes() -> None:
    fine = side((1,))
    refused = replace(fine, refused=Refusal("k-v-types-differ", REFUSED, "said"))
    assert verdict(between(fine, refused), "b") == "b: llama.cpp no longer starts: k v types differ"
    assert verdict(between(refused, fine), "b") == "b: llama.cpp starts now; it fits"
    assert verdict(between(refused, side((1001,))), "b").endswith("it does not fit on CUDA0 (1 MiB short)")
    assert verdict(between(refused, refused), "b") == "b: llama.cpp starts with neither"


def test_releases_between_the_sides_are_those_that_turned_something_for_these_devices() -> None:
    def names(before: str, after: str, device: str = "CUDA0") -> list[str]:
        a, b = (replace(side((1,)), llama=name) for name in (before, after))
        sides = [replace(e, devices=(replace(e.devices[0], name=device),)) for e in (a, b)]
        return [r.name for r in changed(between(*sides))]

    assert names("b10361", "b10568") == ["b10568"] == names("b10568", "b10361")
    assert names("b10361", "b10568", "MTL0") == ["b10549", "b10568"]
    assert names("b10361", "b10568", "RPC0") == ["b10568"] == names("b10361", "b10568", "Vulkan0")
    before_tag = ["b10605", "b10662", "b10705", "b10760", "b10798"]
    after_tag = ["b10909", "b10985", "b11063", "b11149"]
    assert names("b10568", "v0.5.0") == [*before_tag, "v0.4.0", *after_tag, "v0.5.0"]  # which turned CUDA's pools
    assert names("b10568", "v0.5.0", "RPC0") == [*before_tag, *after_tag]
    assert names("lid-cuda", "b9924") == ["lid-cuda", "b9924"]
    assert names("v0.5.0", "v0.5.0") == []
    # backwards, the newest comes first
    assert names("v0.5.0", "b10361") == ["v0.5.0", *after_tag[::-1], "v0.4.0", *before_tag[::-1], "b10568"]


@pytest.mark.parametrize(
    ("before", "after", "back"), [("b10361", "v0.5.0", False), ("v0.5.0", "b9924", True), ("lid-cuda", "b9842", True)]
)
def test_what_an_older_release_undoes_is_said_to_be_undone(before: str, after: str, back: bool) -> None:
    c = between(*(replace(side((1,)), llama=name) for name in (before, after)))
    assert undone(c) is back
    assert (f"{after} is older than {before}, so this is undone" in releases_heading(c)) is back
