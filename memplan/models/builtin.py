"""Built-in models: headers that need no file, with the shapes and tensor types of the files people use.

A name is ``MODEL`` or ``MODEL:RECIPE``: ``deepseek-v4-flash``, ``deepseek-v4-pro:q8_0``. A model gives the shapes, a
recipe the type of each kind of tensor. Tensor names and shapes are those that llama.cpp loads
(src/models/deepseek4.cpp: load_arch_tensors, v0.5.0). There is no vocabulary in these headers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from memplan.errors import UnknownModel, shown
from memplan.gguf.header import DEFAULT_ALIGNMENT, Header, TensorInfo, Value
from memplan.gguf.types import BY_NAME, F32, I32, GGMLType


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """DeepSeek-V4's hyper-parameters; the defaults are Flash's.

    Counts and widths in elements, under the names of GGUF's keys where there is one. ``first_ratios``: the compression
    ratios of layers 0 and 1 (0: sliding window only); from layer 2 on, 4 and 128 take turns.
    """

    block_count: int = 43
    context_length: int = 1048576
    embedding_length: int = 4096
    head_count: int = 64
    key_length: int = 512
    rope_dimension_count: int = 64
    q_lora_rank: int = 1024
    output_lora_rank: int = 1024
    output_group_count: int = 8
    sliding_window: int = 128
    expert_count: int = 256
    expert_used_count: int = 6
    expert_shared_count: int = 1
    expert_feed_forward_length: int = 2048
    expert_weights_scale: float = 1.5
    indexer_head_count: int = 64
    indexer_key_length: int = 128
    indexer_top_k: int = 512
    hyper_connection_count: int = 4
    hash_layer_count: int = 3
    vocab_size: int = 129280
    first_ratios: tuple[int, int] = (0, 0)

    @property
    def compress_ratios(self) -> tuple[int, ...]:
        """The compression ratio of each layer: 0 none, 4 with an indexer (CSA), 128 without (HCA)."""
        return self.first_ratios + tuple(4 if i % 2 == 0 else 128 for i in range(self.block_count - 2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The tensor type of each kind of tensor, by name; norms, sinks and biases are always f32.

    ``gate_up``, ``down``: the routed experts. ``down_every``: (n, type) gives every nth layer's down experts that type,
    as mixed quants do. ``nextn``: with one layer for multi-token prediction (MTP).
    """

    about: str
    gate_up: str
    down: str
    attention: str
    shared: str
    embedding: str
    output: str
    compressor: str
    indexer: str
    hyper_connection: str = "f32"
    position: str = "f32"
    router: str = "f32"
    down_every: tuple[int, str] | None = None
    nextn: bool = False


@dataclass(frozen=True, slots=True)
class BuiltinModel:
    """One built-in model: its ``name``, what it is ``about``, its ``shape`` and the ``default`` recipe's name."""

    name: str
    about: str
    shape: Shape
    default: str


def _antirez(about: str, gate_up: str, down: str) -> Recipe:
    # f16 also where other files keep f32
    return Recipe(
        about=about, gate_up=gate_up, down=down, attention="q8_0", shared="q8_0", embedding="f16", output="q8_0",
        compressor="f16", indexer="f16", hyper_connection="f16", position="f16", router="f16",
    )  # fmt: skip


_ANTIREZ_Q2 = _antirez("experts iq2_xxs and q2_K, the rest q8_0 and f16", "iq2_xxs", "q2_K")

RECIPES: Mapping[str, Recipe] = {
    "antirez-q2": _ANTIREZ_Q2,
    "antirez-q4": _antirez("experts q4_K, the rest q8_0 and f16", "q4_K", "q4_K"),
    "mtp-q2": replace(_ANTIREZ_Q2, about="antirez-q2 and one layer for multi-token prediction", nextn=True),
    "mxfp4": Recipe(
        about="experts mxfp4 as published, attention q8_0, the rest bf16",
        gate_up="mxfp4", down="mxfp4", attention="q8_0", shared="q8_0", embedding="bf16", output="bf16",
        compressor="bf16", indexer="bf16",
    ),
    "q3": Recipe(
        about="experts q3_K and q4_K, every fifth layer's down experts q6_K",
        gate_up="q3_K", down="q4_K", attention="q6_K", shared="q8_0", embedding="q6_K", output="q6_K",
        compressor="bf16", indexer="bf16", router="bf16", down_every=(5, "q6_K"),
    ),
    "q8_0": Recipe(
        about="everything q8_0",
        gate_up="q8_0", down="q8_0", attention="q8_0", shared="q8_0", embedding="q8_0", output="q8_0",
        compressor="q8_0", indexer="q8_0",
    ),
    "ud-q2": Recipe(
        about="experts iq2_xxs and iq3_xxs, every third layer's down experts q4_K",
        gate_up="iq2_xxs", down="iq3_xxs", attention="q6_K", shared="q6_K", embedding="q4_K", output="q6_K",
        compressor="q8_0", indexer="q8_0", down_every=(3, "q4_K"),
    ),
}  # fmt: skip
"""The recipes, by name; every model has all of them."""

FLASH = Shape()
PRO = Shape(
    block_count=61, embedding_length=7168, head_count=128, q_lora_rank=1536, output_group_count=16, expert_count=384,
    expert_feed_forward_length=3072, indexer_top_k=1024, expert_weights_scale=2.5, first_ratios=(128, 128),
)  # fmt: skip

MODELS: Mapping[str, BuiltinModel] = {
    m.name: m
    for m in (
        BuiltinModel("deepseek-v4-flash", "DeepSeek-V4-Flash: 43 layers, 256 experts", FLASH, "antirez-q2"),
        BuiltinModel("deepseek-v4-pro", "DeepSeek-V4-Pro: 61 layers, 384 experts", PRO, "mxfp4"),
    )
}
"""The built-in models, by name."""


def builtin_names() -> tuple[str, ...]:
    """Every full name, ``MODEL:RECIPE``."""
    return tuple(f"{model}:{recipe}" for model in MODELS for recipe in RECIPES)


def is_builtin(name: str) -> bool:
    """Whether ``name`` is meant as a built-in model's: ``MODEL`` or ``MODEL:RECIPE``, its recipe known or not."""
    return name.partition(":")[0].lower() in MODELS


def builtin_header(name: str) -> Header:
    """The header of the built-in model called ``name`` (``MODEL`` or ``MODEL:RECIPE``), made without any file.

    Raises UnknownModel, listing what exists.
    """
    model_name, _, recipe_name = name.lower().partition(":")
    model = MODELS.get(model_name)
    if model is None:
        raise UnknownModel(f"no built-in model {shown(name)}; there are {', '.join(MODELS)}")
    recipe_name = recipe_name or model.default
    if recipe_name not in RECIPES:
        raise UnknownModel(f"{model_name} has no recipe {shown(recipe_name)}; there are {', '.join(RECIPES)}")
    return deepseek4_header(model.shape, RECIPES[recipe_name], f"{model_name}:{recipe_name}")


def deepseek4_header(shape: Shape, recipe: Recipe, name: str) -> Header:
    """The header of a DeepSeek-V4 of any ``shape`` and ``recipe``, as a file of it would have."""
    tensors: dict[str, TensorInfo] = {}
    offset = 0
    for tensor_name, dims, type_ in _tensors(shape, recipe):
        tensors[tensor_name] = TensorInfo(tensor_name, dims, type_, offset)
        size = prod(dims) // type_.block_size * type_.type_size
        offset += -(-size // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT
    metadata, types = _metadata(shape, recipe)
    return Header(3, metadata, tensors, DEFAULT_ALIGNMENT, 1, name, types)


_Tensor = tuple[str, tuple[int, ...], GGMLType]


def _tensors(s: Shape, r: Recipe) -> Iterator[_Tensor]:
    """Every tensor in file order: name, shape (ne0 first), type."""
    n_embd, n_vocab, n_hc = s.embedding_length, s.vocab_size, s.hyper_connection_count
    yield "token_embd.weight", (n_embd, n_vocab), BY_NAME[r.embedding]
    yield "output_norm.weight", (n_embd,), F32
    yield "output.weight", (n_embd, n_vocab), BY_NAME[r.output]
    yield "output_hc_fn.weight", (n_hc * n_embd, n_hc), BY_NAME[r.hyper_connection]
    yield "output_hc_base.weight", (n_hc,), F32
    yield "output_hc_scale.weight", (1,), F32
    # the MTP layer comes after the others and has no compressor
    for i, ratio in enumerate(s.compress_ratios[: s.block_count] + (0,) * r.nextn):
        layer = f"blk.{i}."
        yield from _attention(layer, s, r)
        if ratio:
            yield from _compressor(layer, s, r, ratio)
        yield from _experts(layer, i, s, r)
        if i >= s.block_count:
            yield layer + "nextn.eh_proj.weight", (2 * n_embd, n_embd), BY_NAME[r.attention]
            for norm in ("enorm", "hnorm", "shared_head_norm"):
                yield f"{layer}nextn.{norm}.weight", (n_embd,), F32


def _attention(layer: str, s: Shape, r: Recipe) -> Iterator[_Tensor]:
    type_, hc_type = BY_NAME[r.attention], BY_NAME[r.hyper_connection]
    n_embd, n_hc, q_rank, head = s.embedding_length, s.hyper_connection_count, s.q_lora_rank, s.key_length
    low = s.output_group_count * s.output_lora_rank
    mix = n_hc * (2 + n_hc)  # one pre and one post weight a connection, and a square between the connections
    yield layer + "attn_norm.weight", (n_embd,), F32
    yield layer + "attn_sinks.weight", (s.head_count,), F32
    yield layer + "attn_q_a.weight", (n_embd, q_rank), type_
    yield layer + "attn_q_a_norm.weight", (q_rank,), F32
    yield layer + "attn_q_b.weight", (q_rank, s.head_count * head), type_
    yield layer + "attn_kv.weight", (n_embd, head), type_
    yield layer + "attn_kv_a_norm.weight", (head,), F32
    yield layer + "attn_output_a.weight", (s.head_count * head // s.output_group_count, low), type_
    yield layer + "attn_output_b.weight", (low, n_embd), type_
    for part in ("attn", "ffn"):
        yield f"{layer}hc_{part}_fn.weight", (n_hc * n_embd, mix), hc_type
        yield f"{layer}hc_{part}_base.weight", (mix,), F32
        yield f"{layer}hc_{part}_scale.weight", (3,), F32


def _compressor(layer: str, s: Shape, r: Recipe, ratio: int) -> Iterator[_Tensor]:
    def compressor(name: str, head: int, rows: int) -> Iterator[_Tensor]:
        yield f"{layer}{name}_kv.weight", (s.embedding_length, rows), BY_NAME[r.compressor]
        yield f"{layer}{name}_gate.weight", (s.embedding_length, rows), BY_NAME[r.compressor]
        yield f"{layer}{name}_ape.weight", (rows, ratio), BY_NAME[r.position]
        yield f"{layer}{name}_norm.weight", (head,), F32

    indexed = ratio == 4  # its windows overlap, so each is compressed from two halves
    yield from compressor("attn_compressor", s.key_length, s.key_length * (2 if indexed else 1))
    if indexed:
        heads, head = s.indexer_head_count, s.indexer_key_length
        yield layer + "indexer.proj.weight", (s.embedding_length, heads), BY_NAME[r.indexer]
        yield layer + "indexer.attn_q_b.weight", (s.q_lora_rank, heads * head), BY_NAME[r.indexer]
        yield from compressor("indexer_compressor", head, 2 * head)


def _experts(layer: str, i: int, s: Shape, r: Recipe) -> Iterator[_Tensor]:
    n_embd, n_expert, n_ff = s.embedding_length, s.expert_count, s.expert_feed_forward_length
    yield layer + "ffn_gate_inp.weight", (n_embd, n_expert), BY_NAME[r.router]
    if i < s.hash_layer_count:
        yield layer + "ffn_gate_tid2eid.weight", (s.expert_used_count, s.vocab_size), I32
    else:
        yield layer + "exp_probs_b.bias", (n_expert,), F32
    yield layer + "ffn_norm.weight", (n_embd,), F32
    down = r.down_every[1] if r.down_every and i % r.down_every[0] == 0 else r.down
    yield layer + "ffn_gate_exps.weight", (n_embd, n_ff, n_expert), BY_NAME[r.gate_up]
    yield layer + "ffn_down_exps.weight", (n_ff, n_embd, n_expert), BY_NAME[down]
    yield layer + "ffn_up_exps.weight", (n_embd, n_ff, n_expert), BY_NAME[r.gate_up]
    shared, type_ = n_ff * s.expert_shared_count, BY_NAME[r.shared]
    yield layer + "ffn_gate_shexp.weight", (n_embd, shared), type_
    yield layer + "ffn_down_shexp.weight", (shared, n_embd), type_
    yield layer + "ffn_up_shexp.weight", (n_embd, shared), type_


def _metadata(s: Shape, r: Recipe) -> tuple[dict[str, Value], dict[str, str]]:
    """Keys with their values (floats as f32 holds them), and with their GGUF types."""
    layers = s.block_count + r.nextn
    rows: list[tuple[str, str, Value]] = [
        ("block_count", "u32", layers),
        ("context_length", "u32", s.context_length),
        ("embedding_length", "u32", s.embedding_length),
        ("attention.head_count", "u32", s.head_count),
        ("attention.head_count_kv", "u32", 1),
        ("rope.scaling.type", "str", "yarn"),
        ("rope.scaling.factor", "f32", 16.0),
        ("rope.scaling.original_context_length", "u32", 65536),
        ("rope.freq_base", "f32", 10000.0),
        ("attention.layer_norm_rms_epsilon", "f32", 1e-6),
        ("expert_used_count", "u32", s.expert_used_count),
        ("expert_gating_func", "u32", 4),
        ("expert_count", "u32", s.expert_count),
        ("attention.key_length", "u32", s.key_length),
        ("attention.value_length", "u32", s.key_length),
        ("rope.dimension_count", "u32", s.rope_dimension_count),
        ("attention.q_lora_rank", "u32", s.q_lora_rank),
        ("attention.sliding_window", "u32", s.sliding_window),
        ("expert_feed_forward_length", "u32", s.expert_feed_forward_length),
        ("expert_shared_count", "u32", s.expert_shared_count),
        ("expert_weights_scale", "f32", s.expert_weights_scale),
        ("expert_weights_norm", "bool", True),
        ("swiglu_clamp_exp", "arr[f32]", (10.0,) * layers),
        ("swiglu_clamp_shexp", "arr[f32]", (10.0,) * layers),
        ("attention.indexer.head_count", "u32", s.indexer_head_count),
        ("attention.indexer.key_length", "u32", s.indexer_key_length),
        ("attention.indexer.top_k", "u32", s.indexer_top_k),
        ("attention.output_group_count", "u32", s.output_group_count),
        ("attention.output_lora_rank", "u32", s.output_lora_rank),
        # one entry more than layers: the MTP layer's, in files with that layer and without
        ("attention.compress_ratios", "arr[i32]", (*s.compress_ratios, 0)),
        ("attention.compress_rope_freq_base", "f32", 160000.0),
        ("hyper_connection.count", "u32", s.hyper_connection_count),
        ("hyper_connection.sinkhorn_iterations", "u32", 20),
        ("hyper_connection.epsilon", "f32", 1e-6),
        ("hash_layer_count", "u32", s.hash_layer_count),
        ("embedding_length_out", "u32", s.hyper_connection_count * s.embedding_length),
        ("vocab_size", "u32", s.vocab_size),
    ]
    if r.nextn:
        rows.append(("nextn_predict_layers", "u32", 1))
    rows = [
        ("general.architecture", "str", "deepseek4"),
        ("general.type", "str", "model"),
        ("general.name", "str", "DeepSeek-V4 (header only)"),
        ("general.alignment", "u32", DEFAULT_ALIGNMENT),
        *(("deepseek4." + key, type_, value) for key, type_, value in rows),
        ("tokenizer.ggml.model", "str", "none"),
    ]
    f32 = struct.Struct("<f")
    metadata = {key: f32.unpack(f32.pack(v))[0] if type_ == "f32" else v for key, type_, v in rows}
    return metadata, {key: type_ for key, type_, _ in rows}
