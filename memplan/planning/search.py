"""The search for a placement: the sorts that are tried, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from memplan.planning.attempt import SETTINGS, Attempt, Effort
from memplan.planning.estimates import Estimates
from memplan.planning.layer_costs import LayerCosts
from memplan.planning.layout import Layout, layout_args
from memplan.planning.partition import LayerPartitioner
from memplan.planning.problem import Candidate, Problem, leaves_margins


class Search(Estimates):
    """One search.

    ``crowded``: whether the GPUs can hold all attention, but the host not the rest.  ``hints``:
    layouts that fitted a similar problem, to fall back on.
    """

    def __init__(self, problem: Problem, hints: Sequence[Layout] = ()) -> None:
        super().__init__(problem)
        self.crowded = False
        self.hints = hints

    def find(self, partial: bool = False, effort: Effort = "best", copies: bool | None = None) -> Candidate | None:
        """The best placement that fits, or None.

        With everything but experts on the GPUs - or, if ``partial``, with as few whole layers as possible on the host;
        prompts' experts are computed on the host only if their copies fit no GPU.  ``effort``: how long to look.
        ``copies``: only with, or only without, copies of experts for prompts.
        """
        costs = self.costs()
        if costs is None or (self.refused is not None and self.refused.kind in SETTINGS):
            return None
        ways = (False, True) if copies is None else (not copies,)
        if not self.flags.op_offload:
            ways = (False,)
        if effort == "any":
            known = self._hinted(costs, ways, partial)
            if known is not None:
                return known
            if partial:
                return self._any_on_gpus(costs, ways)
        for no_op_offload in ways:
            firsts = range(costs.n_items + 1) if partial else (0,)
            attempt = Attempt(self, costs, no_op_offload, firsts, effort)
            found = attempt.best()
            self.crowded = self.crowded or (attempt.crowded and not partial)
            if found is not None and _uses_gpus(found, costs):
                return found
        found = self._fewest(costs, ways, effort) if partial else None
        return found or self._hinted(costs, ways, partial)

    def _fewest(self, costs: LayerCosts, ways: Sequence[bool], effort: Effort) -> Candidate | None:
        """With the fewest layers on the host, looked for one by one."""
        attempts = [Attempt(self, costs, no_op_offload, range(costs.n_items), effort) for no_op_offload in ways]
        found = [candidate for attempt in attempts if (candidate := attempt.fewest()) is not None]
        return min(found, key=lambda candidate: candidate.layout.first, default=None)

    def _any_on_gpus(self, costs: LayerCosts, ways: Sequence[bool]) -> Candidate | None:
        """Any with layers on the host: the fewest that can be on GPUs, or more.

        More layers on GPUs may fit where fewer do not: if the host lacks room, or since copies of a host layer's
        weights take a little more than its place on another GPU.
        """
        for no_op_offload in ways:
            attempt = Attempt(self, costs, no_op_offload, range(costs.n_items), "any")
            found = attempt.least_on_gpus()
            found = found or Attempt(self, costs, no_op_offload, range(costs.n_items), "good").best()
            if found is None and attempt.crowded:
                found = attempt.fewest()
            if found is not None:
                return found
        return None

    def _hinted(self, costs: LayerCosts, ways: Sequence[bool], partial: bool) -> Candidate | None:
        """A layout that fitted a similar problem, if it fits this one."""
        for layout in self.hints:
            if layout.no_op_offload in ways and (partial or not layout.first):
                args = tuple(layout_args(layout, costs))
                found = self.estimate(args)
                if leaves_margins(found, self.problem.margins):
                    price = LayerPartitioner(costs, self.problem.bandwidths).price(layout)
                    return Candidate(layout, args, found, price)
        return None


def _uses_gpus(found: Candidate, costs: LayerCosts) -> bool:
    return found.layout.first < costs.n_items or costs.first == costs.n_items
