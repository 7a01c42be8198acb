"""Vulkan, Metal and RPC: exact or approximate, as they say; what is known of them holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from memplan.backends.devices import Gpu
from memplan.backends.make import make_backends
from memplan.backends.metal import MetalBackend
from memplan.backends.other_cards import find_other
from memplan.backends.rpc import RpcBackend
from memplan.backends.vulkan import VulkanBackend
from memplan.errors import FlagError, RigError
from memplan.estimator import answer, estimate
from memplan.ggml import ops
from memplan.ggml.plan.optimize import Optimizer, SplitAnswer
from memplan.ggml.plan.whole_graph import SplitForm, WholeGraph
from memplan.ggml.tensor import Tensor, new_tensor, packed_strides
from memplan.gguf.types import BY_NAME, F16, F32, I32, IQ4_NL
from memplan.llama.flags import check_devices, parse_flags
from memplan.machine.detected import Found, detected
from memplan.models.builtin import builtin_header
from memplan.output.json import estimate_object
from memplan.planning.plan import Plan, make_plan
from memplan.planning.problem import Problem
from memplan.planning.speed import card_bandwidth, find_bandwidths
from memplan.question import Question
from memplan.releases import B10068, B10361, B10568, LATEST, V0_4_0, find_release
from memplan.releases.other_backends import SINCE, other_backends
from memplan.result import Estimate
from memplan.rig import parse_gpu_spec, parse_gpus
from memplan.rig_file import load_rig, parse_rig, write_rig

pytestmark = pytest.mark.slow

MIB = 1 << 20
FLASH = builtin_header("deepseek-v4-flash:antirez-q2")
XTX = Gpu("AMD Radeon RX 7900 XTX (RADV NAVI31)", 24560 * MIB, 24000 * MIB, backend="Vulkan")
MAC = Gpu("Apple M2 Ultra", 147456 * MIB, 147456 * MIB, backend="MTL")
SERVER = Gpu("h:50052", 97886 * MIB, 97000 * MIB, None, "RPC", endpoint="h:50052")


def asked(gpus: list[str], flags: str = "-c 16384 -np 1", release: str = "latest") -> Estimate:
    return estimate(FLASH, parse_flags(flags.split()), parse_gpus(gpus), release)


@pytest.mark.parametrize(
    ("spec", "name", "backend", "total"),
    [
        ("M2 Ultra", "Apple M2 Ultra", "MTL", 147456),
        ("M3 Ultra 256GB", "Apple M3 Ultra", "MTL", 196608),
        ("Apple M1 16GB", "Apple M1", "MTL", 10922),
        ("M9 Ultra:400000", "Apple M9 Ultra", "MTL", 400000),
        ("RX 7900 XTX", "AMD Radeon RX 7900 XTX (RADV NAVI31)", "Vulkan", 24560),
        ("amd radeon rx 7900 xtx", "AMD Radeon RX 7900 XTX (RADV NAVI31)", "Vulkan", 24560),
        ("AMD Radeon RX 7900 XTX", "AMD Radeon RX 7900 XTX", "Vulkan", 24560),
        ("Radeon PRO W7900", "AMD Radeon PRO W7900 (RADV NAVI31)", "Vulkan", 49136),
        ("Radeon 8060S Graphics (RADV GFX1151)", "Radeon 8060S Graphics (RADV GFX1151)", "Vulkan", 110000),
        ("Intel Arc A770", "Intel(R) Arc(tm) A770 Graphics (DG2)", "Vulkan", 16288),
        ("Strix Halo:90000", "Radeon 8060S Graphics (RADV STRIX_HALO)", "Vulkan", 90000),
        ("Radeon VII:16000", "Radeon VII", "Vulkan", 16000),
        ("RTX 3090:::vulkan", "NVIDIA GeForce RTX 3090", "Vulkan", 24268),
        ("RX 7900 XTX:::ROCm", "AMD Radeon RX 7900 XTX", "ROCm", 24560),
        ("Some GPU:8000::Metal", "Some GPU", "MTL", 8000),
        ("rpc:10.0.0.2:50052:24268", "10.0.0.2:50052", "RPC", 24268),
    ],
)
def test_a_spec_tells_its_backend(spec: str, name: str, backend: str, total: int) -> None:
    (gpu,) = parse_gpu_spec(spec)
    assert (gpu.description, gpu.backend, gpu.total // MIB) == (name, backend, total)
    assert gpu.compute_capability is None and gpu.cc == 0


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("M2 Ultra:147456:147000:8.6", "leave its compute capability out"),
        ("Radeon VII", "give its memory"),
        ("M9 Ultra", "give its memory"),
        ("Voodoo 2:::Vulkan", "give its memory"),
        ("RTX 3090:::OpenCL", "nor a backend (CUDA, Vulkan, Metal, ROCm, SYCL)"),
        ("rpc:h:50052", "rpc:HOST:PORT:TOTAL_MIB"),
        ("rpc:h:0:8000", "must be HOST:PORT"),
        ("rpc:h h:1:8000", "must be HOST:PORT"),
        ("rpc:h:1:8000:1:2:3", "too many colons"),
        ("17*rpc:h:1:8000", "1 to 16"),
    ],
)
def test_wrong_specs(spec: str, said: str) -> None:
    with pytest.raises(RigError) as caught:
        parse_gpu_spec(spec)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_cuda_names_are_left_to_cuda() -> None:
    for name in ("RTX 3090", "NVIDIA GeForce RTX 5090", "Dream 1", "GB10", "M40", "NVIDIA Vulkan Beta"):
        assert find_other(name) is None


def test_devices_come_in_llama_cpps_order_and_are_counted_by_backend() -> None:
    rig = parse_gpus(["RX 7900 XTX", "RTX 3090", "rpc:a:1:8000", "2*rpc:b:1:9000", "RTX 3090", "rpc:a:1:8000"])
    assert rig.names == ("RPC0", "RPC1", "RPC2", "RPC3", "CUDA0", "CUDA1", "Vulkan0")
    assert rig.buffer_names[:4] == ("RPC0[a:1]", "RPC1[a:1]", "RPC0[b:1]", "RPC1[b:1]")
    assert rig.buffer_names[4:] == rig.names[4:]
    with pytest.raises(RigError, match="a Mac has Metal alone"):
        parse_gpus(["M2 Ultra", "RTX 3090"])
    assert parse_gpus(["M2 Ultra", "rpc:a:1:8000"]).unified
    assert not parse_gpus(["RX 7900 XTX"]).unified and not parse_gpus(["rpc:a:1:8000"]).unified


def test_a_rig_file_tells_backends_and_servers(tmp_path: Path) -> None:
    file = tmp_path / "rig.toml"
    file.write_text(
        '[[gpus]]\nname = "RTX 3090"\nbackend = "Vulkan"\n[[gpus]]\nname = "RTX 5090"\nrpc = "h:1"\n'
        '[[gpus]]\nname = "Iris Xe"\ntotal_mib = 9000\nintegrated = true\n'
    )
    rig = load_rig(file)
    assert rig.names == ("RPC0", "Vulkan0", "Vulkan1")
    assert (rig.gpus[0].compute_capability, rig.gpus[0].total // MIB) == ((12, 0), 32606)
    assert [gpu.integrated for gpu in rig.gpus] == [False, False, True]
    for json in (False, True):
        assert parse_rig(write_rig(rig, json=json), json=json).gpus == rig.gpus
    mac = parse_gpus(["M2 Ultra"])
    assert parse_rig(write_rig(mac, json=False), json=False) == mac
    for wrong, said in (
        ('backend = "OpenCL"', "must be CUDA, Vulkan"),
        ('backend = "CUDA"\nrpc = "h:1"', "rpc:"),
        ('rpc = "h"', "HOST:PORT"),
    ):
        file.write_text(f'[[gpus]]\nname = "RTX 3090"\n{wrong}\n')
        with pytest.raises(RigError, match=said):
            load_rig(file)


@pytest.mark.parametrize(
    ("gpus", "reason", "buffers"),
    [
        (["RX 7900 XTX:200000"], "Vulkan: Vulkan0 is given the limits of Mesa's", {"Vulkan0", "Vulkan_Host"}),
        (["M2 Ultra"], "Metal: ", {"MTL0", "CPU"}),
        (["rpc:h:50052:97886", "RTX 3090"], "RPC: ", {"RPC0[h:50052]", "CUDA0", "CUDA_Host", "CPU"}),
        (["RX 7900 XTX:200000::ROCm"], "ROCm: its rules are read", {"ROCm0", "ROCm_Host"}),
    ],
)
def test_answers_are_marked_and_never_cudas(gpus: list[str], reason: str, buffers: set[str]) -> None:
    answer = asked(gpus)
    assert not answer.exact and answer.approximate.startswith(reason)
    assert set(answer.buffers) == buffers
    assert all(device.used > 0 for device in answer.devices)
    on_gpus = sum(device.allocated for device in answer.devices)
    assert on_gpus + answer.host.used == sum(use.used for use in answer.buffers.values())
    notes = estimate_object(answer)["notes"]
    assert any("not exact" in note and reason in note for note in notes)


@pytest.mark.parametrize("gpus", [["RX 7900 XTX:200000"], ["M2 Ultra"], ["rpc:h:50052:97886", "RTX 3090"]])
def test_quick_and_plain_planner_agree(gpus: list[str]) -> None:
    flags = parse_flags(["-c", "8192", "-np", "1", "-ctk", "q8_0", "-ctv", "q8_0"])
    question = Question.of(FLASH, flags, parse_gpus(gpus), LATEST)
    quick, plain = (answer(question, plain).estimate for plain in (False, True))
    assert quick.buffers == plain.buffers and quick.splits == plain.splits


@pytest.mark.parametrize("gpu", ["M2 Ultra", "2*RX 7900 XTX"])
def test_splits_that_are_alike_are_asked_about_once(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, rig, asked = builtin_header("qwen3-30b-a3b"), parse_gpus([gpu]), list[int]()
    ask = Optimizer._ask_split

    def counted(self: Optimizer, whole: WholeGraph, form: SplitForm) -> SplitAnswer:
        asked.append(len(form.nodes))
        return ask(self, whole, form)

    monkeypatch.setattr(Optimizer, "_ask_split", counted)
    for words in ("-ncmoe 7", "-ncmoe 8", r"-ot blk\.(3|9|1.)\.ffn_up_exps=CPU"):
        question = Question.of(model, parse_flags(["-c", "4096", "-np", "1", *words.split()]), rig, LATEST)
        quick, plain = (answer(question, plain).estimate for plain in (False, True))
        assert quick.buffers == plain.buffers and quick.splits == plain.splits
    assert 0 < len(asked) < 24


@pytest.mark.parametrize(
    ("gpu", "fused", "unfused"),
    [
        ("M2 Ultra", "b10361", "b10068"),
        pytest.param("RX 7900 XTX:200000", "v0.4.0", "b10568", marks=pytest.mark.thorough),
    ],
)
def test_a_release_has_the_indexer_there_or_not(gpu: str, fused: str, unfused: str) -> None:
    assert "Lightning Indexer" not in asked([gpu], release=fused).disabled
    assert "Lightning Indexer" in asked([gpu], release=unfused).disabled


@pytest.mark.parametrize(
    ("gpu", "words", "since", "before"),
    [
        pytest.param(  # joined keys of a quantised cache
            *("RX 7900 XTX:200000", "-ctk q8_0 -ctv q8_0", "b10361", "b10068"), marks=pytest.mark.thorough
        ),
        ("M2 Ultra", "-ctk q8_0 -ctv q8_0", "v0.4.0", "b10568"),
    ],
)
def test_what_a_release_has_no_kernel_for_runs_on_the_host(gpu: str, words: str, since: str, before: str) -> None:
    splits = [asked([gpu], f"-c 4096 -np 1 {words}", release=release).splits[0] for release in (since, before)]
    assert splits[0] < 20 < splits[1]


def test_a_large_top_k_came_to_vulkan_with_v0_4_0() -> None:
    scores = new_tensor(F32, 4096, 4)
    for release, largest in ((V0_4_0, 2048), (B10568, 1023)):
        backend = VulkanBackend("Vulkan0", XTX, release)
        assert [k for k in (512, 1023, 1024, 2048) if backend.supports_op(ops.top_k(scores, k))][-1] == largest


def test_an_iq4_nl_cache_is_attended_to_by_vulkan_since_b10361() -> None:
    q, kv = new_tensor(F32, 512, 4, 64), new_tensor(IQ4_NL, 512, 256, 1)
    attention = ops.flash_attn_ext(q, kv, kv, None, None, 0)
    assert [VulkanBackend("Vulkan0", XTX, r).supports_op(attention) for r in (B10068, B10361)] == [False, True]


def sorts(spec: str, release: str, length: int) -> list[bool]:
    """Whether the first device of a rig sorts rows, and takes the largest out of them."""
    backend = make_backends(parse_gpus([spec]).gpus, find_release(release)[0], frozenset())[0].backend
    rows = new_tensor(F32, length, 4)
    return [backend.supports_op(t) for t in (ops.argsort(rows), ops.top_k(rows, 512))]


def test_rocm_sorts_no_long_rows_for_it_has_no_cub() -> None:
    rocm = "RX 7900 XTX:::ROCm"
    assert [sorts(rocm, r, 1024) for r in ("b10361", "v0.5.0")] == [[True, True]] * 2
    assert [sorts(rocm, r, 1025) for r in ("b10361", "v0.5.0")] == [[False, False], [False, True]]
    assert sorts("RTX 3090", "b10361", 1025) == [True, True]


def test_sycl_has_fused_ops_since_b10306() -> None:
    arc = ["Arc B580:200000::SYCL"]
    assert "Lightning Indexer" in asked(arc, release="b10068").disabled
    assert "Lightning Indexer" in asked(arc, release="b10289").disabled
    assert not asked(arc, release="b10355").disabled


def test_more_gpus_than_have_peers_are_noted() -> None:
    assert [any("peers" in note for note in asked([f"{n}*RTX 3090"]).notes) for n in (9, 10)] == [False, True]


def test_switches_follow_the_build() -> None:
    builds = [build for build, _ in SINCE]
    assert builds == sorted(builds)
    old, new = (other_backends(find_release(name)[0]) for name in ("b9842", "v0.5.0"))
    assert not (old.rpc_events or old.vulkan_indexer or old.metal_indexer)
    assert new.rpc_events and new.vulkan_hyper_connections and new.metal_expert_scales


def test_servers_take_part_in_pipelines_since_they_have_events() -> None:
    rig = ["rpc:h:50052:97886", "RTX 3090"]
    assert asked(rig).pipeline_parallel
    assert not asked(rig, release="b10568").pipeline_parallel


def test_an_integrated_gpu_is_left_out_beside_another_but_not_beside_a_server() -> None:
    alone = asked(["RX 7900 XTX:200000", "Strix Halo"])
    assert [device.used > 0 for device in alone.devices] == [True, False]
    assert [d.used > 0 for d in asked(["Strix Halo", "rpc:h:1:97886"]).devices] == [True, True]
    named = asked(["RX 7900 XTX:200000", "Strix Halo"], "-c 16384 -np 1 -dev Vulkan1")
    assert [device.used > 0 for device in named.devices] == [False, True]


def test_bandwidths_of_other_cards() -> None:
    assert [card_bandwidth(name) for name in ("Apple M2 Ultra", "AMD Radeon 8060S", "Radeon VII")] == [800, 256, None]


def test_a_plan_over_machines_copies_experts_through_a_local_gpu_alone() -> None:
    rig = parse_gpus(["rpc:h:50052:30000", "RTX 3090"])
    plan = make_plan(
        Problem(
            Question.of(FLASH, parse_flags(["-c", "16384", "-np", "1"]), rig, LATEST),
            (1024 * MIB,) * 2,
            find_bandwidths(rig.gpus),
        )
    )
    assert isinstance(plan, Plan)
    assert not plan.estimate.exact and plan.estimate.fits
    assert any("copied to the GPUs: CUDA0's compute buffer" in note for note in plan.estimate.notes)
    assert not any("RPC server is never sent" in note for note in plan.notes)


def test_a_plan_says_when_experts_are_too_large_for_a_device() -> None:
    rig = replace(parse_gpus(["rpc:h:1:90000", "Strix Halo"]), host_total=None)
    model = builtin_header("deepseek-v4-pro:mxfp4")
    plan = make_plan(
        Problem(
            Question.of(model, parse_flags(["-c", "8192", "-np", "1"]), rig, LATEST),
            (1024 * MIB,) * 2,
            find_bandwidths(rig.gpus),
        )
    )
    assert isinstance(plan, Plan)
    assert any("too large for Vulkan0 stay on the host" in note for note in plan.notes)


def test_what_is_found_on_a_machine_keeps_its_backend() -> None:
    card = Found("NVIDIA GeForce RTX 3090", 24268 * MIB, 23868 * MIB, "CUDA", (8, 6))
    twice = detected([card, replace(card, backend="Vulkan", capability=None)], "llama-server", (None, None), [])
    assert twice.rig.names == ("CUDA0",) and not twice.inexact
    halo = detected([Found("AMD Radeon 8060S", MIB, MIB, "Vulkan")], "llama-server", (None, None), [])
    assert halo.rig.names == ("Vulkan0",) and halo.rig.gpus[0].integrated and halo.rig.unified
    assert detected([Found("Ascend", MIB, MIB, "CANN")], "llama-server", (None, None), []).inexact
    unknown = detected([Found("Card of Tomorrow", MIB, MIB)], "llama-server", (None, None), [])
    assert unknown.inexact.startswith("the compute capability of Card of Tomorrow is not known")


def test_rpc_flag_names_servers_of_the_rig() -> None:
    rig = ["rpc:h:50052:97886", "RTX 3090"]
    assert "is not in the rig" not in asked(rig, "-c 8192 -np 1 --rpc h:50052").approximate
    assert "RPC server g:1 is not in the rig" in asked(rig, "-c 8192 -np 1 --rpc h:50052,g:1").approximate


def test_flags_name_devices_and_buffers_as_llama_cpp_does() -> None:
    rig = parse_gpus(["rpc:h:50052:97886", "RX 7900 XTX"])
    check_devices(parse_flags(["-dev", "RPC0,Vulkan0", "-ot", "exps=RPC0[h:50052]"]), rig)
    for words in (["-dev", "CUDA0"], ["-ot", "exps=RPC0"]):
        with pytest.raises(FlagError, match=r"RPC0"):
            check_devices(parse_flags(words), rig)
    moved = asked(["rpc:h:50052:97886", "RTX 3090"], "-c 8192 -np 1 -ngl 0 -ot exps=RPC0[h:50052]")
    assert moved.buffers["RPC0[h:50052]"].model > 70_000 * MIB


@pytest.mark.parametrize(
    ("name", "driver", "align", "max_tensor", "fp16"),
    [
        ("AMD Radeon RX 7900 XTX (RADV NAVI31)", "Mesa's driver for AMD", 4, (1 << 32) - 4, True),
        ("Radeon 8060S Graphics (RADV STRIX_HALO)", "Mesa's driver for AMD", 4, (1 << 32) - 4, True),
        ("AMD Radeon RX 7900 XTX", "AMD's own driver", 4, 1 << 31, True),
        ("Intel(R) Arc(tm) B580 Graphics (BMG G21)", "Mesa's driver for Intel", 4, (1 << 32) - 1, True),
        ("Intel(R) Arc(TM) A770 Graphics", "Intel's driver", 4, (1 << 30) - 4, True),
        ("NVIDIA GeForce RTX 3090", "NVIDIA's driver", 16, 1 << 40, True),
        ("Tesla P40", "NVIDIA's driver", 16, 1 << 40, False),
        ("Tesla P100-PCIE-16GB", "NVIDIA's driver", 16, 1 << 40, True),
    ],
)
def test_a_name_that_llama_cpp_prints_tells_the_driver(
    name: str, driver: str, align: int, max_tensor: int, fp16: bool
) -> None:
    (gpu,) = parse_gpu_spec(f"{name}:200000::Vulkan")
    limits = gpu.vulkan_limits
    assert limits.driver.startswith(driver) and limits.known
    assert (limits.align, limits.max_tensor, limits.fp16) == (align, max_tensor, fp16)


def test_an_answer_for_a_known_driver_is_exact_and_says_whose_limits_it_took() -> None:
    answer = asked(["AMD Radeon RX 7900 XTX (RADV NAVI31):200000"])
    assert answer.exact and "Vulkan0: the limits are those of Mesa's driver for AMD (RADV)" in answer.notes
    assert not asked(["RX 7900 XTX:200000"]).exact


def test_a_rig_file_gives_limits() -> None:
    gpu = '[[gpus]]\nname = "RX 7900 XTX"\nlimits = { %s }\n'
    (some,) = parse_rig(gpu % "max_buffer = 2147483648, idx64 = true", json=False).gpus
    assert some.vulkan_limits.max_block == 1 << 30 and some.vulkan_limits.max_tensor == 1 << 31
    assert not some.vulkan_limits.known
    every = "align = 64, map_align = 64, range = 5, max_buffer = 6, idx64 = 0, fp16 = 1"
    rig = parse_rig(gpu % every, json=False)
    assert rig.gpus[0].vulkan_limits.known and rig.gpus[0].vulkan_limits.max_tensor == 5
    for json in (False, True):
        assert parse_rig(write_rig(rig, json=json), json=json) == rig
    for wrong, said in (
        ("align = 3", "a power of two"),
        ("range = -1", "must be from 0"),
        ("size = 3", "those of limits are align, map_align"),
        ("idx64 = 7", "must be true or false"),
    ):
        with pytest.raises(RigError, match=said):
            parse_rig(gpu % wrong, json=False)


def test_vulkan_splits_buffers_and_refuses_large_tensors() -> None:
    device = VulkanBackend("Vulkan0", XTX, LATEST)
    assert (device.buft.max_size, device.buft.alignment) == (1 << 30, 4)
    w = new_tensor(BY_NAME["q4_K"], 4096, 4096)
    x = new_tensor(F32, 4096, 512)
    product = Tensor("MUL_MAT", F32, (4096, 512, 1, 1), packed_strides(F32, (4096, 512, 1, 1)), [w, x])
    assert device.supports_op(product) and device.offload_op(product)
    large = new_tensor(F16, 4096, (1 << 32) // 8192)
    assert not device.supports_op(Tensor("MUL_MAT", F32, product.ne, product.nb, [large, x]))
    assert not VulkanBackend("Vulkan0", XTX, LATEST, frozenset({"MUL_MAT"})).supports_op(product)
    assert not device.supports_buft(VulkanBackend("Vulkan1", XTX, LATEST).buft)


def test_metal_sets_room_aside_for_its_kernels() -> None:
    now, before = (MetalBackend("MTL0", MAC, find_release(name)[0]).buft for name in ("v0.5.0", "b10068"))
    w, x, ids = new_tensor(BY_NAME["q2_K"], 4096, 2048, 256), new_tensor(F32, 4096, 1, 512), new_tensor(I32, 6, 512)
    ne = (2048, 6, 512, 1)
    experts = Tensor("MUL_MAT_ID", F32, ne, packed_strides(F32, ne), [w, x, ids])
    assert before.alloc_size(experts) - experts.nbytes == 4 * 256 * (1 + 512)
    assert now.alloc_size(experts) - before.alloc_size(experts) == 8 + 4 * 256
    top = Tensor("TOP_K", I32, (64, 512, 1, 1), packed_strides(I32, (64, 512, 1, 1)), [new_tensor(F32, 1024, 512)])
    assert now.alloc_size(top) == 2 * 4 * 1024 * 512
    q, k, v = new_tensor(F32, 512, 512, 64), new_tensor(F16, 512, 4096), new_tensor(F16, 512, 4096)
    params: dict[str, object] = {"mask": True, "sinks": False}
    sources = [q, k, v, new_tensor(F16, 4096, 512)]
    attention = Tensor("FLASH_ATTN_EXT", F32, q.ne, q.nb, sources, params=params)
    pad = 64 * (1024 + 1024 + 2 * 512)
    expected = pad + 64 * 64 + 4 * 32 * 64 * 32 * (512 + 2)
    assert before.alloc_size(attention) - attention.nbytes == expected
    assert now.alloc_size(attention) - attention.nbytes == expected + 2 * 2 * 512 * 4096
    assert now.max_size == MAC.total * 3 // 4 and now.alignment == 32


def test_a_server_is_asked_for_sizes_it_may_pad() -> None:
    device = RpcBackend("RPC0", "RPC0[h:50052]", SERVER, LATEST)
    q8 = BY_NAME["q8_0"]
    assert device.buft.alloc_size(new_tensor(q8, 512, 4)) == 544 * 4
    assert device.buft.alloc_size(new_tensor(q8, 256, 4)) == 272 * 4 + 272
    plain = new_tensor(F32, 100, 3)
    assert device.buft.alloc_size(plain) == plain.nbytes
    assert device.supports_op(Tensor("NO_SUCH_OP", F32, plain.ne, plain.nb, []))
    assert not device.offload_op(Tensor("MUL_MAT", F32, (8, 512, 1, 1), plain.nb, [plain, plain]))
