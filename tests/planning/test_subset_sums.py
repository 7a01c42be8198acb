from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan.planning import subset_sums
from memplan.planning.layer_costs import Expert
from memplan.planning.subset_sums import SubsetSums
from tests.planning.rigs import KINDS, MIB, made_up

layers = st.lists(st.tuples(*[st.sampled_from([3, 4, 5, 9])] * 3), min_size=1, max_size=4)
may_stay = st.sampled_from([frozenset(KINDS), frozenset({"gate", "up"}), frozenset({"down"}), frozenset[str]()])


def subsets(sizes: list[tuple[int, ...]], kinds: frozenset[str]) -> list[tuple[int, int]]:
    """(MiB, layers touched) of every choice of experts for the host."""
    found = []
    for choice in product([False, True], repeat=3 * len(sizes)):
        picked = [(i // 3, KINDS[i % 3]) for i, on_host in enumerate(choice) if on_host]
        if all(kind in kinds for _, kind in picked):
            found.append((sum(sizes[il][KINDS.index(k)] for il, k in picked), len({il for il, _ in picked})))
    return found


def made(sizes: list[tuple[int, ...]]) -> SubsetSums:
    return SubsetSums(made_up([1] * len(sizes), sizes).experts)


def total(chosen: list[Expert]) -> int:
    return sum(e.size for e in chosen) // MIB


@settings(max_examples=60, deadline=None)
@given(layers, may_stay, st.integers(0, 60))
def test_the_least_on_the_host_is_the_least(sizes: list[tuple[int, ...]], kinds: frozenset[str], room: int) -> None:
    sums_of = made(sizes)
    sums = sums_of.sums(kinds)[0][len(sizes)]
    need = sum(map(sum, sizes)) - room
    least = min((mib for mib, _ in subsets(sizes, kinds) if mib >= need), default=None)
    found = sums.least_host(room * MIB // sums_of.unit)
    assert (found * sums_of.unit // MIB if found >= 0 else None) == (least if need > 0 else 0)


@settings(max_examples=60, deadline=None)
@given(layers, may_stay, st.integers(1, 40), st.sampled_from([0.0, 2.0, 7.0]))
def test_the_choice_is_the_cheapest(
    sizes: list[tuple[int, ...]], kinds: frozenset[str], need: int, layer_cost: float
) -> None:
    sums_of = made(sizes)
    unit = sums_of.unit // MIB
    chosen = sums_of.choose(range(len(sizes)), kinds, -(-need // unit), layer_cost / unit)
    possible = [mib + layer_cost * n for mib, n in subsets(sizes, kinds) if mib >= need]
    if not possible:
        assert chosen == []
        return
    assert total(chosen) >= need
    assert {e.kind for e in chosen} <= kinds
    # a simpler pattern may cost up to the tolerance, 32 MiB; these sizes are too small to tell it apart
    assert total(chosen) + layer_cost * len({e.layer for e in chosen}) <= min(possible) + 32


def test_whole_layers_lie_together_at_the_end_of_the_order() -> None:
    sums_of = made([(600, 600, 600)] * 8)
    for order in (range(8), range(7, -1, -1)):
        chosen = sums_of.choose(order, frozenset(KINDS), 9, 0.1)
        assert sorted({e.layer for e in chosen}) == sorted(list(order)[-3:])


def test_experts_with_little_in_common_are_rounded_up() -> None:
    costs = made_up([1], [(5,)])
    odd = Expert(0, "gate", ("x",), 5 * MIB + 1, 5 * MIB)
    sums_of = SubsetSums([(odd, *costs.experts[0])])
    assert sums_of.unit == MIB
    assert sums_of.layers[0][0] == ("gate", 6)


def test_sizes_are_rounded_up_where_the_sets_would_be_large(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, ...]] = [(3, 4, 5)] * 8
    exact = made(sizes)
    monkeypatch.setattr(subset_sums, "MOST_BITS", 96)
    rounded = made(sizes)
    assert (exact.unit, rounded.unit) == (MIB, 16 * MIB)
    assert rounded.layers == [[(kind, 1) for kind, _ in layer] for layer in exact.layers]
