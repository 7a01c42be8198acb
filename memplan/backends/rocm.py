"""ROCm and SYCL devices: what their backends, written after CUDA's, do otherwise. Read, never compared.

ROCm is ggml/src/ggml-cuda compiled by ggml/src/ggml-hip, read in builds 9840 to 11434. Alignment, padding, sizes,
events and the lifetimes that fusions stretch are CUDA's. Without CUB's sorts, long rows are not sorted; attention has
no kernel of NVIDIA's tensor cores, which says nothing about the room that prompts need, since all others take K and V
as f16 (``ggml_cuda_get_best_fattn_kernel``). Where one or two tokens with a quantised cache would take MFMA's or WMMA's
kernel in place of the vector one, that is not followed.

SYCL (ggml/src/ggml-sycl) was read for its fused ops alone; all else is taken from CUDA.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from memplan.backends.cuda import CudaBackend
from memplan.releases.other_backends import other_backends

if TYPE_CHECKING:
    from memplan.backends.devices import Gpu
    from memplan.ggml.tensor import Tensor
    from memplan.releases import Release

SYCL_LIKENESS = (8, 6)
"""The compute capability that SYCL's devices are planned with."""

ROCM_APPROXIMATE = "ROCm: its rules are read from llama.cpp's source and were never compared with its own planning"
SYCL_APPROXIMATE = "SYCL is not modelled: its devices are planned as CUDA ones of compute capability {}.{}".format(
    *SYCL_LIKENESS
)


class RocmBackend(CudaBackend):
    """ROCm device ``index`` of a rig; ``without_ops``: ops that it is made to refuse."""

    def __init__(self, index: int, gpu: Gpu, release: Release, without_ops: frozenset[str] = frozenset()) -> None:
        super().__init__(index, gpu, release, without_ops)
        self.scratching = None
        switches = other_backends(release)
        limits = {"ARGSORT": switches.rocm_sorts}
        if not switches.rocm_large_top_k:
            limits["TOP_K"] = switches.rocm_sorts
        self._rules |= {op: partial(_short_rows, limit=limit) for op, limit in limits.items() if op in self._rules}


class SyclBackend(CudaBackend):
    """SYCL device ``index`` of a rig; ``without_ops``: ops that it is made to refuse."""

    def __init__(self, index: int, gpu: Gpu, release: Release, without_ops: frozenset[str] = frozenset()) -> None:
        if not other_backends(release).sycl_fused:
            without_ops |= {"LIGHTNING_INDEXER", "DSV4_HC_PRE", "DSV4_HC_COMB", "DSV4_HC_POST"}
        super().__init__(index, replace(gpu, compute_capability=SYCL_LIKENESS), release, without_ops)
        self.scratching = None


def _short_rows(t: Tensor, limit: int) -> bool:
    return t.src[0].ne[0] <= limit
