"""What Vulkan's driver says of a device, as far as it decides memory: known from the device's name, or given.

Which limits ggml-vulkan reads: ``ggml_vk_get_device`` and ``ggml_backend_vk_device_supports_op``
(ggml/src/ggml-vulkan/ggml-vulkan.cpp, builds 9840 to 11434). What drivers report:

- Mesa for AMD (RADV): src/amd/vulkan/radv_physical_device.c and radv_constants.h (RADV_MAX_MEMORY_ALLOCATION_SIZE);
- Mesa for Intel (ANV): src/intel/vulkan/anv_physical_device.c, anv_private.h (ANV_SSBO_ALIGNMENT), isl.c;
- NVIDIA's: public reports of vulkaninfo; VK_EXT_shader_64bit_indexing since drivers of 2026;
- AMD's own: its limit of 2 GiB a buffer is GPUOpen-Drivers/AMDVLK#413; its alignments are not verified;
- Intel's for Windows: maxStorageBufferRange is KhronosGroup/Vulkan-Profiles#621; the rest is not verified.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class VulkanLimits:
    """Limits and features of one device; bytes.

    ``align``: minStorageBufferOffsetAlignment.  ``map_align``: minMemoryMapAlignment.  ``range``:
    maxStorageBufferRange.  ``max_buffer``: maxBufferSize.  ``idx64``: VK_EXT_shader_64bit_indexing, without which a
    tensor may not be larger than ``range``.  ``fp16``: shaderFloat16.
    ``driver``: whose limits these are.  ``known``: whether the device's name, or the user, says so.
    """

    align: int = 4
    map_align: int = 4096
    range: int = 4 * GIB - 1
    max_buffer: int = 4 * GIB - 4
    idx64: bool = False
    fp16: bool = True
    driver: str = ""
    known: bool = True

    @property
    def max_tensor(self) -> int:
        """Bytes of the largest tensor that an op may read or write."""
        return self.max_buffer if self.idx64 else min(self.max_buffer, self.range)

    @property
    def max_block(self) -> int:
        """Bytes of the largest buffer that tensors share; a larger tensor has one to itself.

        ``suballocation_block_size``, GGML_VK_SUBALLOCATION_BLOCK_SIZE not set.
        """
        return min(GIB, self.max_buffer)


RADV = VulkanLimits(driver="Mesa's driver for AMD (RADV)")
ANV = VulkanLimits(max_buffer=4 * GIB, driver="Mesa's driver for Intel (ANV)")
NVIDIA = VulkanLimits(align=16, map_align=64, max_buffer=1 << 40, idx64=True, driver="NVIDIA's driver")
AMD = VulkanLimits(map_align=64, max_buffer=2 * GIB, driver="AMD's own driver, as on Windows")
INTEL = VulkanLimits(range=GIB - 4, max_buffer=16 * GIB, driver="Intel's driver for Windows")

_NO_HALVES = re.compile(r"\b[pm](4|6|10|40)\b|\bgtx (9|10)[0-9]{2}\b|\bquadro [pm][0-9]|\btitan xp?\b")
"""NVIDIA's cards before Volta but P100: their driver offers no 16-bit floats in shaders."""


def limits_of(name: str) -> VulkanLimits:
    """The limits of a device by its name; they are ``known`` if llama.cpp prints such a name.

    Mesa's drivers put the chip in brackets: ``(RADV NAVI31)``, ``(BMG G21)``; the makers' own do not. Of a name that
    people use, Mesa's are taken.

    >>> limits_of("AMD Radeon RX 7900 XTX (RADV NAVI31)").driver
    "Mesa's driver for AMD (RADV)"
    >>> limits_of("AMD Radeon RX 7900 XTX").max_buffer, limits_of("RX 7900 XTX").known
    (2147483648, False)
    """
    words = name.lower()
    if "(nvk" not in words and re.search(r"\b(nvidia|geforce|quadro|tesla)\b", words):
        return replace(NVIDIA, fp16=_NO_HALVES.search(words) is None)
    if "(RADV " in name:
        return RADV
    if name.startswith("AMD Radeon"):
        return AMD
    if name.startswith("Intel(R)"):
        return ANV if name.endswith(")") else INTEL
    return replace(ANV if re.search(r"\b(intel|arc|iris|uhd)\b", words) else RADV, known=False)
