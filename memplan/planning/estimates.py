"""What is known of a problem: what may be placed, and the estimates that were asked for, each remembered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memplan.estimator import answer, model_of, workshop_of
from memplan.llama.flags import check_devices
from memplan.llama.placement import place_layers, split_points
from memplan.llama.refusals import Refusal
from memplan.planning.layer_costs import LayerCosts, layer_costs_of
from memplan.planning.layout import Layout, layout_args
from memplan.planning.problem import Problem
from memplan.result import Estimate


class Estimates:
    """One problem's estimates.

    ``refused``: why llama.cpp would not start, when an estimate said so.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.flags = problem.flags
        check_devices(self.flags, problem.rig)
        self.model = model_of(problem.question)
        self.machine = workshop_of(problem.question).machine
        self.refused: Refusal | None = None
        self.estimates = 0
        self._known: dict[tuple[str, ...], Estimate] = {}
        self._costs: LayerCosts | None = None

    def estimate(self, args: Sequence[str]) -> Estimate:
        """The exact estimate of the user's flags and ``args``."""
        key = tuple(args)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = answer(self.problem.question.with_words(*key)).estimate
            self.estimates += 1
            if known.refused is not None:
                self.refused = known.refused
        return known

    def remember(self, args: Sequence[str], known: Estimate) -> None:
        """Take ``known`` for the estimate of the user's flags and ``args``."""
        self._known[tuple(args)] = known

    @property
    def approximate(self) -> str:
        """Why answers are not exact, empty when they are: the same for all of them, whatever is placed where."""
        known = next(iter(self._known.values()), None)
        return (self.estimate(()) if known is None else known).approximate

    def closest(self) -> tuple[tuple[str, ...], Estimate] | None:
        """Of what was asked for and uses a GPU, the flags and estimate that are over by the least, on GPUs first.

        None if all are refused.

        One with every expert on the host is among them.
        """
        margins = self.problem.margins
        costs = self.costs()
        if costs is not None:
            every = frozenset(name for layer in costs.experts for e in layer for name in e.names)
            self.estimate(layout_args(replace(self.default_layout(costs), host=every), costs))

        def short(known: tuple[tuple[str, ...], Estimate]) -> tuple[int, int, int]:
            found = known[1]
            over = [m - d.left for d, m in zip(found.devices, margins, strict=True) if d.used]
            return sum(max(0, lacking) for lacking in over), found.host_lacks, max(over)

        answers = [(args, e) for args, e in self._known.items() if not e.refused and any(d.used for d in e.devices)]
        return min(answers, key=short, default=None)

    def costs(self) -> LayerCosts | None:
        """What may be placed; None when llama.cpp would not load the model (see ``refused``), or no GPU is in use."""
        if self._costs is None:
            opened = layer_costs_of(self.problem.question)
            if isinstance(opened, Refusal):
                self.refused = opened
            self._costs = opened if isinstance(opened, LayerCosts) else None
        return self._costs

    def default_layout(self, costs: LayerCosts) -> Layout:
        """llama.cpp's own split, everything on the GPUs as far as the user's flags let it."""
        n = costs.n_items
        homes = costs.fixed_homes
        if homes is None:
            devices = [self.machine.gpus[d] for d in costs.devices]
            n_gpu_layers = n - (costs.first or 0)
            homes = tuple(place_layers(n - 1, n_gpu_layers, devices, split_points(devices, ())))
        first = sum(home < 0 for home in homes)
        ends = tuple(first + sum(0 <= home <= d for home in homes) for d in range(len(costs.devices)))
        return Layout(first, ends)
