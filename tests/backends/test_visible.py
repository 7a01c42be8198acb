from __future__ import annotations

import pytest

from memplan.backends.visible import rig_seen, visible, with_unified_memory
from memplan.errors import RigError
from memplan.rig import parse_gpus

MIXED = parse_gpus(["RTX 3090", "RTX 3060", "RX 7900 XTX"])


def descriptions(**variables: str) -> list[str]:
    short = {"NVIDIA GeForce RTX 3090": "3090", "NVIDIA GeForce RTX 3060": "3060"}
    return [short.get(gpu.description, "7900") for gpu in rig_seen(MIXED, variables)[0].gpus]


@pytest.mark.parametrize(
    ("wanted", "seen"),
    [("0,1", [0, 1]), ("1, 0", [1, 0]), ("1", [1]), ("", []), ("-1", []), ("1,7,0", [1]), ("0,0,1", [0]), ("x", [])],
)
def test_what_follows_a_wrong_entry_is_not_seen(wanted: str, seen: list[int]) -> None:
    assert visible(wanted, ["", ""]) == seen


def test_cards_may_be_named_by_the_beginning_of_their_uuid() -> None:
    uuids = ["GPU-ab12", "GPU-ac34"]
    assert visible("GPU-ac,GPU-ab12", uuids) == [1, 0]
    assert visible("GPU-a", uuids) == []


def test_each_backend_has_a_variable_of_its_own() -> None:
    assert descriptions(CUDA_VISIBLE_DEVICES="1,0") == ["3060", "3090", "7900"]
    assert descriptions(CUDA_VISIBLE_DEVICES="-1") == ["7900"]
    assert descriptions(GGML_VK_VISIBLE_DEVICES="", HIP_VISIBLE_DEVICES="5") == ["3090", "3060"]
    assert rig_seen(MIXED, {"CUDA_VISIBLE_DEVICES": "0,1"}) == (MIXED, [])
    assert rig_seen(MIXED, {"CUDA_VISIBLE_DEVICES": "1"})[1] == [
        "CUDA_VISIBLE_DEVICES=1 leaves 1 of 2 CUDA devices: CUDA0 is NVIDIA GeForce RTX 3060"
    ]
    with pytest.raises(RigError, match="knows no UUIDs"):
        rig_seen(MIXED, {"CUDA_VISIBLE_DEVICES": "GPU-ab12"})


def test_a_number_that_the_rig_has_not_is_not_meant() -> None:
    said = "the rig has 2 CUDA devices, numbered from 0, and no 2: name all of the machine's"
    with pytest.raises(RigError, match=said):
        rig_seen(MIXED, {"CUDA_VISIBLE_DEVICES": "2,3"})
    assert len(rig_seen(MIXED, {"CUDA_VISIBLE_DEVICES": "-1"})[0].gpus) == 1


def test_with_unified_memory_the_hosts_memory_is_what_is_free() -> None:
    gib = 1 << 30
    rig = parse_gpus(["2*RTX 3090:24000:20480"])
    with pytest.raises(RigError, match="give --host-mib"):
        with_unified_memory(rig, None)
    from dataclasses import replace

    seen, notes = with_unified_memory(replace(rig, host_total=64 * gib), 60 * gib)
    assert [(gpu.free, gpu.total) for gpu in seen.gpus] == [(60 * gib, 60 * gib)] * 2
    assert (seen.unified, seen.host_total) == (True, 104 * gib)
    assert "host and GPUs together hold 106,496 MiB" in notes[0]
    assert with_unified_memory(parse_gpus(["RX 7900 XTX"]), None) == (parse_gpus(["RX 7900 XTX"]), [])
