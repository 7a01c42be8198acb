from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from memplan.errors import ProgramError
from memplan.machine import detect as detect_module
from memplan.machine import llama_server
from memplan.machine.detect import detect
from memplan.machine.drivers import amd_gpus, nvidia_gpus
from memplan.machine.host import host_memory
from memplan.machine.llama_server import list_devices, parse_devices, run_program
from memplan.rig_file import load_rig, write_rig

MIB = 1 << 20
LISTED = """\
Available devices:
  CUDA0: NVIDIA GeForce RTX 5090 (32606 MiB, 30991 MiB free)
  CUDA1: NVIDIA GeForce RTX 3090 (24268 MiB, 23868 MiB free)
"""
INIT = """\
ggml_cuda_init: found 2 CUDA devices (Total VRAM: 56874 MiB):
  Device 0: NVIDIA GeForce RTX 5090, compute capability 12.0, VMM: yes, VRAM: 32606 MiB
  Device 1: NVIDIA GeForce RTX 3090, compute capability 8.6, VMM: yes, VRAM: 24268 MiB
"""
needs_sh = pytest.mark.skipif(sys.platform == "win32", reason="shell scripts stand in for llama-server")


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def machine_root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "proc").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal:  131923456 kB\nMemFree: 1 kB\nMemAvailable:  100000000 kB\n")
    return root


def card(root: Path, number: int, **files: str) -> None:
    device = root / f"sys/class/drm/card{number}/device"
    device.mkdir(parents=True)
    for name, text in files.items():
        (device / name).write_text(text + "\n")


class Nvml(ModuleType):
    """Stands in for nvidia-ml-py's module."""

    def __init__(self, *cards: tuple[str, int, int, tuple[int, int]], error: bool = False) -> None:
        super().__init__("pynvml")
        self.cards, self.error = cards, error

    def nvmlInit(self) -> None:
        if self.error:
            raise OSError("NVML Shared Library Not Found")

    def nvmlShutdown(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return self.cards[handle][0].encode()

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}abcdef"

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return self.cards[handle][3]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        if not self.cards[handle][1]:
            raise RuntimeError("Not Supported")
        return SimpleNamespace(total=self.cards[handle][1] * MIB, free=self.cards[handle][2] * MIB)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(*cards: tuple[str, int, int, tuple[int, int]], error: bool = False) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", Nvml(*cards, error=error))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)

    return install


def test_what_llama_server_lists() -> None:
    found = parse_devices(LISTED, INIT)
    assert [(gpu.description, gpu.capability) for gpu in found] == [
        ("NVIDIA GeForce RTX 5090", (12, 0)),
        ("NVIDIA GeForce RTX 3090", (8, 6)),
    ]
    assert (found[0].total, found[0].free) == (32606 * MIB, 30991 * MIB)
    assert parse_devices(LISTED)[0].gpu().compute_capability == (12, 0)  # a known card
    assert parse_devices("Available devices:\n  (none)\n") == []
    others = parse_devices(
        "Available devices:\n  Vulkan0: AMD Radeon RX 7900 XTX (RADV NAVI31) (24560 MiB, 24000 MiB free)\n"
        "  MTL0: Apple M4 Max (98304 MiB, 98303 MiB free)\n  BLAS: Accelerate (0 MiB, 0 MiB free)\n"
        "  RPC0: 192.0.2.1:50052 (24268 MiB, 1 MiB free)\n"
    )
    assert [(gpu.backend, gpu.description, gpu.unified) for gpu in others] == [
        ("Vulkan", "AMD Radeon RX 7900 XTX (RADV NAVI31)", False),
        ("MTL", "Apple M4 Max", True),
    ]


@needs_sh
def test_a_llama_server_that_is_given(tmp_path: Path) -> None:
    server = script(tmp_path / "llama-server", f"cat >&2 <<E\n{INIT}E\ncat <<E\n{LISTED}E")
    machine = detect(server, machine_root(tmp_path))
    assert [gpu.description for gpu in machine.rig.gpus] == ["NVIDIA GeForce RTX 5090", "NVIDIA GeForce RTX 3090"]
    assert machine.rig.host_total == 131923456 * 1024
    assert (machine.source, machine.notes, machine.inexact) == (f"{server} --list-devices", (), "")


@needs_sh
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("exit 3", "no list of devices, it says nothing, and exit status 3"),
        ("yes", "more than 1 MiB of output"),
        ("echo hello", "it says 'hello'"),
        ("echo 'error while loading shared libraries: libcuda.so' >&2; exit 127", "libcuda.so"),
        ("printf '\\377\\000'", "no list of devices"),
        ("exec sleep 9", "no answer in 2 s"),
    ],
)
def test_a_llama_server_that_fails(tmp_path: Path, text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_server, "_MAX_OUTPUT", 1 << 20)
    monkeypatch.setattr(llama_server.run_program, "__defaults__", (2.0,))
    with pytest.raises(ProgramError) as caught:
        list_devices(script(tmp_path / "llama-server", text))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_llama_server_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="no such program"):
        detect(str(tmp_path / "absent"))
    with pytest.raises(ProgramError, match="cannot be run"):
        run_program([str(tmp_path)])


@needs_sh
@pytest.mark.parametrize(
    ("body", "said"), [("echo 'Available devices:\n  (none)'", "sees no GPU"), ("exit 1", "passed over")]
)
def test_a_machine_without_a_gpu(
    body: str, said: str, tmp_path: Path, nvml: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml(error=True)
    script(tmp_path / "llama-server", body)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    machine = detect(root=machine_root(tmp_path))
    assert machine.rig.gpus == () and said in machine.source and "on PATH" not in machine.source
    assert machine.notes[-1].startswith("name GPUs with --gpu")
    if body != "exit 1":
        assert detect(str(tmp_path / "llama-server"), machine_root(tmp_path / "other")).notes[-1] == machine.notes[-1]


@pytest.mark.parametrize(
    ("description", "unified"),
    [
        ("AMD Radeon Graphics (RADV PHOENIX)", True),
        ("AMD Ryzen 7 7700X (RADV RAPHAEL_MENDOCINO)", True),
        ("AMD Radeon(TM) Graphics", True),
        ("AMD Radeon 780M Graphics (RADV GFX1103_R1)", True),
        ("Intel(R) UHD Graphics 770 (ADL-S GT1)", True),
        ("AMD Radeon RX 7900 XTX (RADV NAVI31)", False),
        ("AMD Radeon RX 6800M", False),
        ("Intel(R) Arc(TM) A770 Graphics (DG2)", False),
        ("NVIDIA GeForce RTX 3090", False),
    ],
)
def test_gpus_that_share_the_hosts_memory_by_their_names(description: str, unified: bool) -> None:
    (gpu,) = parse_devices(f"Available devices:\n  Vulkan0: {description} (24560 MiB, 24000 MiB free)\n")
    assert (gpu.description, gpu.unified, gpu.gpu().integrated) == (description, unified, unified)


@needs_sh
def test_the_program_that_has_all_the_others_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = "Available devices:\n  CUDA0: NVIDIA GeForce RTX 3090 (24268 MiB, 23868 MiB free)"
    version = "version: 0.5.0 (build 11200, commit 5f0c)"
    cases = f"--version) echo '{version}';; 'serve --list-devices') echo '{listed}';; *) exit 1;;"
    script(tmp_path / "llama", f'case "$*" in {cases} esac')
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    machine = detect(root=machine_root(tmp_path))
    assert machine.source.endswith("/llama serve --list-devices") and len(machine.rig.gpus) == 1


@needs_sh
def test_one_on_path_that_fails_is_passed_over(tmp_path: Path, nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path / "llama-server", "exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    nvml(("NVIDIA GeForce RTX 3090", 24576, 24000, (8, 6)))
    machine = detect(root=machine_root(tmp_path))
    assert (machine.source, len(machine.rig.gpus)) == ("NVML", 1)
    assert "llama-server was passed over" in machine.notes[0]


def test_nvml(nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml(("NVIDIA GeForce RTX 3090", 24576, 24000, (8, 6)), ("NVIDIA Something New", 50000, 49000, (13, 0)))
    gpus, notes = nvidia_gpus()
    assert gpus[0].total == 24268 * MIB  # as CUDA reports this card
    assert gpus[1].total == 50000 * MIB and gpus[1].free == 48600 * MIB and gpus[1].capability == (13, 0)
    assert any("PCI order" in note for note in notes)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [gpu.description for gpu in nvidia_gpus()[0]] == ["NVIDIA Something New"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1abc,0,7,0")
    assert [gpu.description for gpu in nvidia_gpus()[0]] == ["NVIDIA Something New", "NVIDIA GeForce RTX 3090"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert nvidia_gpus()[0] == []


def test_nvml_without_a_driver(nvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml(error=True)
    assert nvidia_gpus() == ([], [])
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvidia_gpus() == ([], [])


def test_unified_memory_is_said(nvml: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml(("NVIDIA GB10", 0, 0, (12, 1)))
    monkeypatch.setattr(detect_module, "find_program", lambda name, given="": None)
    machine = detect(root=machine_root(tmp_path))
    assert machine.rig.unified and machine.rig.gpus[0].total == 131923456 * 1024
    assert any("unified memory" in note for note in machine.notes)


def test_amd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = machine_root(tmp_path)
    card(root, 10, vendor="0x1002", mem_info_vram_total=str(24 << 30), mem_info_vram_used=str(1 << 30))
    card(
        root, 2, vendor="0x1002", product_name="Radeon 8060S", mem_info_vram_total=str(512 << 20),
        mem_info_vram_used="0", mem_info_gtt_total=str(96 << 30), mem_info_gtt_used=str(1 << 30),
    )  # fmt: skip
    card(root, 1, vendor="0x8086", mem_info_vram_total="5")
    card(root, 3, vendor="0x1002", mem_info_vram_total="nonsense")
    (root / "sys/class/drm/renderD128").mkdir()
    found = amd_gpus(root)
    assert [(gpu.description, gpu.unified) for gpu in found] == [("AMD Radeon 8060S", True), ("AMD Radeon", False)]
    assert (found[1].total, found[1].free) == (24 << 30, 23 << 30)
    assert found[0].total == (96 << 30) + (512 << 20)
    monkeypatch.setattr(detect_module, "find_program", lambda name, given="": None)
    monkeypatch.setattr(detect_module, "nvidia_gpus", lambda host: ([], []))
    machine = detect(root=root)
    assert machine.source == "AMD sysfs" and machine.rig.gpus[0].backend == "ROCm"
    assert amd_gpus(tmp_path / "nowhere") == []


def test_the_hosts_memory(tmp_path: Path) -> None:
    root = machine_root(tmp_path)
    assert host_memory(root) == (131923456 * 1024, 100000000 * 1024)
    cgroup = root / "sys/fs/cgroup"
    cgroup.mkdir(parents=True)
    (cgroup / "memory.max").write_text("max\n")
    assert host_memory(root)[0] == 131923456 * 1024
    (cgroup / "memory.max").write_text(f"{8 << 30}\n")
    (cgroup / "memory.current").write_text(f"{1 << 30}\n")
    assert host_memory(root) == (8 << 30, 7 << 30)
    assert (host_memory(tmp_path / "nowhere")[0] or 1) > 0


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_a_rig_file_comes_back_as_it_was(tmp_path: Path, suffix: str, nvml: Any) -> None:
    odd = parse_devices('Available devices:\n  CUDA0: Odd "card" \\ 5 (1000 MiB, 900 MiB free)\n')[0].gpu()
    gpus = [found.gpu() for found in parse_devices(LISTED, INIT)]
    from memplan.backends.devices import Rig

    rig = Rig((odd, gpus[0], gpus[0], gpus[1]), 64 << 30, unified=True)
    path = tmp_path / f"rig.{suffix}"
    path.write_text(write_rig(rig, json=suffix == "json", about="from\nsomewhere"))
    assert load_rig(path) == rig
