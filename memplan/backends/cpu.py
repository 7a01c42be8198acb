"""The CPU backend: it computes almost everything, reads host memory and repacked weights, and never asks for more.

Follows ggml/src/ggml-cpu/ggml-cpu.cpp (``ggml_backend_cpu_device_supports_op``, ``..._supports_buft``) and
ggml/src/ggml-cpu/repack.cpp (``extra_buffer_type::supports_op``, ``ggml_repack_get_optimal_repack_type``), read from
b9842 to v0.5.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from memplan.backends.buffers import CPU, CPU_REPACK
from memplan.ggml.backend import Backend
from memplan.ggml.tensor import VIEW_OPS
from memplan.gguf.types import BF16, BY_NAME, F16, F32, IQ4_NL, Q4_0, Q4_1, Q5_1, Q8_0, GGMLType

if TYPE_CHECKING:
    from memplan.ggml.backend import BufferType
    from memplan.ggml.tensor import Tensor

_REPACKED = frozenset({Q4_0, IQ4_NL, BY_NAME["q4_K"], BY_NAME["mxfp4"]})
"""Weight types that a CPU with AVX2 interleaves."""

_REPACKED_ROWS = 8
"""How many rows it interleaves at once."""

_NO_FROM_FLOAT = frozenset(BY_NAME[n] for n in ("iq3_xxs", "iq3_s", "iq2_xxs", "iq2_xs", "iq2_s", "iq1_s", "iq1_m"))

_Q8_1, _Q8_K = BY_NAME["q8_1"], BY_NAME["q8_K"]
_VEC_DOT_TYPES: Mapping[GGMLType, GGMLType] = {
    F32: F32,
    F16: F16,
    BF16: BF16,
    **{BY_NAME[n]: Q8_0 for n in ("q1_0", "q2_0", "q4_0", "q5_0", "q8_0", "mxfp4", "nvfp4", "iq4_nl")},
    **{t: _Q8_1 for t in (Q4_1, Q5_1, _Q8_1)},
    **{BY_NAME[n]: _Q8_K for n in ("q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "iq4_xs", "tq1_0", "tq2_0")},
    **{t: _Q8_K for t in _NO_FROM_FLOAT},
}


class CpuBackend(Backend):
    """A CPU with AVX2, and no more that decides what it interleaves."""

    def __init__(self) -> None:
        self.name = "CPU"
        self.buft = CPU

    def supports_op(self, t: Tensor) -> bool:
        """Whether the CPU computes ``t``; repacked weights serve matrix products only."""
        op = t.op
        if op in VIEW_OPS:
            return True
        for s in t.src[:4]:
            if s.buffer is not None and s.buffer.buft is CPU_REPACK:
                return self._repacked(t)
        if op == "MUL_MAT":
            a, b = t.src[0].type, t.src[1].type
            return b is F32 or b is _VEC_DOT_TYPES.get(a, F32)
        if op in ("CPY", "SET_ROWS"):
            return t.type not in _NO_FROM_FLOAT
        return True

    def supports_buft(self, buft: BufferType) -> bool:
        """Host memory, pinned or not, and repacked weights."""
        return buft.is_host or buft is CPU_REPACK

    def _repacked(self, t: Tensor) -> bool:
        dims = {"MUL_MAT": 2, "MUL_MAT_ID": 3}.get(t.op)
        if dims is None:
            return False
        w, x = t.src[0], t.src[1]
        if w.buffer is None or w.buffer.buft is not CPU_REPACK or _n_dims(w) != dims:
            return False
        if w.type not in _REPACKED or w.ne[1] % _REPACKED_ROWS:
            return False
        if x.buffer is not None and not x.buffer.buft.is_host:
            return False
        return x.type is F32


def _n_dims(t: Tensor) -> int:
    """Dimensions up to the last that is not 1 (``ggml_n_dims``)."""
    for i in (3, 2, 1):
        if t.ne[i] > 1:
            return i + 1
    return 1
