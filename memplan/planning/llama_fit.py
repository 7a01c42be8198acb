"""llama.cpp's own ``--fit``, replayed: what it would place where, so that a plan never puts less on the GPUs.

Follows ``common_params_fit_impl`` (common/fit.cpp, v0.5.0): layers without their experts are handed out from the back,
then made whole from the front, each time by false position on what a load would take. ``--fit`` asks llama.cpp for
that; here an exact estimate says it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

from memplan.planning.fit_bound import Settled, Sizes
from memplan.planning.layer_costs import LayerCosts
from memplan.planning.layout import EVERY_LAYER, HOST, Layout
from memplan.planning.nearest import PLACEMENT
from memplan.planning.overrides import Rule, matched, override_words, write_overrides
from memplan.planning.partition import LayerPartitioner
from memplan.planning.problem import Candidate, gpu_weights
from memplan.planning.search import Search
from memplan.result import Estimate

MOST_ESTIMATES: Final = 48
"""A replay that takes more is given up: ``--fit`` itself may then not end."""

LUCK: Final = 64 << 20
"""Bytes that matter in a compute buffer, and that it may be smaller than was seen: experts are larger by far."""

_WHOLE: Final = "_exps"
_PARTS: Final = {
    "attn": ".ffn_(gate|up|gate_up|down).*",
    "up": ".ffn_(gate|gate_up|down).*",
    "gate": ".ffn_down.*",
    _WHOLE: ".ffn_(up|down|gate_up|gate)_(ch|)exps",
}
"""What of a layer goes elsewhere (``get_overflow_pattern``), by what stays beside the attention."""

_LOST: Final = {lost: pattern for lost, pattern in _PARTS.items() if lost != _WHOLE}

_STOPS: Final = PLACEMENT - {"-dev", "--device", "-mg", "--main-gpu", "-sm", "--split-mode"}


class _GaveUp(Exception):
    """``--fit`` would divide by zero, count below zero or turn in circles, or what it ends with cannot fit."""


@dataclass(frozen=True, slots=True)
class _Share:
    """One GPU's layers (``ngl_t``): ``part`` of ``layers`` are without experts, the first of those without ``lost``."""

    layers: int = 0
    part: int = 0
    lost: str = _WHOLE

    @property
    def full(self) -> int:
        return self.layers - self.part

    def more(self, layers: int, part: int) -> _Share:
        if self.layers + layers < 0 or not 0 <= self.part + part <= self.layers + layers:
            raise _GaveUp
        return replace(self, layers=self.layers + layers, part=self.part + part)


@dataclass(frozen=True, slots=True)
class FitAnswer:
    """What ``--fit`` would load: the layers on GPUs by ``-ngl`` and ``-ts``, what ``-ot`` overrides, and the estimate.

    ``elsewhere``: experts that are not with their layer, and the device (-1: the host).
    """

    layer_words: tuple[str, ...]
    rules: tuple[Rule, ...]
    estimate: Estimate
    counts: tuple[int, ...]
    elsewhere: Mapping[str, int]

    @property
    def args(self) -> tuple[str, ...]:
        """The flags that ask for the same."""
        return (*self.layer_words, *override_words(self.rules))

    @property
    def layers(self) -> int:
        """Layers on GPUs."""
        return sum(self.counts)

    @property
    def weights(self) -> int:
        """Bytes of weights on GPUs."""
        return gpu_weights(self.estimate)

    def candidate(self, search: Search, costs: LayerCosts) -> Candidate:
        """The same as a plan has it."""
        first = costs.n_items - self.layers
        ends = tuple(first + n for n in accumulate(self.counts))
        host = frozenset(name for name, device in self.elsewhere.items() if device < 0)
        moved = {name: device for name, device in self.elsewhere.items() if device >= 0}
        layout = Layout(first, ends, host, moved)
        price = LayerPartitioner(costs, search.problem.bandwidths).price(layout)
        args = self._shorter(costs, first)
        shorter = search.estimate(args)
        if shorter.buffers != self.estimate.buffers:
            return Candidate(layout, self.args, self.estimate, price)
        return Candidate(layout, args, shorter, price)

    def _shorter(self, costs: LayerCosts, first: int) -> tuple[str, ...]:
        """The same flags, layers that are alike folded into one pattern."""
        layers = self.layer_words if first else ("-ngl", str(EVERY_LAYER), *self.layer_words[2:])
        odd = [rule for rule in self.rules if not rule[0].endswith(_PARTS[_WHOLE])]
        rest = [name for name in costs.all_names if name not in matched(odd, costs.all_names)]
        folded = write_overrides(matched([rule for rule in self.rules if rule not in odd], rest), rest)
        return (*layers, *override_words([*odd, *folded]))


def replay_fit(search: Search, costs: LayerCosts, always: bool = True, beat: int = 0) -> FitAnswer | None:
    """What ``--fit`` would place; unless ``always``, None when that is every layer's attention on GPUs.

    None also when it cannot come to ``beat`` bytes of weights, when it would stop at a flag, choose the context itself,
    or not end. It is not said whether it fits.
    """
    flags = search.flags
    if flags.given & _STOPS or flags.split_mode == "row" or not flags.n_ctx:
        return None
    refused = search.refused
    try:
        return _Replay(search, costs, beat).answer(always)
    except _GaveUp:
        return None
    finally:
        search.refused = refused


def fit_sizes(search: Search, costs: LayerCosts, first: int = 0) -> Sizes:
    """The sums that bound what ``--fit`` can place; ``first``: the first layer that it means to have on a GPU."""
    model = search.model
    uncounted = costs.n_items - 1 - model.hparams.n_layer
    return Sizes(costs, model.tensors.tensors, _LOST, range(first, first + uncounted))


class _Replay:
    def __init__(self, search: Search, costs: LayerCosts, beat: int) -> None:
        self.search = search
        self.beat = beat
        self.costs = costs
        hparams = search.model.hparams
        self.n_items = hparams.n_layer + 1
        gpus = [search.problem.rig.gpus[d] for d in costs.devices]
        margins = [search.problem.margins[d] for d in costs.devices]
        self.targets = [gpu.free - margin for gpu, margin in zip(gpus, margins, strict=True)]
        self.last = len(self.targets) - 1
        self.overflow = [HOST] * len(self.targets)
        self.shares = [_Share()] * len(self.targets)
        self.mem: list[int] = []
        self.count = 0

    def answer(self, always: bool) -> FitAnswer | None:
        if self._attention() and not always:
            return None
        first = self.n_items - sum(share.layers for share in self.shares)
        self.sizes = fit_sizes(self.search, self.costs, first)
        if self._most_bytes(0) <= self.beat:
            raise _GaveUp
        if sum(self.targets) > sum(self._ask(["-ot", rf"blk\.\d+{_PARTS[_WHOLE]}={HOST}"])):
            self._experts()
        layers, rules = self._placed(self.shares, self.overflow)
        counts = tuple(share.layers for share in self.shares)
        found = self.search.estimate((*layers, *override_words(rules)))
        return FitAnswer(layers, rules, found, counts, self._elsewhere(rules))

    def _elsewhere(self, rules: Sequence[Rule]) -> dict[str, int]:
        """Where overrides put experts of layers that are on GPUs."""
        costs = self.costs
        first = costs.n_items - sum(share.layers for share in self.shares)
        names = [name for layer in costs.experts[first:] for e in layer for name in e.names]
        numbers = {name: i for i, name in enumerate(costs.names)}
        return {name: numbers.get(buffer, -1) for name, buffer in matched(rules, names).items()}

    def _ask(self, args: Sequence[str]) -> list[int]:
        """Bytes that a load would take of each GPU."""
        self.count += 1
        found = self.search.estimate(args)
        if found.refused is not None or self.count > MOST_ESTIMATES:
            raise _GaveUp
        return [found.devices[d].allocated for d in self.costs.devices]

    def _load(self, shares: Sequence[_Share], overflow: Sequence[str]) -> list[int]:
        return self._ask(self._args(shares, overflow))

    def _args(self, shares: Sequence[_Share], overflow: Sequence[str]) -> tuple[str, ...]:
        layers, rules = self._placed(shares, overflow)
        return (*layers, *override_words(rules))

    def _placed(self, shares: Sequence[_Share], overflow: Sequence[str]) -> tuple[tuple[str, ...], tuple[Rule, ...]]:
        """The flags (``set_ngl_tensor_split_tbo``): of layers, and the rules of ``-ot``."""
        total = sum(share.layers for share in shares)
        layers = ["-ngl", str(total)]
        if self.last and total:
            layers += ["-ts", ",".join(str(share.layers) for share in shares)]
        rules: list[Rule] = []
        il = self.n_items - total
        for share, elsewhere in zip(shares, overflow, strict=True):
            il += share.full
            if share.part:
                rules.append((rf"blk\.{il}{_PARTS[share.lost]}", elsewhere))
                others = "|".join(map(str, range(il + 1, il + share.part)))
                rules += [(rf"blk\.({others}){_PARTS[_WHOLE]}", HOST)] if others else []
            il += share.part
        return tuple(layers), tuple(rules)

    def _attention(self) -> bool:
        """Hand out layers without experts, from the last GPU to the first; whether none is left."""
        for i in range(self.last, -1, -1):
            free = self.n_items - sum(share.layers for share in self.shares[i + 1 :])
            if not free:
                return True
            high = list(self.shares)
            high[i] = replace(high[i], layers=free, part=free - (i == self.last))
            mem_high = self._load(high, self.overflow)
            if mem_high[i] <= self.targets[i]:
                self.shares, self.mem = high, mem_high
                return True
            if not self.mem:
                self.mem = self._load(self.shares, self.overflow)
                if any(used > target for used, target in zip(self.mem, self.targets, strict=True)):
                    raise _GaveUp  # not even without a layer
            delta = high[i].layers - self.shares[i].layers
            while delta > 1:
                step = self._step(delta, i, mem_high)
                output = i == self.last and not self.shares[i].part  # it cannot be in part
                test = list(self.shares)
                test[i] = test[i].more(step, step - output)
                mem = self._load(test, self.overflow)
                if mem[i] <= self.targets[i]:
                    self.shares, self.mem = test, mem
                else:
                    high, mem_high = test, mem
                delta = high[i].layers - self.shares[i].layers
            if i and self.mem[0] > self.targets[0]:
                raise _GaveUp  # copies of experts alone are too large for the first GPU
        return False

    def _step(self, delta: int, i: int, mem_high: Sequence[int]) -> int:
        """False position, in C's integers."""
        above, below = mem_high[i] - self.mem[i], delta * (self.targets[i] - self.mem[i])
        if not above:
            raise _GaveUp
        step = abs(below) // abs(above) * (1 if (below < 0) == (above < 0) else -1)
        return min(max(step % (1 << 32), 1), delta - 1)

    def _experts(self) -> None:
        """Make layers whole, from the first GPU to the last; then one more in part."""
        start = next((i for i, share in enumerate(self.shares) if share.layers), self.last + 1)
        i = 0
        while i <= start <= self.last:
            if i and self._most_bytes(i) <= self.beat:
                raise _GaveUp
            start = self._fill(i, start)
            if start > self.last or self._most_bytes(i + 1, filled=True) <= self.beat:
                raise _GaveUp
            if self.shares[start].layers > (i == self.last):
                start = self._one_more(i, start)
            i += 1

    def _most_bytes(self, done: int, filled: bool = False) -> int:
        """More weights than this are not to be had, when the first GPUs are ``done``.

        ``filled``: the last of them may still get one more layer in part.
        """
        found = self.search.estimate(self._args(self.shares, self.overflow))
        devices = [found.devices[d] for d in self.costs.devices]
        computes = self.search.least_computes(found)
        settled = [
            Settled(share.layers, share.full, share.lost if share.part and share.lost != _WHOLE else "")
            for share in self.shares
        ]
        rooms = [target - compute + LUCK for target, compute in zip(self.targets, computes, strict=True)]
        first = self.n_items - sum(share.layers for share in self.shares)
        left = rooms[done - 1] - devices[done - 1].model - devices[done - 1].context if filled else None
        if self.sizes.absent:  # GPUs hold layers that the patterns mean for another: only all rooms together bound them
            done, rooms, left = 0, [sum(rooms)], None
        more = self.sizes.most(first, settled[:done], rooms[done:], left) - self.sizes.placed(first, settled)
        return sum(d.model for d in devices) + more

    def _fill(self, i: int, start: int) -> int:
        high = list(self.shares)
        for j in range(start, self.last + 1):
            moved = high[j].layers - (j == self.last)
            high[i] = replace(high[i], layers=high[i].layers + moved)
            high[j] = replace(high[j], layers=high[j].layers - moved, part=0)
        mem_high = self._load(high, self.overflow)
        if mem_high[i] <= self.targets[i]:
            self.shares, self.mem = high, mem_high
            return self.last
        delta = high[i].full - self.shares[i].full
        while delta > 1:
            step = self._step(delta, i, mem_high)
            test, at = self._whole(i, start, step)
            mem = self._load(test, self.overflow)
            if mem[i] <= self.targets[i]:
                self.shares, self.mem, start = test, mem, at
            else:
                high, mem_high = test, mem
            delta = high[i].full - self.shares[i].full
        if delta < 0:
            raise _GaveUp
        return start

    def _whole(self, i: int, start: int, step: int) -> tuple[list[_Share], int]:
        """``step`` layers from ``start`` on made whole and given to a GPU; and where layers without experts begin."""
        test = list(self.shares)
        done, at = 0, start
        while at <= self.last:
            count = min(step - done, test[at].part)
            test[at] = test[at].more(-count, -count)
            test[i] = test[i].more(count, 0)
            done += count
            if test[at].part:
                break
            at += 1
        return test, at

    def _one_more(self, i: int, start: int) -> int:
        test, at = list(self.shares), start
        test[at] = test[at].more(-1, -1)
        test[i] = replace(test[i], layers=test[i].layers + 1, part=test[i].part + 1)
        at += test[at].part == 0
        overflow = list(self.overflow)
        if i < self.last:
            overflow[i] = self.costs.names[i + 1]

        def take(lost: str) -> bool:
            test[i] = replace(test[i], lost=lost)
            mem = self._load(test, overflow)
            fits = mem[i] < self.targets[i] and (i == self.last or mem[i + 1] < self.targets[i + 1])
            if fits:
                self.shares, self.mem, self.overflow = list(test), mem, list(overflow)
            return fits

        taken = take("up")
        taken = take("gate" if taken else "attn") or taken
        return at if taken else start
