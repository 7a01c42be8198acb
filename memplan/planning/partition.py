"""Where one GPU's layers end and the next one's begin: dynamic programming over layers and GPUs.

llama.cpp gives each GPU a contiguous range of layers. For given rooms (what a GPU has for weights and caches, once its
margin and compute buffer are taken off) the best ranges, and the best experts to leave on the host, are found exactly,
up to the price of layers that are split between GPU and host, which is estimated here and counted in
``SubsetSums.choose``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from memplan.planning.layer_costs import Expert, LayerCosts
from memplan.planning.layout import Layout
from memplan.planning.speed import Bandwidths
from memplan.planning.subset_sums import SubsetSums

HOST_LAYER_MS = 1e6
"""Price of a layer whose attention is on the host: more than anything else that a plan can save."""

_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Kinds:
    """The kinds of experts that may stay on the host: of the first GPU's layers, and of all others'.

    Experts on the host are copied to the first GPU for prompts (``ggml_backend_sched_backend_id_from_cur``, v0.5.0).
    Which may be copied decides how many copies its compute buffer holds at once.
    """

    first: frozenset[str]
    rest: frozenset[str]

    def of(self, device: int) -> frozenset[str]:
        """The kinds for one GPU's layers."""
        return self.rest if device else self.first


@dataclass(frozen=True, slots=True)
class Partition:
    """A layout, and the milliseconds a token that its partition was found for."""

    cost: float
    layout: Layout


class LayerPartitioner:
    """Cuts layers at what they cost."""

    def __init__(self, costs: LayerCosts, bandwidths: Bandwidths) -> None:
        self.costs = costs
        self.subsets = SubsetSums(costs.experts)
        self.speeds = bandwidths
        self._dense = costs.dense_sums()
        self._read = costs.read_sums()
        unit_bytes = self.subsets.unit * costs.used_share
        self._host_unit = bandwidths.host_ms(unit_bytes)
        self._gpu_unit = [bandwidths.gpu_ms(d, unit_bytes) for d in costs.devices]
        self._read_ms = [bandwidths.gpu_ms(d, 1.0) for d in costs.devices]
        self._change_ms = [bandwidths.change_ms(d) for d in costs.devices]

    def partition(
        self, rooms: Sequence[int], kinds: Kinds, firsts: Iterable[int] = (0,), last: bool = False
    ) -> Partition | None:
        """The best layout in which every GPU's weights and caches fit its room; None when there is none.

        ``firsts``: how many of the first layers may be on the host altogether, the fewer the better.  ``last``: whether
        the last of the first GPU's layers keep their experts, in place of the first ones.
        """
        costs = self.costs
        n = costs.n_items
        if costs.fixed_homes is not None:
            return self._fixed(rooms, kinds, costs.fixed_homes, last)
        starts = {f: f * HOST_LAYER_MS for f in (firsts if costs.first is None else (costs.first,))}
        best = [starts.get(f, _NEVER) for f in range(n + 1)]
        came: list[list[int]] = []
        tables: dict[tuple[object, ...], list[list[float]]] = {}
        for device in range(len(costs.devices)):
            key = (rooms[device], self._gpu_unit[device], self._change_ms[device], kinds.of(device))
            table = tables.get(key)
            if table is None:
                table = tables[key] = self._table(device, rooms[device], kinds.of(device))
            after = list(best)
            origin = list(range(n + 1))
            for a, start in enumerate(best):
                if start == _NEVER:
                    continue
                for length, cost in enumerate(table[a], 1):
                    total = start + cost
                    if total < after[a + length]:
                        after[a + length] = total
                        origin[a + length] = a
            best = after
            came.append(origin)
        if best[n] == _NEVER:
            return None
        ends = [n]
        for origin in reversed(came):
            ends.append(origin[ends[-1]])
        ends.reverse()
        return self._finish(best[n], ends[0], tuple(ends[1:]), rooms, kinds, last)

    def price(self, layout: Layout) -> float:
        """Milliseconds a token of a layout, in the terms of ``partition``; what the user has placed is not in it."""
        total = layout.first * HOST_LAYER_MS + self.reading(layout)
        return total + sum(self.changes(layout))

    def changes(self, layout: Layout) -> Iterator[float]:
        """Milliseconds of each change of device: from GPU to GPU, and to experts elsewhere and back."""
        devices, before = self.costs.devices, -1
        for device, (a, b) in zip(devices, layout.ranges(), strict=True):
            if b > a:
                yield self.speeds.change_ms(before, device)
                before = device
        for il, home in enumerate(layout.homes()):
            if il >= layout.first:
                elsewhere = {where for e in self.costs.experts[il] if (where := layout.place(e, home)) != home}
                for where in elsewhere:
                    ms = self.speeds.change_ms(devices[home], -1 if where < 0 else devices[where])
                    yield from (ms, ms)

    def reading(self, layout: Layout) -> float:
        """Milliseconds to read what a token needs, without what the user has placed."""
        total = self.speeds.host_ms(self._read[layout.first])
        for device, (a, b) in enumerate(layout.ranges()):
            total += (self._read[b] - self._read[a]) * self._read_ms[device]
        for layer, home in zip(self.costs.experts, layout.homes(), strict=True):
            for e in layer:
                where = layout.place(e, home)
                nbytes = e.size * self.costs.used_share
                total += self.speeds.host_ms(nbytes) if where < 0 else nbytes * self._read_ms[where]
        return total

    def _fixed(self, rooms: Sequence[int], kinds: Kinds, homes: Sequence[int], last: bool) -> Partition | None:
        first = sum(home < 0 for home in homes)
        ends = [first + sum(0 <= home <= device for home in homes) for device in range(len(rooms))]
        total, a = 0.0, first
        for device, b in enumerate(ends):
            if b > a:
                costs = self._row(device, rooms[device], kinds.of(device), a)
                if len(costs) < b - a:
                    return None
                total += costs[b - a - 1]
            a = b
        return self._finish(total, first, tuple(ends), rooms, kinds, last)

    def _table(self, device: int, room: int, kinds: frozenset[str]) -> list[list[float]]:
        """``table[a][b - a - 1]``: milliseconds a token when the layers from a up to b are this GPU's."""
        n = self.costs.n_items
        return [self._row(device, room, kinds, a) for a in range(n)] + [[]]

    def _row(self, device: int, room: int, kinds: frozenset[str], a: int) -> list[float]:
        sums = self.subsets.sums(kinds)[a]
        dense, read, unit = self._dense, self._read, self.subsets.unit
        gpu_unit, host_unit, read_ms = self._gpu_unit[device], self._host_unit, self._read_ms[device]
        change = self._change_ms[device]
        row = []
        for b in range(a + 1, self.costs.n_items + 1):
            left = room - dense[b] + dense[a]
            if left < 0:
                break
            s = sums[b - a]
            host = s.least_host(left // unit)
            if host < 0:
                break
            cost = change + (read[b] - read[a]) * read_ms + (s.total - host) * gpu_unit
            if host:
                cost += host * host_unit + 2 * change * -(-host // s.most)
            row.append(cost)
        return row

    def _finish(
        self, cost: float, first: int, ends: tuple[int, ...], rooms: Sequence[int], kinds: Kinds, last: bool
    ) -> Partition:
        """The layout of a partition: each GPU's experts are chosen; neighbours keep theirs on the host side by side."""
        host: list[Expert] = []
        a = first
        for device, b in enumerate(ends):
            if b > a:
                left = (rooms[device] - self._dense[b] + self._dense[a]) // self.subsets.unit
                total = self.subsets.sums(kinds.of(device))[a][b - a].total
                layer_cost = 2 * self._change_ms[device] / (self._host_unit or 1.0)
                order = range(b - 1, a - 1, -1) if last else range(a, b)
                host += self.subsets.choose(order, kinds.of(device), total - left, layer_cost)
                last = not last
            a = b
        return Partition(cost, Layout(first, ends, frozenset(name for e in host for name in e.names)))
