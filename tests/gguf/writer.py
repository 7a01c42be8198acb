"""A tiny GGUF header writer for tests: independent of memplan's reader, and willing to write wrong headers."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

VALUE_TYPES = {"u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7, "str": 8, "u64": 10}
VALUE_TYPES |= {"i64": 11, "f64": 12}
CODES = {"u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "f32": "f", "bool": "?", "u64": "Q"}
CODES |= {"i64": "q", "f64": "d"}
# name: (id, elements of a block, bytes of a block), as the files on people's disks have them
TENSOR_TYPES = {
    "f32": (0, 1, 4), "f16": (1, 1, 2), "q4_0": (2, 32, 18), "q5_0": (6, 32, 22), "q5_1": (7, 32, 24),
    "q8_0": (8, 32, 34), "q2_K": (10, 256, 84), "q3_K": (11, 256, 110), "q4_K": (12, 256, 144),
    "q5_K": (13, 256, 176), "q6_K": (14, 256, 210), "iq2_xxs": (16, 256, 66), "iq3_xxs": (18, 256, 98),
    "iq4_nl": (20, 32, 18), "i32": (26, 1, 4), "bf16": (30, 1, 2), "mxfp4": (39, 32, 17),
}  # fmt: skip

Key = tuple[str, str, Any]  # name, type ("u32", "arr[str]"), value
Tensor = tuple[str, Sequence[int], str]  # name, shape, type


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def value(kind: str, v: Any) -> bytes:
    return string(v) if kind == "str" else struct.pack("<" + CODES[kind], v)


def key(name: str | bytes, kind: str, v: Any) -> bytes:
    if kind.startswith("arr["):
        element = kind[4:-1]
        head = struct.pack("<IIQ", 9, VALUE_TYPES[element], len(v))
        return string(name) + head + b"".join(value(element, x) for x in v)
    return string(name) + struct.pack("<I", VALUE_TYPES[kind]) + value(kind, v)


def tensor(name: str | bytes, shape: Sequence[int], type_id: int, offset: int) -> bytes:
    return string(name) + struct.pack(f"<I{len(shape)}qiQ", len(shape), *shape, type_id, offset)


def tensors(entries: Iterable[Tensor], alignment: int = 32) -> list[bytes]:
    out, end = [], 0
    for name, shape, type_name in entries:
        type_id, block, size = TENSOR_TYPES[type_name]
        out.append(tensor(name, shape, type_id, end))
        elements = 1
        for d in shape:
            elements *= d
        end += (elements // block * size + alignment - 1) // alignment * alignment
    return out


def raw(
    keys: Sequence[bytes], entries: Sequence[bytes], version: int = 3, counts: tuple[int, int] | None = None
) -> bytes:
    n_tensors, n_keys = counts or (len(entries), len(keys))
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_keys) + b"".join(keys) + b"".join(entries)


def header(keys: Iterable[Key] = (), entries: Iterable[Tensor] = (), version: int = 3, alignment: int = 32) -> bytes:
    return raw([key(*k) for k in keys], tensors(entries, alignment), version)


SMALL_KEYS: list[Key] = [
    ("general.architecture", "str", "deepseek4"),
    ("general.alignment", "u32", 32),
    ("general.tags", "arr[str]", ["text", "moe"]),
    ("deepseek4.block_count", "u32", 2),
    ("deepseek4.rope.freq_base", "f32", 10000.0),
    ("deepseek4.expert_weights_norm", "bool", True),
    ("deepseek4.attention.compress_ratios", "arr[i32]", [0, 4, 128]),
    ("tokenizer.ggml.tokens", "arr[str]", [f"t{i}" for i in range(5000)]),
    ("tokenizer.ggml.scores", "arr[f32]", [0.5] * 5000),
    ("tokenizer.ggml.eos_token_id", "u32", 1),
]
SMALL_TENSORS: list[Tensor] = [
    ("token_embd.weight", (256, 100), "f16"),
    ("output_norm.weight", (256,), "f32"),
    *((f"blk.{i}.ffn_up_exps.weight", (256, 64, 8), "q2_K") for i in range(20)),
]


def small() -> bytes:
    """A sound header with a bit of everything."""
    return header(SMALL_KEYS, SMALL_TENSORS)


def shards(count: int = 3) -> list[bytes]:
    """A sound split model: the small one's tensors dealt over ``count`` files, metadata in the first."""
    size = -(-len(SMALL_TENSORS) // count)
    out = []
    for i in range(count):
        split: list[Key] = [
            ("split.no", "u16", i),
            ("split.count", "u16", count),
            ("split.tensors.count", "i32", len(SMALL_TENSORS)),
        ]
        keys = (SMALL_KEYS if i == 0 else []) + split
        out.append(header(keys, SMALL_TENSORS[i * size : (i + 1) * size]))
    return out
