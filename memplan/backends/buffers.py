"""Buffer types: alignment, and the bytes each sets aside for a tensor.

Follows ggml/src/ggml-backend.cpp (CPU), ggml/src/ggml-cuda/ggml-cuda.cu (CUDA, CUDA_Host) and
ggml/src/ggml-cpu/repack.cpp (CPU_REPACK), read from b9842 to v0.5.0. None of them limits the size of a single buffer.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from memplan.backends import fattn
from memplan.ggml.backend import BufferType
from memplan.ggml.ops import GGMLAssertError

if TYPE_CHECKING:
    from memplan.backends.devices import Gpu
    from memplan.ggml.tensor import Tensor
    from memplan.releases import Release

HOST_ALIGNMENT = 32
"""TENSOR_ALIGNMENT (ggml/src/ggml-impl.h)."""

CUDA_ALIGNMENT = 128
"""ggml_backend_cuda_buffer_type_get_alignment."""

MATRIX_ROW_PADDING = 512
"""Elements that a quantised row is padded to on CUDA (ggml-cuda/common.cuh)."""


class HostBuffer(BufferType):
    """Memory of the host: a tensor takes its own bytes and no more."""

    alignment = HOST_ALIGNMENT

    def __init__(self, name: str, is_host: bool = True) -> None:
        self.name = name
        self.is_host = is_host

    @property
    def sizing(self) -> Hashable:
        """All host memory sizes alike."""
        return HostBuffer

    def alloc_size(self, t: Tensor) -> int:
        """``ggml_nbytes``: these types define no allocation size of their own."""
        return t.nbytes


CPU = HostBuffer("CPU")
"""Plain memory."""

CUDA_HOST = HostBuffer("CUDA_Host")
"""Pinned memory: one type shared by all CUDA devices; it takes alignment and sizes from CPU."""

CPU_REPACK = HostBuffer("CPU_REPACK", is_host=False)
"""Weights interleaved for the CPU's kernels: same sizes, but nothing else can read them, so it is no host buffer."""


class CudaBuffer(BufferType):
    """Memory of one device of CUDA, or of a backend written after it: ``CUDA0``, ``CUDA1``, ``ROCm0``, ..."""

    alignment = CUDA_ALIGNMENT

    def __init__(self, index: int, gpu: Gpu, release: Release) -> None:
        self.backend = gpu.backend
        self.name = f"{gpu.backend}{index}"
        self._gpu = gpu
        self._release = release

    @property
    def sizing(self) -> Hashable:
        """The device's generation and the release: flash attention's room depends on both."""
        return self._gpu.cc, self._release

    def alloc_size(self, t: Tensor) -> int:
        """Bytes of ``t``, with padding after a quantised last row and room for flash attention's f16 copies.

        Follows ``ggml_backend_cuda_buffer_type_get_alloc_size``.

        Raises:
            GGMLAssertError: a quantised tensor that is permuted and not a multiple of the padding; llama.cpp aborts.
        """
        size = fattn.alloc_size(t, self._gpu.cc, self._release) if t.op == "FLASH_ATTN_EXT" else t.nbytes
        type = t.type
        if type.is_quantized:
            short = t.ne[0] % MATRIX_ROW_PADDING
            if short:
                if t.nb[0] != type.type_size:
                    raise GGMLAssertError("GGML_ASSERT(tensor->nb[0] == ggml_element_size(tensor))")
                size += type.row_size(MATRIX_ROW_PADDING - short)
        return size
