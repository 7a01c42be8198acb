"""One sort of placement, searched: partitions guessed by sums, each proved by an exact estimate.

Weights and caches of a placement are sums, its compute buffers are not. So the search takes a guess at every GPU's
compute buffer, finds the best placement for the rooms that are left, asks the estimator, and takes its answer for the
next guess, until a placement fits and no better one is in sight. It draws nothing at random.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from memplan.planning.all_on_host import ROUNDS, AllExpertsOnHost
from memplan.planning.estimates import Estimates
from memplan.planning.layer_costs import LayerCosts
from memplan.planning.layout import Layout, layout_args
from memplan.planning.partition import Kinds, LayerPartitioner, Partition
from memplan.planning.problem import Candidate, fits_gpus
from memplan.result import Estimate

SETTINGS = frozenset(
    {
        "k-v-types-differ",
        "quantized-v-needs-flash-attention",
        "tensors-not-of-this-release",
        "architecture-not-of-this-release",
    }
)
"""Refusals that no placement mends."""

WORTH = 0.9
"""Share of the time that a placement may take in place of llama.cpp's own split, where that fits with every expert."""

Effort = Literal["any", "good", "best"]
"""Any placement that fits, a good one, or the best of all ways to choose experts."""

CUSHIONS = (0, 128 << 20, 512 << 20)
"""Bytes to leave for the compute of experts of other GPUs' layers, tried in turn."""

_NOTHING: frozenset[str] = frozenset()


class Attempt:
    """The search among placements of one sort.

    ``found``: the best whose GPUs leave their margins.  ``fine``: the best of those that the host has room for, too.
    ``crowded``: whether it had no room for one.  ``loose``: whether such are looked at as well.
    """

    def __init__(
        self,
        search: Estimates,
        costs: LayerCosts,
        no_op_offload: bool,
        firsts: Iterable[int] = (0,),
        effort: Effort = "best",
    ) -> None:
        self.effort = effort
        self.search = search
        self.costs = costs
        self.no_op_offload = no_op_offload
        self.firsts = tuple(firsts)
        problem = search.problem
        self.partitioner = LayerPartitioner(costs, problem.bandwidths)
        gpus = [problem.rig.gpus[d] for d in costs.devices]
        margins = [problem.margins[d] for d in costs.devices]
        self.before = [g.free - m - p for g, m, p in zip(gpus, margins, costs.pinned, strict=True)]
        self.copies = not no_op_offload and search.flags.op_offload
        self.found: Candidate | None = None
        self.fine: Candidate | None = None
        self.crowded = self.loose = False

    def best(self) -> Candidate | None:
        """The best that fits.

        Where only the host is short, all is looked for once more as if it were not: what has more bytes on GPUs than
        the fastest, or is on the way there, may be what the host has room for.
        """
        found = self._best()
        if found is None and self.crowded:
            self.found, self.loose = None, True
            found = self._best()
        return found

    def _best(self) -> Candidate | None:
        if self.effort == "any":
            self._any()
            if self.found is None or self.fine is not None or self._hopeless(self.found):
                return self._settled()
        default = replace(self.search.default_layout(self.costs), no_op_offload=self.no_op_offload)
        start = self._ask(default)
        if start.refused is not None and start.refused.kind in SETTINGS:
            return None
        computes = self._computes(start)
        if self.firsts == (0,) and not self.no_op_offload:
            self._all_on_gpus(default, start, computes)
        if self.found is None or self._tight():
            self._with_host(computes)
            if self.found is None:  # copies of inputs, or of other experts, may have made the first guess too large
                self._any()
                if self.found is not None and self._thorough():
                    self._with_host(self._computes(self.found.estimate))
            if self.found is not None:
                self._move(self.found)
        return self._settled()

    def fewest(self) -> Candidate | None:
        """The best with as few layers on the host as can be, where it is not to be guessed how few those are."""
        self.found, self.loose = None, True  # the more there are on GPUs, the less the host has to hold
        if self._all_on_host().fewest() and self.found is not None and self.effort != "any":
            self._with_host(self._computes(self.found.estimate))
            self._move(self.found)
        return self._settled()

    def least_on_gpus(self) -> Candidate | None:
        """The output layer alone on a GPU: the first thing to fit where little does."""
        self._all_on_host().any((self.costs.n_items - 1,))
        return self._settled()

    def _tight(self) -> bool:
        """Whether what was found leaves more to the host than it can hold: then every byte on a GPU counts."""
        return self.found is not None and self.found.estimate.host_lacks > 0

    def _hopeless(self, found: Candidate) -> bool:
        """Whether the host lacks more than the GPUs have left, and than smaller copies of experts could free."""
        margins, devices = self.search.problem.margins, found.estimate.devices
        spare = sum(devices[d].left - margins[d] for d in self.costs.devices)
        if self.copies:
            every = self.costs.kinds
            spare += devices[self.costs.devices[0]].compute - self._least_copy(Kinds(every, every))
        return found.estimate.host_lacks > spare

    def _thorough(self) -> bool:
        return self.effort == "best" or self._tight()

    def _settled(self) -> Candidate | None:
        """What was found, if the host can hold its share; else what it can."""
        if self._tight():
            self.found = self.fine
        return self.found

    def _any(self) -> None:
        every = self.costs.kinds
        self._refine(Kinds(every, every), [0] * len(self.before), enough=True)
        if self.found is None and not self.crowded:
            self._all_on_host().any(self.firsts)

    def _all_on_host(self) -> AllExpertsOnHost:
        bandwidths = self.search.problem.bandwidths
        return AllExpertsOnHost(self.costs, bandwidths, self.before, self.no_op_offload, self._ask, self._take)

    def _ask(self, layout: Layout) -> Estimate:
        return self.search.estimate(layout_args(layout, self.costs))

    def _computes(self, found: Estimate) -> list[int]:
        return [found.devices[d].working for d in self.costs.devices]

    def _candidate(self, layout: Layout, found: Estimate) -> Candidate | None:
        """The layout, if it leaves the margins; whether the host has room is for ``_settled``."""
        if not fits_gpus(found, self.search.problem.margins):
            return None
        new = Candidate(layout, tuple(layout_args(layout, self.costs)), found, self.partitioner.price(layout))
        if found.host_lacks:
            self.crowded = True
            if not self.loose:
                return None
        elif self.fine is None or _rank(new) < _rank(self.fine):
            self.fine = new
        return new

    def _take(self, layout: Layout, found: Estimate) -> bool:
        """Keep a layout that leaves the margins, if it is better than what was found before."""
        new = self._candidate(layout, found)
        if new is None:
            return False
        old = self.found
        if old is None or _rank(new) < _rank(old):
            self.found = new
        return True

    def _all_on_gpus(self, default: Layout, start: Estimate, computes: Sequence[int]) -> None:
        """Layouts without an expert on the host; llama.cpp's own split unless another pays."""
        none = Kinds(_NOTHING, _NOTHING)
        self._take(default, start)
        own = self.found
        self._refine(none, computes)
        if own is not None and self.found is not None and self.found.price > WORTH * own.price:
            self.found = own
        if self.found is None and start.pipeline_parallel:
            self._refine(none, [0] * len(computes), one_copy=True)

    def _with_host(self, computes: Sequence[int]) -> None:
        """Layouts with experts on the host, the most promising kinds first."""
        every = self.costs.kinds
        ways = [Kinds(every, every)]
        if self.copies:
            for kind in ("down", "up"):
                fewer = every - {kind}
                ways += [Kinds(every, fewer), Kinds(fewer, fewer)]
        ways = list(dict.fromkeys(ways))
        bounds = []
        for number, kinds in enumerate(ways):
            partition = self._partition([self._least_copy(kinds), *computes[1:]] if self.copies else computes, kinds)
            if partition is not None:
                bounds.append((partition.cost, number))
        for bound, number in sorted(bounds):
            if self.found is not None and bound >= self.found.price:
                continue
            kinds = ways[number]
            guess = list(computes)
            if self.found is not None:
                guess = self._computes(self.found.estimate)
            if self.copies:
                guess[0] = self._least_copy(kinds)
            self._refine(kinds, guess)
            if self.found is not None and not self._thorough():
                return

        if self.copies and self.found is not None and self.found.layout.host:
            # other holes in the first GPU's compute buffer: copies of some layers' experts make it larger
            self._refine(ways[0], [self._least_copy(ways[0]), *self._computes(self.found.estimate)[1:]], last=True)

    def _least_copy(self, kinds: Kinds) -> int:
        """Bytes that the first GPU's compute buffer holds at least, when such experts are copied to it."""
        sizes = [e.size for layer in self.costs.experts for e in layer if e.kind in kinds.first | kinds.rest]
        return min(sizes, default=0)

    def _partition(self, computes: Sequence[int], kinds: Kinds, last: bool = False) -> Partition | None:
        rooms = [before - compute for before, compute in zip(self.before, computes, strict=True)]
        if self.copies and kinds.first | kinds.rest and rooms[0] < 0:
            return None
        return self.partitioner.partition(rooms, kinds, self.firsts, last)

    def _refine(
        self, kinds: Kinds, computes: Sequence[int], one_copy: bool = False, enough: bool = False, last: bool = False
    ) -> None:
        """Partition, ask, and partition again with the compute buffers of the answer, until nothing better is in sight.

        ``enough``: the first that fits will do.  ``last``: as in ``LayerPartitioner.partition``.
        """
        computes = list(computes)
        raised: set[int] = set()
        for _ in range(ROUNDS):
            partition = self._partition(computes, kinds, last)
            if partition is None or (self.found is not None and partition.cost >= self.found.price):
                return
            layout = replace(partition.layout, one_copy=one_copy, no_op_offload=self.no_op_offload)
            answer = self._ask(layout)
            if answer.refused is not None:
                return
            fits = self._take(layout, answer)
            if fits and enough and not self._tight():
                return
            lowered = False
            for d, (compute, (a, b)) in enumerate(zip(self._computes(answer), layout.ranges(), strict=True)):
                if compute > computes[d]:
                    computes[d] = compute
                    raised.add(d)
                elif compute < computes[d] and d not in raised and (b > a or (d == 0 and layout.host)):
                    computes[d] = compute
                    lowered = True
            if fits and not lowered:
                return

    def _move(self, found: Candidate) -> None:
        """Fill what is left of a GPU with other GPUs' experts from the host, if any has room for one."""
        margins = self.search.problem.margins
        for cushion in CUSHIONS:
            left = [max(0, found.estimate.devices[d].left - margins[d] - cushion) for d in self.costs.devices]
            moved = dict(found.layout.moved)
            homes = found.layout.homes()
            host = [e for layer in self.costs.experts for e in layer if e.names[0] in found.layout.host]
            for e in sorted(host, key=lambda e: (-e.size, e.layer, e.kind)):
                target = max((d for d in range(len(left)) if d != homes[e.layer]), key=lambda d: left[d], default=-1)
                if target >= 0 and left[target] >= e.size:
                    left[target] -= e.size
                    moved.update((name, target) for name in e.names)
            if moved == found.layout.moved:
                return
            layout = replace(found.layout, moved=moved, host=found.layout.host - moved.keys())
            if self.partitioner.price(layout) >= found.price:
                return
            if self._take(layout, self._ask(layout)):
                return


def _rank(c: Candidate) -> tuple[float, int, int]:
    """The order of candidates: faster, then fewer compute bytes, then shorter flags."""
    return round(c.price, 6), c.compute, sum(map(len, c.args))
