"""What people measured on real machines: each report's figures, and what would have helped, told before the load."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from memplan.estimator import answer, estimate
from memplan.explaining.explain import explain
from memplan.gguf.header import Header
from memplan.gguf.types import BY_NAME
from memplan.llama.flags import Flags, parse_flags
from memplan.models.builtin import builtin_header
from memplan.question import Question
from memplan.rig import parse_gpus

pytestmark = pytest.mark.slow

MIB = 1 << 20
GIB = 1 << 30


def header(recipe: str) -> Header:
    return builtin_header(f"deepseek-v4-flash:{recipe}")


def flags(text: str) -> Flags:
    return parse_flags(text.split(), "server")


def test_five_gpus_and_experts_on_the_host_in_b9924() -> None:
    rig = parse_gpus(["2*RTX 3090", "RTX 5060 Ti", "2*RTX 4060 Ti"])
    asked = flags("-c 131072 -ub 512 -np 1 -fa on -ncmoe 24")
    found = answer(Question.of(header("mxfp4"), asked, rig, "b9924"))
    assert found.estimate.nodes == (33689, 33689)
    assert found.made is not None
    memory = found.made.memory
    caches = {
        name: sum(t.type.row_size(t.ne[0]) * t.ne[1] * t.ne[2] for t in cache.tensors) / MIB
        for name, cache in memory.caches.items()
        if not name.endswith("_state")
    }
    assert caches == {"raw": 32.25, "csa": 672, "hca": 20, "lid": 168}


def test_a_compute_buffer_of_127_gib_in_b9988() -> None:
    asked = flags("--kv-unified --ctx-size 512000 --parallel 1 --batch-size 4096 --ubatch-size 2048 --flash-attn on")
    found = estimate(header("antirez-q2"), asked, parse_gpus(["RTX PRO 6000"]), "9988")
    assert found.buffers["CUDA0"].compute == 136867676672
    assert found.disabled == ("Lightning Indexer",)
    assert not found.fits
    assert estimate(header("antirez-q2"), asked, parse_gpus(["RTX PRO 6000"]), "10068").fits


def test_lid_kq_is_there_twice_in_build_9865() -> None:
    asked = flags("-c 131072 -ub 2048 -np 1 -fa on --cpu-moe")
    said = explain(header("mxfp4"), asked, parse_gpus(["2*RTX 5090"]), "9865")
    assert not said.estimate.fits
    assert "build 9865 is not modelled: taken as b9842" in said.estimate.approximate
    for buffer in said.buffers[:2]:
        assert buffer.decides is not None and buffer.peak is not None
        assert (buffer.decides.base, buffer.decides.count) == ("lid_kq", 2)
        assert buffer.decides.bytes == 32 * GIB
        assert buffer.bytes > 32606 * MIB


TRIED = "-c 262144 -ub 512 -np 4 -kvu -fa auto -ctk q8_0 -ctv q8_0"


def test_a_quantised_cache_on_fewer_layers_than_all_aborts_in_b10068() -> None:
    rig = parse_gpus(["4*RTX 3090"])
    found = estimate(header("ud-q2"), flags(f"{TRIED} -ngl 30"), rig, "b10068")
    assert found.refused is not None
    assert (found.refused.kind, found.refused.outcome) == ("permuted-quantized-tensor", "abort")
    assert "nb[0]" in found.refused.message


def test_placed_by_hand_the_same_cache_loads_in_b10068() -> None:
    found = estimate(header("ud-q2"), flags(f"{TRIED} -ts 1,1,1,1 -ncmoe 30"), parse_gpus(["4*RTX 3090"]), "b10068")
    assert found.refused is None


STRADDLED = (
    "-c 262144 -ub 2048 -fa on -ot"
    r" blk\.(0|1|2|3|4|5|6|7|8)\.ffn_(up|gate|down)_exps=CUDA0,"
    r"blk\.(22|23|24|25|26|27|28|29|30)\.ffn_(up|gate|down)_exps=CUDA1,exps=CPU"
)


def test_the_default_slots_of_a_fork_ask_for_389_gib() -> None:
    rig = parse_gpus(["2*RTX 3090"])
    found = estimate(header("antirez-q2"), flags(STRADDLED), rig, "lid-cuda")
    assert found.flags.n_parallel == 4 and found.flags.kv_unified
    assert found.buffers["CUDA0"].compute == 417662695680
    assert not found.fits
    cured = estimate(header("antirez-q2"), flags(f"{STRADDLED} -np 1"), rig, "lid-cuda")
    assert all(3 * GIB < cured.buffers[gpu].compute < 3.5 * GIB for gpu in ("CUDA0", "CUDA1"))
    assert cured.starts and not cured.fits


def test_rope_at_an_offset_leaves_larger_gaps() -> None:
    asked = flags("-c 64000 -b 4096 -ub 4096 -np 1 -fa on -cmoe --no-op-offload")
    peaks = []
    for release in ("b10549", "b10568"):
        said = explain(header("q3"), asked, parse_gpus(["RTX 3090"]), release)
        peak = said.buffers[0].peak
        assert peak is not None
        peaks.append(peak)
    before, after = peaks
    assert (before.bytes, after.bytes) == (2436956160, 2803957760)
    assert after.bytes - before.bytes == after.lost - before.lost
    assert sum(t.bytes for t in before.live) == sum(t.bytes for t in after.live)


@pytest.mark.parametrize(
    ("build", "splits", "off"),
    [
        ("10131", 44, ["Lightning Indexer", *(f"fused DeepSeek V4 HC {part}" for part in ("comb", "post", "pre"))]),
        ("10243", 2, []),
    ],
)
def test_metal_in_august(build: str, splits: int, off: list[str]) -> None:
    """Of a file whose experts have types like these: Metal joins nothing here, so its types play no part in splits."""
    found = estimate(header("ud-q2"), flags("-c 65536"), parse_gpus(["M4 Max 128 GB"]), build)
    assert found.splits == (splits, splits)
    assert sorted(found.disabled) == off


def ud_iq2_xxs() -> Header:
    """Gate and up iq2_xxs, iq2_s in layer 26; down iq3_xxs, mxfp4 in 26 and 42; embeddings and output q4_K."""
    made = builtin_header("deepseek-v4-flash:ud-q2")
    tensors = dict(made.tensors)
    for i in range(43):
        for part in ("gate", "up", "down"):
            name = f"blk.{i}.ffn_{part}_exps.weight"
            usual, other, where = ("iq3_xxs", "mxfp4", (26, 42)) if part == "down" else ("iq2_xxs", "iq2_s", (26, 26))
            tensors[name] = replace(tensors[name], type=BY_NAME[other if i in where else usual])
    return replace(made, tensors=tensors)


def ud_q8_k_xl() -> Header:
    """Experts mxfp4, all else bf16."""
    made = builtin_header("deepseek-v4-flash:mxfp4")
    bf16 = BY_NAME["bf16"]
    return replace(
        made,
        tensors={
            name: replace(t, type=bf16) if t.type.name == "q8_0" or "ffn_gate_inp" in name else t
            for name, t in made.tensors.items()
        },
    )


@pytest.mark.parametrize(("model", "pinned"), [(ud_iq2_xxs(), 80268.0625), (ud_q8_k_xl(), 141362.0)])
def test_all_experts_on_the_host_in_10236(model: Header, pinned: float) -> None:
    """Token embeddings lie with them, in pinned memory, since CUDA reads rows of all their types."""
    found = estimate(model, flags("-c 65536 -np 1 -cmoe"), parse_gpus(["2*RTX 3090"]), "10236")
    assert found.buffers["CUDA_Host"].model == pinned * MIB
    assert "CPU" not in found.buffers
    assert "taken as b10235" in found.approximate


def test_two_makers_cards_are_two_backends() -> None:
    """What stopped the loads of one rig of RTX PRO 6000 and Strix Halo: `failed to allocate` these buffers."""
    gpus = parse_gpus(["RTX PRO 6000", "Strix Halo:126976:126000:ROCm"])
    words = "-c 131072 -np 4 -ngl 99 -fa on -lm none -b 4096 -ub 2048"
    on_host = estimate(header("mxfp4"), flags(f"{words} -ncmoe 18 -dev CUDA0,ROCm0"), gpus, "b10441")
    assert on_host.buffers["CUDA_Host"].model == 62664998912
    experts = r"-ot blk\.(2[5-9]|3[0-9]|4[0-2])\.ffn_.*_exps\.weight=ROCm0 -dev CUDA0,ROCm0 -ts 1,0"
    on_other = estimate(header("mxfp4"), flags(f"{words} {experts}"), gpus, "v0.5.0")
    assert on_other.buffers["ROCm0"].model == 61605937152
    assert on_other.splits == (38, 38)
    unused = estimate(header("mxfp4"), flags(f"{words} -ncmoe 18"), gpus, "b10441")
    assert "ROCm0" not in unused.buffers  # an integrated GPU beside another


def test_the_fork_that_had_the_model_first() -> None:
    """Its weights as a card had them; caches by its source: rows of the window, states, compressed rows."""
    found = estimate(header("antirez-q2"), flags("-c 65536 -np 1"), parse_gpus(["H200"]), "antirez")
    cuda, host = found.buffers["CUDA0"], found.buffers["CUDA_Host"]
    assert (round(cuda.model / MIB, 2), host.model / MIB) == (81687.67, 1010)
    window, states = 43 * 768 * 512 * 2, 41 * 2 * 65536 * 4
    compressed = 21 * 16384 * (512 + 128) * 2 + 20 * 512 * 512 * 2
    assert cuda.context - (window + states + compressed) == 0
    assert (cuda.compute, found.nodes) == (0, (0, 0))
    assert "compute buffers are missing" in found.approximate
    four = estimate(header("antirez-q2"), flags("-c 65536 -np 4 -kvu"), parse_gpus(["H200"]), "antirez")
    window = 43 * 1024 * 512 * 2  # unified: one window a slot, and a ubatch
    assert four.buffers["CUDA0"].context == window + 4 * (states + compressed)


def test_glm_5_2_on_four_cards_of_96_gb() -> None:
    """Every figure of a log of August 2026: the types of its tensors, its file, all buffers, nodes and splits."""
    model = builtin_header("glm-5.2:ud-q5")
    types = Counter(t.type.name for t in model.tensors.values())
    assert types == {"f32": 709, "q8_0": 876, "q5_K": 150, "q6_K": 74}
    assert round(model.nbytes / 1024 / MIB, 2) == 523.83
    asked = flags("-c 524288 -np 1 -ub 512 -fa on -ts 55,9,8,8 -ncmoe 54")
    found = estimate(model, asked, parse_gpus(["4*RTX PRO 6000 Max-Q"]), "b10605")
    gpus, host = [found.buffers[f"CUDA{i}"] for i in range(4)], found.buffers["CUDA_Host"]
    assert [b.model // MIB for b in (*gpus, host)] == [19485, 62690, 55724, 44989, 346468]
    assert [b.context / MIB for b in gpus] == [33728, 5440, 4864, 3584]
    assert [round(b.compute / MIB, 2) for b in gpus] == [4648.07, 2300.07, 2292.07, 2284.07]
    assert round(host.compute / MIB, 2) == 1048.07
    assert (found.nodes[0], found.splits) == (7050, (158, 107))


@pytest.mark.parametrize(("ubatch", "compute"), [(128, (38.50, 13.00)), (512, (154.02, 52.02))])
def test_qwen3_6_27b_with_two_ubatches(ubatch: int, compute: tuple[float, float]) -> None:
    asked = flags(f"-c 32768 -np 1 -ub {ubatch}")
    found = estimate(builtin_header("qwen3.6-27b"), asked, parse_gpus(["RTX PRO 6000"]), "v0.4.0")
    assert round(found.buffers["CUDA0"].context / MIB, 2) == 2048 + 149.62
    assert tuple(round(found.buffers[name].compute / MIB, 2) for name in ("CUDA0", "CUDA_Host")) == compute
