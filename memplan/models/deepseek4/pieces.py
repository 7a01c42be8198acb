"""What every piece of DeepSeek-V4's graph uses beside the pieces that all models share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memplan.ggml import ops
from memplan.ggml.tensor import Tensor
from memplan.models.base import ModelGraph
from memplan.models.deepseek4.hparams import DeepSeek4HParams
from memplan.models.deepseek4.rope import rope_and_join, rope_at_offset
from memplan.models.deepseek4.switches import Switches, switches

if TYPE_CHECKING:
    from memplan.models.deepseek4.memory import DeepSeek4Memory


class Pieces(ModelGraph[DeepSeek4HParams]):
    """Rotations of its own, and limits of gated units."""

    memory: DeepSeek4Memory
    inp_pos: Tensor
    drafts = False
    """Whether these are the layers of what drafts, and not the model's own."""

    @property
    def switches(self) -> Switches:
        """What the release does for this architecture alone."""
        return switches(self.release)

    def last_of_layer(self, t: Tensor, il: int) -> Tensor:
        """A layer's result, which the callback pins to the layer's device where the release does so."""
        if self.switches.pins_layer_ends and not self.drafts:
            self.pinned.append((t, il))
            return self.cb(t, "l_last", il)
        return self.cb(t, "l_out", il)

    def rope_end(self, cur: Tensor, pos: Tensor, turned: str = "", back: bool = False) -> Tensor:
        """Rotary positions on the last ``n_rot`` elements of each head; ``turned`` names them where they are apart."""
        if self.release.rope_at_offset:
            return rope_at_offset(cur, pos, self.hp.n_rot(), back)
        return rope_and_join(cur, pos, self.hp.n_rot(), back, turned)

    def hadamard(self, cur: Tensor, rot: Tensor) -> Tensor:
        """Heads turned by a Hadamard matrix: in rows (``llama_mul_mat_hadamard``) or, before, as they are."""
        if self.switches.rotates_compressed_keys:
            return super().hadamard(cur, rot)
        return ops.mul_mat(rot, cur)

    def swiglu_limit(self, il: int, *, shared: bool) -> float:
        """The limit of a layer's gated unit, in routed or in shared experts."""
        return (self.hp.swiglu_clamp_shexp if shared else self.hp.swiglu_clamp_exp)[il]

    def limited_swiglu(self, gate: Tensor, up: Tensor, limit: float, name: str, il: int) -> Tensor:
        """SwiGLU with limits, in one op or, before, from three."""
        if self.switches.swiglu_clamp:
            return ops.glu(gate, up, "SWIGLU_CLAMP", limit)
        up = self.cb(self.clamp(up), f"{name}_up_clamped", il)
        gate = self.cb(self.clamp(gate), f"{name}_gate_clamped", il)
        return ops.glu(gate, up, "SWIGLU")
