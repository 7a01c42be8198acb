"""Placements with every expert on the host and room spread evenly: one of them fits where anything does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from memplan.halving import last_before
from memplan.planning.layer_costs import LayerCosts
from memplan.planning.layout import Layout
from memplan.planning.partition import Kinds, LayerPartitioner
from memplan.planning.speed import Bandwidths
from memplan.result import Estimate

BALANCE: Final = 32 << 20
"""Bytes to which room is spread evenly."""

ROUNDS: Final = 6
"""Estimates that a way to place layers may take."""

_NOTHING: Final = Kinds(frozenset(), frozenset())


class AllExpertsOnHost:
    """Looks for them.

    ``before``: what each GPU has for everything.  ``ask``: the estimate of a layout.  ``take``: whether a layout fits
    by its estimate; it may keep it.
    """

    def __init__(
        self,
        costs: LayerCosts,
        bandwidths: Bandwidths,
        before: Sequence[int],
        no_op_offload: bool,
        ask: Callable[[Layout], Estimate],
        take: Callable[[Layout, Estimate], bool],
    ) -> None:
        self.costs = costs
        self.before = before
        self.no_op_offload = no_op_offload
        self.ask = ask
        self.take = take
        self._partitioner = LayerPartitioner(replace(costs, experts=((),) * costs.n_items), bandwidths)

    def any(self, firsts: Iterable[int]) -> bool:
        """Whether one with so many layers on the host fits; ``firsts``: the fewer the better."""
        firsts = tuple(firsts)
        computes = [0] * len(self.before)
        for _ in range(ROUNDS):
            layout = self._spread(computes, firsts)
            if layout is None:
                return False
            answer = self.ask(layout)
            if answer.refused is not None:
                return False
            if self.take(layout, answer):
                return True
            seen = [answer.devices[d].working for d in self.costs.devices]
            if len(firsts) == 1:  # else layers may go from GPU to GPU and back for ever
                seen = list(map(max, seen, computes))
            if seen == computes:
                return False
            computes = seen
        return False

    def fewest(self) -> bool:
        """Whether one fits at all; the one with the fewest layers on the host is taken last.

        What a GPU computes for one layer may need more than it has for the output alone, and what it needs does not
        grow evenly: so the number of layers is halved, not guessed.
        """
        most = self.costs.n_items - 1
        if self.costs.first is not None or self.costs.fixed_homes is not None or not self.any((most,)):
            return False
        last_before(-1, most, lambda on_host: not self.any((on_host,)))
        return True

    def _spread(self, computes: Sequence[int], firsts: Sequence[int]) -> Layout | None:
        rooms = [before - compute for before, compute in zip(self.before, computes, strict=True)]
        partition = self._partitioner.partition(rooms, _NOTHING, firsts)
        low, high = 0, max(rooms)
        while partition is not None and high - low > BALANCE:
            middle = (low + high) // 2
            wider = self._partitioner.partition([room - middle for room in rooms], _NOTHING, (partition.layout.first,))
            low, high, partition = (low, middle, partition) if wider is None else (middle, high, wider)
        if partition is None:
            return None
        host = frozenset(
            name for layer in self.costs.experts[partition.layout.first :] for e in layer for name in e.names
        )
        return replace(partition.layout, host=host, no_op_offload=self.no_op_offload)
