from __future__ import annotations

import inspect
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memplan.backends.buffers import CPU, CUDA_HOST
from memplan.errors import FlagError
from memplan.llama import placement
from memplan.llama.flags import Flags
from memplan.llama.memory import kv
from memplan.llama.placement import (
    Machine,
    Placement,
    place,
    place_layers,
    select_devices,
    split_points,
    too_many_devices,
)
from memplan.llama.refusals import Refusal
from tests.llama.golden import MIB, card, machine, model

THREE = machine(card(24268, 23868), card(24268, 12000), card(97886, 97486, "12.0"))
MAX_PADDING = 255


def placed(flags: Flags, where: Machine = THREE, name: str = "flash-mxfp4", mmap: bool = False) -> Placement:
    hp, tensors = model(name)
    found = place(tensors.tensors, hp.n_layer_all, flags, where, mmap)
    assert not isinstance(found, Refusal), found
    return found


def names(placement: Placement) -> list[str]:
    return [d.name for d in placement.layers] + [placement.output.name]


def test_layers_follow_free_memory() -> None:
    found = names(placed(Flags()))
    assert found == sorted(found)
    assert [found.count(f"CUDA{i}") for i in range(3)] == [8, 4, 32]


def test_layers_follow_the_tensor_split_and_missing_shares_are_none() -> None:
    found = names(placed(Flags(tensor_split=(1.0, 3.0))))
    assert [found.count(f"CUDA{i}") for i in range(3)] == [11, 33, 0]
    assert names(placed(Flags(tensor_split=(0.0, 0.0, 0.0)))) == names(placed(Flags()))


def test_first_layers_stay_on_the_host_with_fewer_gpu_layers() -> None:
    found = names(placed(Flags(n_gpu_layers=10)))
    assert found[:34] == ["CPU"] * 34
    assert all(n.startswith("CUDA") for n in found[34:])
    assert set(names(placed(Flags(n_gpu_layers=0)))) == {"CPU"}
    assert names(placed(Flags(n_gpu_layers=-1))) == names(placed(Flags(n_gpu_layers=44)))


def test_a_boundary_that_only_32_bit_floats_put_there() -> None:
    # layer 3 of 10 lies at the very split, and goes to the second device; in 64-bit floats 3 / 10 is below the 0.3 that
    # 32 bits hold, and it would go to the first
    splits = split_points(THREE.gpus[:2], (0.3, 0.7))
    assert splits[0] > 3 / 10
    assert place_layers(9, 999, THREE.gpus[:2], splits).count(0) == 3


@given(st.integers(1, 100), st.integers(0, 120), st.lists(st.integers(1, 1 << 37), min_size=1, max_size=16))
def test_every_layer_has_a_device_and_devices_come_in_order(n: int, ngl: int, free: list[int]) -> None:
    devices = [replace(THREE.gpus[0], free=f) for f in free]
    index = place_layers(n, ngl, devices, split_points(devices, ()))
    assert len(index) == n + 1
    assert index == sorted(index)
    assert index.count(-1) == max(0, n + 1 - ngl)
    assert max(index) < len(devices)


def test_devices() -> None:
    assert [d.name for d in select_devices(Flags(), THREE)] == ["CUDA0", "CUDA1", "CUDA2"]
    assert [d.name for d in select_devices(Flags(split_mode="none", main_gpu=1), THREE)] == ["CUDA1"]
    assert [d.name for d in select_devices(Flags(devices=("CUDA2", "CUDA0")), THREE)] == ["CUDA2", "CUDA0"]
    assert [d.name for d in select_devices(Flags(devices=("CUDA2", "CUDA0"), split_mode="none"), THREE)] == ["CUDA2"]
    assert select_devices(Flags(split_mode="none", main_gpu=-1), THREE) == ()
    assert select_devices(Flags(devices=()), THREE) == ()


@pytest.mark.parametrize(
    "flags",
    [
        Flags(split_mode="none", main_gpu=3),
        Flags(devices=("CUDA3",)),
        Flags(overrides=(("exps", "CUDA3"),)),
        Flags(overrides=(("exps", "Vulkan0"),)),
        Flags(overrides=(("(", "CPU"),)),
    ],
)
def test_what_is_not_there_is_one_line(flags: Flags) -> None:
    with pytest.raises(FlagError) as caught:
        placed(flags)
    assert "\n" not in str(caught.value)


def test_row_split_is_not_supported_by_cuda() -> None:
    hp, tensors = model("flash-mxfp4")
    found = place(tensors.tensors, hp.n_layer_all, Flags(split_mode="row"), THREE)
    assert isinstance(found, Refusal)
    assert found.message == "device CUDA0 does not support split buffers"
    assert set(names(placed(Flags(split_mode="row"), machine()))) == {"CPU"}


def test_no_gpu_with_free_memory() -> None:
    hp, tensors = model("flash-mxfp4")
    found = place(tensors.tensors, hp.n_layer_all, Flags(), machine(card(1000, 0)))
    assert isinstance(found, Refusal)
    assert found.fix


def test_token_embeddings_stay_on_the_host() -> None:
    found = placed(Flags())
    assert {n for n, b in found.tensors.items() if b is CUDA_HOST} == {"token_embd.weight"}
    assert placed(Flags(no_host=True)).tensors["token_embd.weight"] is CPU


def test_the_cpu_by_name_is_pinned_or_repacked_memory() -> None:
    experts = (("exps", "CPU"),)
    name = "blk.5.ffn_up_exps.weight"
    assert placed(Flags(overrides=experts)).tensors[name].name == "CUDA_Host"
    assert placed(Flags(overrides=experts, no_host=True)).tensors[name].name == "CPU_REPACK"
    assert placed(Flags(overrides=experts, no_host=True, repack=False)).tensors[name].name == "CPU"
    assert placed(Flags(overrides=experts), mmap=True).tensors[name].name == "CPU"


def test_the_first_pattern_that_is_found_holds() -> None:
    found = placed(Flags(overrides=((r"blk\.5\..*_exps", "CUDA1"), ("exps", "CPU"), ("", "CUDA2"))))
    assert found.tensors["blk.5.ffn_up_exps.weight"].name == "CUDA1"
    assert found.tensors["blk.6.ffn_up_exps.weight"].name == "CUDA_Host"
    assert found.tensors["token_embd.weight"].name == "CUDA2"


@pytest.mark.parametrize(
    ("flags", "parallel"),
    [
        (Flags(), True),
        (Flags(n_gpu_layers=44), True),
        (Flags(n_gpu_layers=43), False),
        (Flags(offload_kqv=False), False),
        (Flags(overrides=(("nothing", "CPU"),)), False),
        (Flags(split_mode="none"), False),
        (Flags(devices=("CUDA1",)), False),
    ],
)
def test_pipeline_parallelism(flags: Flags, parallel: bool) -> None:
    assert placed(flags).pipeline_parallel == parallel


@pytest.mark.parametrize(("n", "refused"), [(15, False), (16, True)])
def test_a_scheduler_takes_sixteen_devices(n: int, refused: bool) -> None:
    found = placed(Flags(), machine(*[card(24268)] * n))
    assert (too_many_devices(found) is not None) == refused


RULES = st.tuples(
    st.sampled_from(["exps", "attn", r"blk\.\d\.", "norm", "^token_embd", "output", r"\.1.*shexp", "weight$", "hc_"]),
    st.sampled_from(["CPU", "CUDA0", "CUDA1", "CUDA2"]),
)
FLAGS = st.builds(
    Flags,
    tensor_split=st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0, 1e-3]), max_size=3).map(tuple),
    overrides=st.lists(RULES, max_size=4).map(tuple),
    n_gpu_layers=st.integers(-1, 50),
    no_host=st.booleans(),
    repack=st.booleans(),
)


@settings(deadline=None)
@given(FLAGS, st.sampled_from(["flash-mxfp4", "flash-ud-q2", "flash-mtp-q2"]))
def test_weights_are_conserved(flags: Flags, name: str) -> None:
    # free memory sums to more than 0, so any split places every layer
    found = placed(flags, name=name)
    _, tensors = model(name)
    total = sum(t.nbytes for t in tensors.tensors)
    assert set(found.tensors) == {t.name for t in tensors.tensors}
    # all shapes here are whole rows of 512 elements, so there is nothing but alignment on top
    assert total <= sum(found.model.values()) <= total + MAX_PADDING * len(tensors.tensors)
    by_buft: dict[str, int] = {}
    for t in tensors.tensors:
        buft = found.tensors[t.name].name
        by_buft[buft] = by_buft.get(buft, 0) + t.nbytes
    assert by_buft.keys() == found.model.keys()
    assert all(0 <= found.model[b] - n <= MAX_PADDING * len(tensors.tensors) for b, n in by_buft.items())
    assert sum(found.model.values()) < 200 * 1024 * MIB


def test_what_a_placement_follows_is_what_it_is_remembered_by() -> None:
    read = set(re.findall(r"\bflags\.([a-z_]+)", inspect.getsource(placement)))
    assert read == set(placement.PLACING)
    buffers_of_caches = re.findall(r"self.bufts = .*", inspect.getsource(kv))
    assert set(re.findall(r"\bflags\.([a-z_]+)", " ".join(buffers_of_caches))) == {"offload_kqv"} <= read
