"""Placements of models without experts: parts of layers' feed-forward weights on the host, where that is faster."""

from __future__ import annotations

from collections.abc import Callable

from memplan.planning.attempt import Attempt
from memplan.planning.layer_costs import LayerCosts, layer_costs_of
from memplan.planning.problem import Candidate
from memplan.planning.search import Search

Time = Callable[[LayerCosts, Candidate], float]
"""Milliseconds a token of a placement."""


def in_parts(search: Search, costs: LayerCosts, found: Candidate, time: Time) -> tuple[LayerCosts, Candidate]:
    """A faster placement than one with whole layers on the host, and what it moves; what was found if there is none.

    Tried: one layer more on the GPUs, but for some of its feed-forward weights, which fills what is left beside whole
    layers; and the attention and caches of every layer there.
    """
    if not found.layout.first or costs.kinds:
        return costs, found
    parts = layer_costs_of(search.problem.question, feed_forward=True)
    if not isinstance(parts, LayerCosts):
        return costs, found
    best = costs, found
    for first in dict.fromkeys((found.layout.first - 1, 0)):
        new = Attempt(search, parts, found.layout.no_op_offload, (first,), "good").best()
        if new is not None and time(parts, new) < time(*best):
            best = parts, new
    return best
