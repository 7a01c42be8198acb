"""Which experts of a stretch of layers stay on the host, when the rest must fit into what a GPU has left.

Sets of reachable sums are kept as the bits of one integer: bit ``n`` is set when some choice of experts has ``n`` units
of bytes together. Adding an expert is a shift, so the best sum of a stretch is found exactly and in microseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from memplan.planning.layer_costs import Expert

MIN_UNIT = 1 << 20
"""Experts whose sizes have little in common are rounded up to whole MiB."""

MOST_BITS = 1 << 29
"""Of all sets together: where layers are hundreds and large, sizes are rounded up to more than that."""

TOLERANCE = 32 << 20
"""Bytes that a choice may cost more than the cheapest when it makes a simpler pattern."""

ALIKE = 16
"""Choices of about the same price that are looked at."""

_Options = list[tuple[int, list[Expert]]]


@dataclass(frozen=True, slots=True)
class Sums:
    """What the experts of a stretch of layers take, in units, and what of it may stay on the host.

    ``total``: all of them.  ``host``: bit n: a choice of n units.  ``most``: the most that one layer has on the host.
    """

    total: int
    host: int
    most: int

    def least_host(self, room: int) -> int:
        """The fewest units on the host that leave at most ``room`` units on the GPU; -1 when none is enough."""
        need = self.total - room
        if need <= 0:
            return 0
        reach = self.host >> need
        if not reach:
            return -1
        return need + (reach & -reach).bit_length() - 1


class SubsetSums:
    """The experts that may be moved, by layer, in a common unit; ``layers[i]``: (kind, units) of each."""

    def __init__(self, experts: Sequence[Sequence[Expert]]) -> None:
        sizes = {e.size for layer in experts for e in layer}
        unit = gcd(*sizes) if sizes else 1
        # each stretch of layers has a set, on average of half as many bits as the longest
        bits = sum(e.size for layer in experts for e in layer) * len(experts) ** 2 // 4
        self.unit = max(unit, MIN_UNIT, -(-bits // MOST_BITS))
        self.layers = [[(e.kind, -(-e.size // self.unit)) for e in layer] for layer in experts]
        self.experts = experts
        self._sums: dict[frozenset[str], list[list[Sums]]] = {}

    def sums(self, kinds: frozenset[str]) -> list[list[Sums]]:
        """``sums[a][b - a]``: of the layers from a up to b, when experts of ``kinds`` may stay on the host."""
        known = self._sums.get(kinds)
        if known is None:
            known = self._sums[kinds] = [self._from(a, kinds) for a in range(len(self.layers) + 1)]
        return known

    def _from(self, a: int, kinds: frozenset[str]) -> list[Sums]:
        total, host, most = 0, 1, 0
        sums = [Sums(total, host, most)]
        for layer in self.layers[a:]:
            own = 0
            for kind, units in layer:
                total += units
                if kind in kinds:
                    host |= host << units
                    own += units
            most = max(most, own)
            sums.append(Sums(total, host, most))
        return sums

    def choose(self, order: Sequence[int], kinds: frozenset[str], need: int, layer_cost: float) -> list[Expert]:
        """Experts of some layers with at least ``need`` units together, the cheapest choice.

        A choice costs its units, and ``layer_cost`` for each layer that it touches. Layers that are whole on the host
        lie together at the end of ``order``. Empty when nothing has to stay on the host, or not enough can.
        """
        if need <= 0:
            return []
        options = [self._options(il, kinds) for il in order]
        # reach[i][n]: sums of the first i layers of the order with n of them on the host
        reach: list[list[int]] = [[1]]
        for sizes in options:
            before = reach[-1]
            after = [*before, 0]
            for n, bits in enumerate(before):
                for units, _ in sizes:
                    after[n + 1] |= bits << units
            reach.append(after)
        found: list[tuple[float, int, int]] = []
        for count, bits in enumerate(reach[-1]):
            enough = bits >> need
            for _ in range(ALIKE):
                if not enough:
                    break
                units = need + (enough & -enough).bit_length() - 1
                found.append((units + layer_cost * count, count, units))
                enough &= enough - 1
        if not found:
            return []
        limit = min(found)[0] + TOLERANCE / self.unit
        alike = [choice for choice in sorted(found) if choice[0] <= limit][:ALIKE]
        ways = [(self._walk(options, reach, count, units), price) for price, count, units in alike]
        return min(ways, key=lambda way: (_pieces(way[0]), way[1]))[0]

    def _walk(
        self, options: Sequence[_Options], reach: Sequence[Sequence[int]], count: int, units: int
    ) -> list[Expert]:
        """Experts of ``count`` layers with ``units`` units together, the last layers of the order first."""
        chosen: list[Expert] = []
        for i in range(len(options) - 1, -1, -1):
            if count == 0:
                break
            for size, which in options[i]:
                if size <= units and reach[i][count - 1] >> (units - size) & 1:
                    chosen += which
                    units -= size
                    count -= 1
                    break
        return chosen

    def _options(self, il: int, kinds: frozenset[str]) -> _Options:
        """What of a layer may be on the host, the most first; never nothing."""
        free = [(units, e) for (kind, units), e in zip(self.layers[il], self.experts[il], strict=True) if kind in kinds]
        options: dict[int, list[Expert]] = {}
        for mask in range((1 << len(free)) - 1, 0, -1):
            subset = [free[i] for i in range(len(free)) if mask >> i & 1]
            options.setdefault(sum(units for units, _ in subset), [e for _, e in subset])
        return sorted(options.items(), key=lambda option: -option[0])


def _pieces(chosen: Sequence[Expert]) -> int:
    """In how many pieces a pattern would have to name these experts: stretches of layers with the same kinds."""
    kinds: dict[int, set[str]] = {}
    for e in chosen:
        kinds.setdefault(e.layer, set()).add(e.kind)
    return sum(kinds.get(layer - 1) != of for layer, of in kinds.items())
