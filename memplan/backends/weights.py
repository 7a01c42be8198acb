"""Whether a device can use a model weight that lies in a given buffer type.

Follows ``weight_buft_supported`` (src/llama-model-loader.cpp, v0.4.0 and v0.5.0): a small op with the weight in it, and
a buffer of the type in question, are held up to the device's ``supports_op``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.ggml.backend import Buffer
from memplan.ggml.tensor import Shape, Tensor, new_tensor, packed_strides
from memplan.gguf.types import F32, I32

if TYPE_CHECKING:
    from memplan.ggml.backend import Backend, BufferType
    from memplan.gguf.types import GGMLType

_TOKENS = 512
_SEQUENCES = 3
_EXPERTS_USED = 8  # the model's own number decides nothing that a backend asks for


@dataclass(frozen=True, slots=True)
class StateSpace:
    """What the probe of SSM_SCAN asks of a model: its hyper-parameters ``ssm.*``."""

    d_state: int
    d_inner: int
    n_group: int


@lru_cache(maxsize=4096)
def weight_supported(
    device: Backend, buft: BufferType, info_type: GGMLType, ne: Shape, op: str, ssm: StateSpace | None = None
) -> bool:
    """Whether ``device`` computes ``op`` with a weight of this type and shape in ``buft``.

    ``op``: the one llama.cpp's tensor table names (``MUL_MAT``, ``MUL_MAT_ID``, ``GET_ROWS``, ``MUL``, ``ADD``,
    ``ADD_ID``, ``DIV``, ``ROPE``, ``SCALE``, ``SSM_CONV``, ``SSM_SCAN``), or ``NONE``, which asks nothing. ``ssm``:
    what SSM_SCAN needs.

    Raises:
        ValueError: an op for which there is no probe.
    """
    if op == "NONE":
        return True
    w = Tensor("NONE", info_type, ne, packed_strides(info_type, ne), [])
    w.buffer = Buffer(buft)
    if op == "SSM_SCAN" and ssm is not None:
        return device.supports_op(_scan(w, ssm))
    return device.supports_op(_probe(op, w))


def _scan(a: Tensor, ssm: StateSpace) -> Tensor:
    d_state, heads = ssm.d_state if a.ne[0] == 1 else a.ne[0], a.ne[1]
    head, groups = ssm.d_inner // heads, ssm.n_group or 1
    state = new_tensor(F32, d_state, head, heads, _SEQUENCES)
    x = new_tensor(F32, head, heads, _TOKENS, _SEQUENCES)
    dt = new_tensor(F32, heads, _TOKENS, _SEQUENCES)
    b = new_tensor(F32, d_state, groups, _TOKENS, _SEQUENCES)
    return ops.ssm_scan(state, x, dt, a, b, b, new_tensor(I32, _SEQUENCES))


def _probe(op: str, w: Tensor) -> Tensor:
    ne = w.ne
    if op == "MUL_MAT":
        x = new_tensor(F32, ne[0], _TOKENS, ne[2], ne[3])
        return _op(op, (ne[1], _TOKENS, ne[2], ne[3]), [w, x])
    if op == "MUL_MAT_ID":
        x = new_tensor(F32, ne[0], _EXPERTS_USED, _TOKENS)
        ids = new_tensor(I32, _EXPERTS_USED, _TOKENS)
        return _op(op, (ne[1], _EXPERTS_USED, _TOKENS, 1), [w, x, ids])
    if op == "GET_ROWS":
        return _op(op, (ne[0], _TOKENS, 1, 1), [w, new_tensor(I32, _TOKENS)])
    if op in ("MUL", "ADD"):
        return _op(op, ne, [new_tensor(F32, *ne), w])
    if op == "DIV":
        return _op(op, (ne[0], 1, 1, 1), [new_tensor(F32, ne[0]), w])
    if op == "ADD_ID":
        x = new_tensor(F32, ne[0], _EXPERTS_USED, _TOKENS)
        return _op(op, x.ne, [x, w, new_tensor(I32, _EXPERTS_USED, _TOKENS)])
    if op == "ROPE":
        x = new_tensor(F32, 128, 1, _TOKENS)
        return _op(op, x.ne, [x, new_tensor(I32, _TOKENS), w])
    if op == "SSM_CONV":
        x = new_tensor(F32, ne[0] - 1 + _TOKENS, ne[1], _SEQUENCES)
        return ops.ssm_conv(x, w)
    if op == "SCALE":
        return _op(op, ne, [w])
    raise ValueError(f"no probe for a weight used by {op}")


def _op(op: str, ne: Shape, src: list[Tensor]) -> Tensor:
    return Tensor(op, F32, ne, packed_strides(F32, ne), src)
