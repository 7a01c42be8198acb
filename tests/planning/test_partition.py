from __future__ import annotations

import random
from itertools import combinations_with_replacement, product

import pytest

from memplan.planning.layer_costs import LayerCosts
from memplan.planning.layout import Layout
from memplan.planning.partition import Kinds, LayerPartitioner
from memplan.planning.speed import SPLIT_MS, Bandwidths
from tests.planning.rigs import KINDS, MIB, made_up, speeds

EVERY = Kinds(frozenset(KINDS), frozenset(KINDS))
GAP = 1.01
"""How much dearer than the best a partition may be: the price of layers that are split is only estimated."""


def used(costs: LayerCosts, layout: Layout) -> list[int]:
    """Bytes on each device."""
    total = [0] * len(costs.devices)
    for il, home in enumerate(layout.homes()):
        if home >= 0:
            total[home] += costs.dense[il]
        for e in costs.experts[il]:
            where = layout.place(e, home)
            if where >= 0:
                total[where] += e.size
    return total


def best_of_all(partitioner: LayerPartitioner, rooms: list[int]) -> float:
    """The least price of every partition and every choice of experts."""
    costs = partitioner.costs
    n, best = costs.n_items, float("inf")
    experts = [e for layer in costs.experts for e in layer]
    for ends in combinations_with_replacement(range(n + 1), len(rooms) - 1):
        for choice in product([False, True], repeat=len(experts)):
            host = frozenset(e.names[0] for e, on_host in zip(experts, choice, strict=True) if on_host)
            layout = Layout(0, (*ends, n), host)
            if all(size <= room for size, room in zip(used(costs, layout), rooms, strict=True)):
                best = min(best, partitioner.price(layout))
    return best


@pytest.mark.parametrize("seed", range(12))
def test_a_cut_is_the_best_of_all_cuts(seed: int) -> None:
    draw = random.Random(seed)
    costs = made_up([draw.randint(80, 200) for _ in range(4)], [(300, 300, 400)] * 3 + [()])
    rooms = [draw.randint(100, 2500) * MIB for _ in range(2)]
    partitioner = LayerPartitioner(costs, speeds(*(draw.choice([400.0, 900.0]) for _ in rooms)))
    partition = partitioner.partition(rooms, EVERY)
    best = best_of_all(partitioner, rooms)
    if partition is None:
        assert best == float("inf")
        return
    assert all(size <= room for size, room in zip(used(costs, partition.layout), rooms, strict=True))
    assert partitioner.price(partition.layout) <= best * GAP


@pytest.mark.parametrize("seed", range(3))
def test_the_gap_to_an_exact_solver(seed: int) -> None:
    highspy = pytest.importorskip("highspy")
    draw = random.Random(100 + seed)
    n, devices = 9, 2 + seed % 2
    experts = [(528, 528, draw.choice([528, 672]))] * (n - 1) + [()]
    costs = made_up([draw.randint(150, 210) for _ in range(n)], experts, devices)
    rooms = [draw.randint(1500, 6000) * MIB for _ in range(devices)]
    bandwidths = speeds(*(draw.choice([360.0, 936.0, 1792.0]) for _ in rooms))
    partition = LayerPartitioner(costs, bandwidths).partition(rooms, EVERY)
    assert partition is not None
    bound = solve(highspy, costs, rooms, bandwidths)
    assert bound * 0.9999 <= LayerPartitioner(costs, bandwidths).price(partition.layout) <= bound * GAP


def solve(highspy, costs: LayerCosts, rooms: list[int], speed: Bandwidths) -> float:  # type: ignore[no-untyped-def]
    """The least price, by mixed integer programming: a bound that no layout with experts at home can go below."""
    h = highspy.Highs()
    h.setOptionValue("output_flag", False)
    h.setOptionValue("time_limit", 3.0)
    n, devices = costs.n_items, range(len(rooms))
    home = [[h.addBinary(speed.gpu_ms(d, costs.read[i])) for i in range(n)] for d in devices]
    room_used = [sum(home[d][i] * (costs.dense[i] / MIB) for i in range(n)) for d in devices]
    in_use = [h.addBinary(SPLIT_MS) for d in devices]
    for i in range(n):
        h.addConstr(sum(home[d][i] for d in devices) == 1)
        for d in devices:
            h.addConstr(home[d][i] <= in_use[d])
            if i:
                before = sum(home[e][i - 1] for e in range(d + 1))
                h.addConstr(before >= sum(home[e][i] for e in range(d + 1)))
        split = h.addBinary(2 * SPLIT_MS)
        for e in costs.experts[i]:
            nbytes = e.size * costs.used_share
            on_host = h.addBinary(speed.host_ms(nbytes))
            h.addConstr(on_host <= split)
            here = [h.addBinary(speed.gpu_ms(d, nbytes)) for d in devices]
            h.addConstr(sum(here) + on_host == 1)
            for d in devices:
                h.addConstr(here[d] <= home[d][i])
                room_used[d] = room_used[d] + here[d] * (e.size / MIB)
    for d in devices:
        h.addConstr(room_used[d] <= rooms[d] / MIB)
    h.run()
    return float(h.getInfo().mip_dual_bound)


def test_attention_goes_to_the_host_only_when_it_must() -> None:
    costs = made_up([100] * 6, [(10, 10, 10)] * 5 + [()])
    partitioner = LayerPartitioner(costs, speeds(900.0, 900.0))
    rooms = [250 * MIB, 150 * MIB]
    assert partitioner.partition(rooms, EVERY) is None
    partition = partitioner.partition(rooms, EVERY, range(len(costs.dense) + 1))
    assert partition is not None
    assert partition.layout.first == 3
    assert partition.layout.ends == (5, 6)


def test_a_gpu_without_room_gets_nothing() -> None:
    costs = made_up([100] * 6, [(10, 10, 10)] * 5 + [()], devices=3)
    partition = LayerPartitioner(costs, speeds(900.0, 900.0, 900.0)).partition([-5 * MIB, 2000 * MIB, 10 * MIB], EVERY)
    assert partition is not None
    assert partition.layout.ranges() == [(0, 0), (0, 6), (6, 6)]


def test_the_faster_gpu_gets_what_it_can_hold() -> None:
    costs = made_up([100] * 6, [(100, 100, 100)] * 5 + [()])
    partitioner = LayerPartitioner(costs, speeds(300.0, 900.0))
    partition = partitioner.partition([3000 * MIB, 2100 * MIB], EVERY)
    assert partition is not None
    assert partition.layout.ranges() == [(0, 0), (0, 6)]
    partition = partitioner.partition([3000 * MIB, 2000 * MIB], EVERY)
    assert partition is not None
    assert used(costs, partition.layout)[1] > used(costs, partition.layout)[0]
