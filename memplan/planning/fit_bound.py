"""How many bytes of weights ``--fit`` can come to at most: sums that spare a replay which cannot win.

``--fit`` makes layers whole from the first on, GPU by GPU, and then one more in part, whose rest goes to the next GPU
(``common_params_fit_impl``, common/fit.cpp, v0.5.0; see ``llama_fit``). So what it places is a beginning of the layers,
and how far that goes follows from sizes alone, once each GPU's compute buffer is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from memplan.llama.weights import ModelTensor
from memplan.planning.layer_costs import LayerCosts
from memplan.planning.overrides import matched


@dataclass(frozen=True, slots=True)
class Settled:
    """One GPU's layers: ``whole`` of ``layers`` have their experts, and one more loses ``lost`` to the next GPU."""

    layers: int
    whole: int
    lost: str = ""


class Sizes:
    """Sums over layers, in bytes: ``experts``; ``parts``: what each pattern takes of a layer; ``blocks``: layers.

    ``absent``: layers that ``--fit`` has in its patterns and that are on no GPU all the same. It does not count layers
    of MTP, llama.cpp does; so as many of the first stay on the host, and each GPU's range is as many off.
    """

    def __init__(
        self, costs: LayerCosts, tensors: Sequence[ModelTensor], patterns: Mapping[str, str], absent: range = range(0)
    ) -> None:
        self.blocks = costs.n_items - 1
        self.absent = absent
        self.dense = list(costs.dense)
        self.experts = [sum(e.size for e in layer) for layer in costs.experts]
        self.parts: dict[str, list[int]] = {}
        nbytes = {t.name: t.nbytes for t in tensors}
        layers = {t.name: t.layer for t in tensors}
        for lost, pattern in patterns.items():
            taken = self.parts[lost] = [0] * costs.n_items
            for name in matched([(pattern, "")], costs.all_names):
                if layers[name] >= 0:
                    taken[layers[name]] += nbytes[name]
        for il in absent:
            for of_layers in (self.dense, self.experts, *self.parts.values()):
                of_layers[il] = 0
        self._dense_sums = [0, *accumulate(self.dense)]
        self._expert_sums = [0, *accumulate(self.experts)]

    def kept(self, lost: str, layer: int) -> int:
        """Bytes that a layer takes more than with its experts elsewhere when only ``lost`` is; may be below zero."""
        return self.experts[layer] - self.parts[lost][layer]

    def placed(self, first: int, settled: Sequence[Settled]) -> int:
        """Bytes of experts on GPUs."""
        total, at = 0, first
        for gpu in settled:
            end = min(at + gpu.whole + bool(gpu.lost), len(self.experts))
            total += self._expert_sums[end] - self._expert_sums[at]
            at += gpu.layers
        return total

    def most(self, first: int, settled: Sequence[Settled], rooms: Sequence[int], left: int | None = None) -> int:
        """The most bytes of experts that ``--fit`` can place from layer ``first`` on.

        ``settled``: the GPUs that are done.  ``rooms``: for weights and caches, of the others; the last one also has
        to hold the layers without experts that no other has room for.  ``left``: what the last GPU of ``settled`` has
        left for one more layer in part; None when that is settled too.
        """
        at, total, spare, carry = first, 0, 0, 0
        for gpu in settled:
            begin, at = at, at + gpu.whole + bool(gpu.lost)
            carry = self.parts[gpu.lost][at - 1] if gpu.lost else 0
            total += self._expert_sums[at] - self._expert_sums[begin]
            rest = min(begin + gpu.layers, self.blocks)
            spare += self._dense_sums[max(rest, at)] - self._dense_sums[at]
        if left is not None:
            fits = [lost for lost in self.parts if at < self.blocks and self.kept(lost, at) <= left]
            if not rooms:
                return total + max([0, *(self.kept(lost, at) for lost in fits)])
            if fits:
                carry = min(self.parts[lost][at] for lost in fits)
                total += self.experts[at]
                at += 1
        for room in rooms[:-1]:
            room -= carry
            carry = 0
            while at < self.blocks and self.dense[at] + self.experts[at] <= room:
                room -= self.dense[at] + self.experts[at]
                total += self.experts[at]
                at += 1
            fits = [lost for lost in self.parts if at < self.blocks and self.dense[at] + self.kept(lost, at) <= room]
            if fits:
                lost = min(fits, key=lambda lost: self.parts[lost][at])
                room -= self.dense[at] + self.kept(lost, at)
                carry = self.parts[lost][at]
                total += self.experts[at]
                at += 1
            spare += max(room, 0)
        room = rooms[-1] - carry + min(spare - self._dense_sums[self.blocks + 1] + self._dense_sums[at], 0)
        while at < self.blocks and self.experts[at] <= room:
            room -= self.experts[at]
            total += self.experts[at]
            at += 1
        partly = (self.kept(lost, at) for lost in self.parts) if at < self.blocks else ()
        return total + max([0, *(kept for kept in partly if kept <= room)])
