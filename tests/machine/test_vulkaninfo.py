"""What vulkaninfo says, as text and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from memplan.backends.vulkan_limits import RADV
from memplan.cli import main
from memplan.errors import RigError
from memplan.machine import detect as detecting
from memplan.machine.detected import Found
from memplan.machine.vulkaninfo import load_vulkaninfo, parse_vulkaninfo
from memplan.rig_file import load_rig

MIB = 1 << 20
XTX = "AMD Radeon RX 7900 XTX (RADV NAVI31)"

DEVICE = """\
VkPhysicalDeviceProperties:
---------------------------
\tapiVersion        = 1.4.305 (4210993)
\tdriverVersion     = 25.0.2 (104857602)
\tvendorID          = 0x1002
\tdeviceType        = PHYSICAL_DEVICE_TYPE_{type}_GPU
\tdeviceName        = {name}

VkPhysicalDeviceLimits:
-----------------------
\tmaxStorageBufferRange                           = 4294967295
\tminMemoryMapAlignment                           = 4096
\tminStorageBufferOffsetAlignment                 = 0x00000004

VkPhysicalDeviceDriverPropertiesKHR:
------------------------------------
\tdriverID           = DRIVER_ID_MESA_RADV
\tdriverName         = radv

VkPhysicalDeviceVulkan13Properties:
-----------------------------------
\tmaxBufferSize                                    = 0xfffffffc

Device Extensions: count = 2
\tVK_EXT_memory_budget : extension revision 1
{more}
VkPhysicalDeviceMemoryProperties:
=================================
memoryHeaps: count = 2
\tmemoryHeaps[0]:
\t\tsize   = 33607909376 (0x7d3000000) (31.30 GiB)
\t\tbudget = 33285996544 (0x7bfd00000) (31.00 GiB)
\t\tusage  = 0 (0x00000000) (0.00 B)
\t\tflags:
\t\t\tNone
\tmemoryHeaps[1]:
\t\tsize   = 25753026560 (0x5fee00000) (23.98 GiB)
\t\tbudget = 25333596160 (0x5e6000000) (23.59 GiB)
\t\tusage  = 1048576 (0x00100000) (1.00 MiB)
\t\tflags: count = 1
\t\t\tMEMORY_HEAP_DEVICE_LOCAL_BIT
memoryTypes: count = 1
\tmemoryTypes[0]:
\t\theapIndex     = 1

VkPhysicalDeviceVulkan12Features:
---------------------------------
\tshaderFloat16                                      = true

"""


def text(name: str = XTX, type: str = "DISCRETE", more: str = "") -> str:
    head = f"==========\nVULKANINFO\n==========\n\nLayers: count = 0\nGPU id = 0 ({name})\n\nGPU0:\n"
    return head + DEVICE.format(name=name, type=type, more=more)


def profile(**limits: object) -> str:
    properties = {
        "VkPhysicalDeviceProperties": {
            "deviceName": XTX,
            "deviceType": "VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU",
            "limits": {
                "maxStorageBufferRange": 4294967295,
                "minMemoryMapAlignment": 4096,
                "minStorageBufferOffsetAlignment": 4,
                **limits,
            },
        },
        "VkPhysicalDeviceVulkan13Properties": {"maxBufferSize": 4294967292},
    }
    features = {"VkPhysicalDeviceVulkan12Features": {"shaderFloat16": True}}
    device = {"extensions": {"VK_KHR_maintenance4": 2}, "features": features, "properties": properties}
    return json.dumps({"capabilities": {"device": device}, "profiles": {}})


def test_text_tells_limits_and_memory_as_ggml_counts_it() -> None:
    (device,) = parse_vulkaninfo(text())
    assert (device.name, device.integrated) == (XTX, False)
    assert replace(device.limits, driver=RADV.driver) == RADV
    assert (device.total, device.free) == (25753026560, 25333596160 - MIB)
    (shared,) = parse_vulkaninfo(text(type="INTEGRATED"))
    assert (shared.integrated, shared.total) == (True, 25753026560 + 33607909376)
    (wide,) = parse_vulkaninfo(text(more="\tVK_EXT_shader_64bit_indexing         : extension revision 1"))
    assert wide.limits.idx64


def test_several_devices_and_none_that_is_the_cpu() -> None:
    both = (
        text() + DEVICE.format(name="llvmpipe (LLVM 19.1.1, 256 bits)", type="CPU", more="") + text("Card of Tomorrow")
    )
    assert [device.name for device in parse_vulkaninfo(both)] == [XTX, "Card of Tomorrow"]


def test_json_tells_limits_alone() -> None:
    (device,) = parse_vulkaninfo(profile())
    assert replace(device.limits, driver=RADV.driver) == RADV and device.total is None
    assert device.gpu().total == 24560 * MIB  # the known card's
    (other,) = parse_vulkaninfo(f"[{profile(minStorageBufferOffsetAlignment='0x10')}]")
    assert other.limits.align == 16


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("", "no device in it"),
        ("hello", "no device in it"),
        ("{", "not JSON to its end"),
        ("[1]", "no device in it"),
        (text(type="X").replace("X_GPU", "CPU"), "no GPU in it"),
        (text().replace("maxBufferSize", "maxBufferSizes"), "maxBufferSize is not said"),
        (text().replace("0x00000004", "3"), "alignments and limits of no device"),
        (text().replace("4096", "no"), "alignments and limits of no device"),
    ],
)
def test_what_is_not_from_vulkaninfo(said: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # errors shorten long paths
    file = Path("said.txt")
    file.write_text(said)
    with pytest.raises(RigError, match=why) as caught:
        load_vulkaninfo(file)
    assert "said.txt" in str(caught.value) and "\n" not in str(caught.value)


def test_memory_that_nobody_says() -> None:
    (device,) = parse_vulkaninfo(profile().replace(XTX, "Card of Tomorrow"))
    with pytest.raises(RigError, match="give vulkaninfo's text"):
        device.gpu()


def test_a_rig_file_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said, rig = tmp_path / "said.txt", tmp_path / "rig.toml"
    said.write_bytes(text("Card of Tomorrow").encode("utf-16"))
    assert main(["devices", "--vulkaninfo", str(said), "-o", str(rig)]) == 0
    assert "Vulkan0" in capsys.readouterr().out
    (gpu,) = load_rig(rig).gpus
    assert gpu.description == "Card of Tomorrow" and gpu.vulkan_limits.known
    assert gpu.vulkan_limits.max_buffer == 4294967292 and gpu.total == 24560 * MIB
    assert main(["devices", "--vulkaninfo", str(said), "--server", "x"]) == 2
    assert main(["devices", "--vulkaninfo", str(tmp_path / "none.txt")]) == 2


def test_vulkaninfo_is_asked_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detecting, "ask_vulkaninfo", lambda: parse_vulkaninfo(text()))
    found = [Found(XTX, MIB, MIB, "Vulkan"), Found("NVIDIA GeForce RTX 3090", MIB, MIB, "CUDA", (8, 6))]
    gpus = [gpu.gpu() for gpu in detecting._with_limits(found)]
    assert gpus[0].limits is not None and "radv" in gpus[0].limits.driver and gpus[1].limits is None


def test_known_cards_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--known"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "RTX 3090            NVIDIA      CUDA   24,268    936   82   8.6" in lines
    assert "780M                AMD       Vulkan" in lines
    assert main(["devices", "--known", "--json"]) == 0
    cards = json.loads(capsys.readouterr().out)["cards"]
    (ultra,) = [card for card in cards if card["name"] == "M2 Ultra"]
    assert (ultra["maker"], ultra["backend"], ultra["total_mib"]) == ("Apple", "MTL", 147456)
    assert main(["devices", "--known", "-o", "x"]) == 2
