"""RPC devices: GPUs of another machine, behind llama.cpp's rpc-server; approximate, since that server decides sizes.

Follows ggml/src/ggml-rpc/ggml-rpc.cpp, v0.5.0; older releases as ``other_backends`` says. The client claims that a
server computes every op, never asks it to compute on weights of the host, and asks it for the sizes of quantised rows
that are no multiple of 512 and of ops that may need more room. The server is taken to have a CUDA device: for those,
plans are llama.cpp's own to the byte (tests/data/golden/rpc.jsonl).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING

from memplan.backends.buffers import CUDA_ALIGNMENT, MATRIX_ROW_PADDING, CudaBuffer
from memplan.ggml.backend import Backend, BufferType
from memplan.ggml.tensor import Tensor, same_layout
from memplan.releases.other_backends import other_backends

if TYPE_CHECKING:
    from memplan.backends.devices import Gpu
    from memplan.releases import Release

ASSUMED_CAPABILITY = (8, 6)
"""The compute capability of a server's GPU, when it is not given."""

APPROXIMATE = (
    "RPC: sizes are right for servers with CUDA devices; the alignment and padding of another backend's server, and the"
    " ops that it lacks, are not known"
)


class RpcBuffer(BufferType):
    """Memory of a server's device, ``RPC0[HOST:PORT]``."""

    alignment = CUDA_ALIGNMENT

    def __init__(self, name: str, gpu: Gpu, release: Release) -> None:
        self.name = name
        self._asks = other_backends(release).rpc_asks
        served = replace(gpu, compute_capability=gpu.compute_capability or ASSUMED_CAPABILITY)
        self._served = CudaBuffer(0, served, release)

    @property
    def sizing(self) -> Hashable:
        """What the server's device sizes by, and what it is asked."""
        return RpcBuffer, self._served.sizing, self._asks

    def alloc_size(self, t: Tensor) -> int:
        """The server's size where it is asked, at least ``ggml_nbytes``.

        Follows ``ggml_backend_rpc_buffer_type_get_alloc_size``.
        """
        short = t.type.is_quantized and t.ne[0] % MATRIX_ROW_PADDING and t.view_src is None
        if not short and t.op not in self._asks:
            return t.nbytes
        return max(self._served.alloc_size(_sent(t)), t.nbytes)


class RpcBackend(Backend):
    """One device of a server; ``without_ops``: ops that it is made to refuse."""

    def __init__(
        self, name: str, buffer: str, gpu: Gpu, release: Release, without_ops: frozenset[str] = frozenset()
    ) -> None:
        self.name = name
        self.buft = RpcBuffer(buffer, gpu, release)
        self._without = without_ops

    def supports_op(self, t: Tensor) -> bool:
        """Every op, for the client does not ask (ggml_backend_rpc_device_supports_op)."""
        return t.op not in self._without

    def supports_buft(self, buft: BufferType) -> bool:
        """Its own memory alone."""
        return buft is self.buft


def _sent(t: Tensor) -> Tensor:
    """``t`` as the server sees it: sources by shape and stride, not as views of one another."""
    sources = [same_layout(s) for s in t.src]
    return Tensor(t.op, t.type, t.ne, t.nb, sources, kind=t.kind, params=t.params)
