from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from memplan.errors import HeaderError, UnknownModel
from memplan.gguf.header import Header, Value
from memplan.gguf.source import read_header
from memplan.models.builtin import builtin_header, builtin_like, builtin_names, header_of, is_builtin
from memplan.models.catalogue import MODELS, deepseek4
from memplan.models.recipes import DEEPSEEK4
from tests.gguf import writer
from tests.golden import stored as header


def mib(h: Header) -> float:
    return round(h.nbytes / 2**20, 2)


def test_names() -> None:
    names = builtin_names()
    assert len(names) == len(set(names)) == sum(len(model.recipes) for model in MODELS.values())
    assert {"deepseek-v4-flash:antirez-q2", "deepseek-v4-pro:mxfp4", "deepseek-v4-flash:mtp-q2"} <= set(names)
    assert all(is_builtin(name) and builtin_header(name).name == name for name in names)
    assert builtin_header("deepseek-v4-flash") == builtin_header("deepseek-v4-flash:antirez-q2")
    assert builtin_header("DeepSeek-V4-Pro").name == "deepseek-v4-pro:mxfp4"
    assert builtin_header("deepseek-v4-pro:") == builtin_header("deepseek-v4-pro")


def test_a_header_is_the_same_object_each_time() -> None:
    """What is known of a model, and of its graphs, is kept by its header."""
    first = builtin_header("qwen3-8b")
    assert builtin_header("QWEN3-8B:" + MODELS["qwen3-8b"].default) is first
    changed = builtin_header("qwen3-8b", ["block_count=8"])
    assert changed is builtin_header("qwen3-8b", ("block_count=8",)) and changed is not first


def test_unknown_names_list_what_exists() -> None:
    assert not is_builtin("bloom")
    with pytest.raises(UnknownModel, match="no built-in model 'bloom'; memplan models lists"):
        builtin_header("bloom")
    with pytest.raises(UnknownModel, match="no recipe 'q9'; there are antirez-q2, antirez-q4, mtp-q2, mxfp4, q3"):
        builtin_header("deepseek-v4-flash:q9")


def test_totals_that_people_reported() -> None:
    assert mib(builtin_header("deepseek-v4-flash:antirez-q2")) == 82697.65  # R24
    assert mib(builtin_header("deepseek-v4-flash:antirez-q4")) == 157001.65  # R26
    embedding = builtin_header("deepseek-v4-flash").tensors["token_embd.weight"]
    assert embedding.nbytes == 1010 * 2**20  # R25


def test_flash_by_hand() -> None:
    h = builtin_header("deepseek-v4-flash:antirez-q2")
    per_layer = {i: sum(name.startswith(f"blk.{i}.") for name in h.tensors) for i in range(43)}
    # 24 a layer; 4 more with a compressor (HCA), 10 more with an indexer too (CSA)
    assert per_layer == {i: 24 if i < 2 else 34 if i % 2 == 0 else 28 for i in range(43)}
    assert len(h.tensors) == 6 + 24 * 43 + 10 * 21 + 4 * 20 == 1328
    experts = [t for t in h.tensors.values() if t.name.endswith("_exps.weight")]
    assert {t.shape for t in experts} == {(4096, 2048, 256), (2048, 4096, 256)}
    # 256 experts of 2048 rows of 4096: iq2_xxs twice, q2_K once
    assert sum(t.nbytes for t in experts) == 43 * 256 * 2048 * 4096 // 256 * (66 + 66 + 84)
    assert h.tensors["blk.2.attn_compressor_kv.weight"].shape == (4096, 1024)
    assert h.tensors["blk.3.attn_compressor_kv.weight"].shape == (4096, 512)
    assert h.tensors["blk.3.attn_compressor_ape.weight"].shape == (512, 128)
    assert h.tensors["blk.2.indexer_compressor_ape.weight"].shape == (256, 4)
    assert h.tensors["blk.2.ffn_gate_tid2eid.weight"].shape == (6, 129280)
    assert "blk.3.ffn_gate_tid2eid.weight" not in h.tensors
    assert h.tensors["blk.42.hc_ffn_fn.weight"].shape == (16384, 24)
    assert h.metadata["deepseek4.attention.compress_ratios"] == (0, 0, *(4, 128) * 20, 4, 0)


def test_pro_by_hand() -> None:
    h = builtin_header("deepseek-v4-pro")
    ratios = h.metadata["deepseek4.attention.compress_ratios"]
    assert isinstance(ratios, tuple)
    assert (ratios.count(4), ratios.count(128), len(ratios)) == (30, 31, 62)
    assert len(h.tensors) == 6 + 24 * 61 + 10 * 30 + 4 * 31
    assert h.tensors["blk.60.attn_output_a.weight"].shape == (4096, 16384)
    assert h.tensors["blk.60.ffn_up_exps.weight"].nbytes == 384 * 3072 * 7168 // 32 * 17


@pytest.mark.parametrize(
    ("recipe", "mib", "types"),
    [
        ("official", 149128.92, {"f32": 641, "q8_0": 365, "bf16": 190, "mxfp4": 129, "i32": 3}),
        ("ud-q4_k_xl", 147905.25, {}),
        ("ud-q8_k_xl", 154365.80, {}),
        ("antirez-q2", 80.8 * 1024, {}),
        ("antirez-q4", 153.3 * 1024, {}),
    ],
)
def test_published_files_have_their_size(recipe: str, mib: float, types: dict[str, int]) -> None:
    """As loaders print them; the last two as their page says, to a tenth of a GiB."""
    tensors = builtin_header(f"deepseek-v4-flash:{recipe}").tensors.values()
    assert sum(tensor.nbytes for tensor in tensors) / 2**20 == pytest.approx(
        mib, abs=60 if "antirez" in recipe else 0.01
    )
    assert not types or Counter(tensor.type.name for tensor in tensors) == types


def test_mixed_recipes() -> None:
    def downs(name: str) -> list[str]:
        h = builtin_header(f"deepseek-v4-flash:{name}")
        return [h.tensors[f"blk.{i}.ffn_down_exps.weight"].type.name for i in range(43)]

    assert downs("ud-q2") == ["q4_K" if i % 3 == 0 else "iq3_xxs" for i in range(43)]
    assert downs("q3") == ["q6_K" if i % 5 == 0 else "q4_K" for i in range(43)]


def test_mtp_adds_one_layer() -> None:
    plain, mtp = builtin_header("deepseek-v4-flash:antirez-q2"), builtin_header("deepseek-v4-flash:mtp-q2")
    added = [name for name in mtp.tensors if name not in plain.tensors]
    assert len(added) == 24 + 4
    assert all(name.startswith("blk.43.") for name in added)
    assert "blk.43.exp_probs_b.bias" in added
    assert mtp.tensors["blk.43.nextn.eh_proj.weight"].shape == (8192, 4096)
    assert mtp.metadata["deepseek4.block_count"] == 44
    assert mtp.metadata["deepseek4.nextn_predict_layers"] == 1
    assert "deepseek4.nextn_predict_layers" not in plain.metadata


@pytest.mark.parametrize("name", builtin_names())
def test_a_builtin_header_is_what_a_file_of_it_reads_as(name: str) -> None:
    h = builtin_header(name)
    keys = [(k, h.value_types[k], v) for k, v in h.metadata.items()]
    entries = [(t.name, t.shape, t.type.name) for t in h.tensors.values()]
    again = read_header(writer.header(keys, entries), name)
    assert again == h
    assert list(again.tensors) == list(h.tensors)
    model, _, recipe = name.partition(":")
    assert {kind for _, _, kind in entries} <= MODELS[model].recipes[recipe].types


def test_other_shapes() -> None:
    def small(recipe: str, keys: dict[str, Value]) -> Header:
        flash = MODELS["deepseek-v4-flash"]
        return header_of(replace(flash, keys=deepseek4(changed=keys)), DEEPSEEK4[recipe], "small")

    h = small("mxfp4", {"block_count": 3, "vocab_size": 1000})
    assert len(h.tensors) == 6 + 3 * 24 + 10
    assert h.tensors["output.weight"].shape == (4096, 1000)
    assert len(small("q8_0", {"block_count": 1}).tensors) == 6 + 24


def test_files_of_other_architectures() -> None:
    h = builtin_header("qwen3-30b-a3b")
    assert len(h.tensors) == 579
    types = Counter(t.type.name for t in h.tensors.values())
    # as a log of the file counts them, of 17.28 GiB
    assert types == {"f32": 241, "q4_K": 289, "q6_K": 49}
    assert round(h.nbytes / 2**30, 2) == 17.28


def test_values_are_counted_where_there_are_any() -> None:
    """Of Nemotron's 52 layers six have attention; llama-quantize gives the third and the last of them more bits."""
    h = builtin_header("nemotron-3-nano-30b-a3b")
    types = {name: t.type.name for name, t in h.tensors.items() if name.endswith("attn_v.weight")}
    assert [types[f"blk.{il}.attn_v.weight"] for il in (5, 12, 19, 26, 33, 42)] == [
        *("q5_0", "q5_0", "q8_0", "q5_0", "q5_0", "q8_0")
    ]


def test_recipes_of_experts_are_of_models_with_experts() -> None:
    for name in builtin_names():
        model, _, recipe = name.partition(":")
        if "experts" in MODELS[model].recipes[recipe].about:
            assert any("_exps" in tensor for tensor in builtin_header(name).tensors), name


def test_a_block_that_drafts() -> None:
    plain, longer = (builtin_header(f"qwen3.6-35b-a3b:{name}") for name in ("q4_K_M", "q4_K_M-mtp"))
    assert (len(plain.tensors), len(longer.tensors)) == (733, 753)
    assert {name.split(".")[1] for name in set(longer.tensors) - set(plain.tensors)} == {"40"}


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("llama-3.2-3b:q4_K_M", "llama32-3b"),
        ("llama-4-scout:q4_K_M", "llama4-scout"),
        ("devstral-small-2-24b:q8_0", "devstral2-24b"),
        ("qwen3-8b:q4_K_M", "qwen3-8b"),
        ("qwen3-next-80b-a3b:q4_K_M-mtp", "qwen3next-mtp"),
        ("nemotron-3-super-120b-a12b:q4_K_M-mtp", "nemotron3-super-120b-mtp"),
        ("phi-4:q4_K_M", "phi4-14b"),
        ("glm-4.5-air:q4_K_M", "glm45-air"),
        ("ernie-4.5-21b-a3b:q4_K_M", "ernie45-21b"),
        ("minimax-m2:q4_K_M", "minimax-m2"),
        ("gpt-oss-20b:mxfp4", "gpt-oss-20b"),
        ("gemma-3-27b:q4_K_M", "gemma3-27b"),
        ("gemma-4-26b-a4b:q4_K_M", "gemma4-26b-a4b"),
        ("gemma-4-e4b:q8_0", "gemma4-e4b"),
        ("step-3.5-flash:ud-q2", "step35-flash"),
        ("deepseek-v3.2:ud-q2", "deepseek-v32"),
        ("kimi-k2:ud-q2", "kimi-k2"),
        ("glm-4.7-flash:q4_K_M", "glm47-flash"),
        ("glm-5:ud-q2", "glm5"),
        ("glm-5.2:ud-q2", "glm52"),
        ("minimax-m3:ud-q2", "minimax-m3"),
        ("mistral-4-119b:q4_K_M", "mistral4-119b"),
    ],
)
def test_what_llama_cpp_was_asked_about(name: str, file: str) -> None:
    """The headers of the golden answers, which were made apart from these rows."""
    built, asked = builtin_header(name), header(file)
    assert {t.name: (t.shape, t.type) for t in built.tensors.values()} == {
        t.name: (t.shape, t.type) for t in asked.tensors.values()
    }
    own = {key: value for key, value in asked.metadata.items() if not key.startswith("general.")}
    own.pop("step35.moe_every_n_layers", None)  # which llama.cpp does not read
    assert {key: value for key, value in built.metadata.items() if not key.startswith("general.")} == own


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("DeepSeek-V4-Flash-UD-Q2-00001-of-00003.gguf", "deepseek-v4-flash:ud-q2"),
        ("C:\\models\\gpt-oss-120b-mxfp4.gguf", "gpt-oss-120b:mxfp4"),
        ("DeepSeek-V4-Flash-MXFP4-00001-of-00004.gguf", "deepseek-v4-flash:official"),
        ("/m/DeepSeek-V4-Flash-UD-Q4_K_XL-00001-of-00004.gguf", "deepseek-v4-flash:ud-q4_k_xl"),
        ("Qwen3-8B-IQ2_XXS.gguf", "qwen3-8b:q4_K_M"),
        ("something.gguf", ""),
        ("", ""),
    ],
)
def test_a_file_s_name_tells_the_built_in_model(name: str, builtin: str) -> None:
    assert builtin_like(name) == builtin


def test_tensors_of_more_bytes_than_llama_cpp_counts_are_refused() -> None:
    known = MODELS["gpt-oss-120b"]
    wide = dict.fromkeys(("expert_feed_forward_length", "embedding_length"), 2**31 - 64)
    keys = {**known.keys, "expert_count": 1024, **wide}
    with pytest.raises(HeaderError, match="more than 2\\^64 bytes"):
        header_of(replace(known, keys=keys), known.recipes[known.default], "absurd")
