"""What every piece of the graph uses: names, leafs, norms, rotations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.ggml.graph import Graph
from memplan.ggml.tensor import Tensor
from memplan.llama.context import Batch, Fused
from memplan.models.deepseek4.rope import rope_and_join, rope_at_offset

if TYPE_CHECKING:
    from memplan.llama.hparams import HParams
    from memplan.llama.kv_cache import Memory
    from memplan.releases import Release

Source = Callable[[str, int], Tensor]
"""Makes the leaf of a weight, cache or state: by role (``attn_norm.weight``, ``cache_k@csa``) and layer (-1: none)."""


class Pieces:
    """A graph in the making.

    Attributes:
        hp: the model.  batch: what the graph is reserved for.  fused: which ops are fused.  memory: caches and states.
        release: whose forms the pieces have.
        graph: the nodes and leafs.  roles: what each weight, cache and state is.
        fused_nodes: fused op, its node and its layer, in order (``add_fused_node``).
        pinned: nodes that llama.cpp's callback would pin to their layer's device: norms and each layer's last node.
        on_host: nodes pinned to the CPU when the caches are not offloaded.
    """

    def __init__(
        self, hp: HParams, batch: Batch, fused: Fused, memory: Memory, release: Release, source: Source
    ) -> None:
        self.hp = hp
        self.batch = batch
        self.fused = fused
        self.memory = memory
        self.release = release
        self.source = source
        self.graph = Graph()
        self.roles: dict[Tensor, str] = {}
        self.fused_nodes: list[tuple[str, Tensor, int]] = []
        self.pinned: list[tuple[Tensor, int]] = []
        self.on_host: list[Tensor] = []
        self._leafs: dict[tuple[str, int], Tensor] = {}

    @staticmethod
    def cb(t: Tensor, name: str, il: int) -> Tensor:
        """Name ``t`` as llama.cpp's callback does."""
        t.name = f"{name}-{il}" if il >= 0 else name
        return t

    def leaf(self, role: str, il: int = -1) -> Tensor:
        """The one leaf of this graph for a weight, cache or state."""
        t = self._leafs.get((role, il))
        if t is None:
            t = self._leafs[role, il] = self.source(role, il)
            self.roles[t] = role
        return t

    def w(self, il: int, name: str) -> Tensor:
        """A layer's weight."""
        return self.leaf(f"{name}.weight", il)

    def norm(self, cur: Tensor, weight: Tensor, il: int) -> Tensor:
        """RMS norm with weights (``build_norm``)."""
        cur = ops.rms_norm(cur)
        self.cb(cur, "norm", il)
        self.pinned.append((cur, il))
        return ops.mul(cur, weight)

    def rope(self, cur: Tensor, pos: Tensor, turned: str = "", back: bool = False) -> Tensor:
        """Rotary positions on the last ``n_rot`` elements of each head; ``turned`` names them where they are apart."""
        if self.release.rope_at_offset:
            return rope_at_offset(cur, pos, self.hp.n_rot, back)
        return rope_and_join(cur, pos, self.hp.n_rot, back, turned)

    def hadamard(self, cur: Tensor, rot: Tensor) -> Tensor:
        """Heads turned by a Hadamard matrix: in rows (``llama_mul_mat_hadamard``) or, before, as they are."""
        if not self.release.rotates_compressed_keys:
            return ops.mul_mat(rot, cur)
        n = rot.ne[0]
        rows = cur.nelements // n
        res = ops.reshape(cur, n, rows) if cur.is_contiguous else ops.cont(cur, n, rows)
        return ops.reshape(ops.mul_mat(rot, res), *cur.ne)
