"""Weights in the host's memory: pages of the file, or read; pinned or not; and what copies of them to GPUs hold."""

from __future__ import annotations

import pytest

from memplan.estimator import estimate
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.result import Estimate
from memplan.rig import parse_gpus

MIB = 1 << 20
MODEL = builtin_header("qwen3-30b-a3b")


def found(line: str, gpu: str = "RTX 3090", release: str = "v0.5.0") -> Estimate:
    return estimate(MODEL, parse_flags(["-c", "4096", "-np", "1", *line.split()]), parse_gpus([gpu]), release)


@pytest.mark.parametrize(
    ("line", "mapped", "loading"),
    [
        ("-ncmoe 20", True, 0),
        ("-ncmoe 20 --mmap", True, 0),
        ("-ncmoe 20 --mlock", False, 4 * MIB),
        ("-ncmoe 20 --no-mmap", False, 4 * MIB),
        ("-ncmoe 20 -lm dio", False, 4 * (64 * MIB + 8192)),
        ("-ngl 0 --no-mmap", False, 0),
    ],
)
def test_pages_of_the_file_or_not(line: str, mapped: bool, loading: int) -> None:
    host, all_of_it = found(line).host, found(line)
    repacked = all_of_it.buffers["CPU_REPACK"].model if "CPU_REPACK" in all_of_it.buffers else 0
    assert host.mapped == (host.model - repacked if mapped else 0)
    assert host.loading == loading
    assert host.pinned == host.compute + (0 if mapped else host.model - repacked)
    rest = host.used - host.mapped + all_of_it.server.outputs
    assert all_of_it.host_least == max(rest, host.model - host.mapped + loading)
    assert all_of_it.host_most == all_of_it.host_least + host.mapped + 8192 * MIB + all_of_it.server.checkpoints


def test_a_gpu_without_memory_of_its_own_has_the_file_read() -> None:
    one = found("", "GB10")
    assert one.host.mapped == 0 < one.host.model
    assert one.host_least > one.model.bytes  # what lies on the GPU is in the same memory
    assert found("--mmap", "GB10").host.mapped > 0
    assert found("", "GB10", "b10361").host.mapped > 0  # before builds asked the devices


@pytest.mark.parametrize(("line", "mapped"), [("", False), ("--mmap", True)])
def test_a_server_that_holds_tokens_maps_its_file_by_the_same_rule(line: str, mapped: bool) -> None:
    flags = parse_flags(["-c", "4096", "-np", "1", *line.split()])
    running = estimate(MODEL, flags, parse_gpus(["GB10"]), filled=4096)
    assert ("CPU_Mapped" in running.buffers) is mapped is (running.host.mapped > 0)


def test_vulkan_copies_through_a_buffer_as_large_as_the_tensor() -> None:
    largest = max(t.nbytes for t in MODEL.tensors.values())
    card = "AMD Radeon RX 7900 XTX (RADV NAVI31):24560:24100"
    assert 0 < found("", card).host.loading <= largest
    assert found("--no-mmap", card).host.loading == 4 * MIB


@pytest.mark.slow
@pytest.mark.parametrize(("ubatch", "refused"), [(512, False), (1024, True), (2048, True)])
def test_memory_that_the_driver_does_not_pin(ubatch: int, refused: bool) -> None:
    """A public report of build 10603 on a Strix Halo has the warning at 1024 and 2048, and not at 512."""
    rig = parse_gpus(["AMD Radeon 8060S (RADV GFX1151):126976:120000"])
    flags = parse_flags(f"-c 100000 -ub {ubatch} -ctk q8_0 -ctv q8_0 -np 1".split())
    notes = estimate(builtin_header("deepseek-v4-flash"), flags, rig, "b10568").notes
    assert any("failed to allocate pinned memory" in note for note in notes) == refused
