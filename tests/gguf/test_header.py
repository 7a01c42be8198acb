from __future__ import annotations

import io
import pickle
import re
import struct
import tracemalloc

import pytest

from memplan import errors
from memplan.gguf.header import ARRAY_LIMIT, SkippedArray, parse_header
from memplan.gguf.source import read_header
from memplan.gguf.types import BY_NAME, F32
from tests.gguf import writer
from tests.gguf.test_reader import Pipe
from tests.gguf.writer import key, raw, string, tensor

pytestmark = pytest.mark.slow


def test_a_sound_header() -> None:
    h = read_header(writer.small(), "small")
    assert (h.version, h.alignment, h.shards, h.name) == (3, 32, 1, "small")
    assert h.metadata["general.architecture"] == "deepseek4"
    assert h.metadata["general.tags"] == ("text", "moe")
    assert h.metadata["deepseek4.attention.compress_ratios"] == (0, 4, 128)
    assert h.metadata["deepseek4.expert_weights_norm"] is True
    assert h.metadata["tokenizer.ggml.tokens"] == SkippedArray("str", 5000)
    assert h.metadata["tokenizer.ggml.scores"] == SkippedArray("f32", 5000)
    assert h.value_types["deepseek4.block_count"] == "u32"
    assert h.value_types["tokenizer.ggml.tokens"] == "arr[str]"
    assert list(h.metadata) == [k[0] for k in writer.SMALL_KEYS]
    assert [(t.name, t.shape, t.type.name) for t in h.tensors.values()] == writer.SMALL_TENSORS
    up = h.tensors["blk.1.ffn_up_exps.weight"]
    assert (up.elements, up.nbytes) == (256 * 64 * 8, 64 * 8 * 84)
    assert up.offset == 51200 + 1024 + 43008
    assert h.nbytes == 51200 + 1024 + 20 * 43008
    assert pickle.loads(pickle.dumps(h)) == h


def test_version_2_reads_as_version_3_does() -> None:
    h = read_header(writer.header(writer.SMALL_KEYS, writer.SMALL_TENSORS, version=2), "small")
    assert h.version == 2
    assert h.tensors == read_header(writer.small()).tensors


def test_every_kind_of_file() -> None:
    data = writer.small()
    wanted = read_header(data, "x")
    assert read_header(bytearray(data), "x") == wanted
    assert read_header(memoryview(data), "x") == wanted
    assert read_header(io.BytesIO(data), "x") == wanted
    assert parse_header(Pipe(data, 7), "x") == wanted
    within = io.BytesIO(b"something before" + data + b"data after")
    within.seek(16)
    assert read_header(within, "x") == wanted


def test_an_empty_header() -> None:
    h = read_header(raw([], []))
    assert (dict(h.metadata), dict(h.tensors), h.name) == ({}, {}, "<bytes>")


def test_arrays_are_kept_up_to_the_limit() -> None:
    n = ARRAY_LIMIT
    h = read_header(
        raw(
            [
                key("a", "arr[i32]", range(n)),
                key("b", "arr[i32]", range(n + 1)),
                key("c", "arr[str]", ["s"] * n),
                key("d", "arr[str]", ["s"] * (n + 1)),
                key("e", "arr[bool]", [True, False]),
                key("f", "arr[f64]", []),
                key("g", "u8", 5),
            ],
            [],
        )
    )
    assert h.metadata == {
        "a": tuple(range(n)),
        "b": SkippedArray("i32", n + 1),
        "c": ("s",) * n,
        "d": SkippedArray("str", n + 1),
        "e": (True, False),
        "f": (),
        "g": 5,
    }
    assert len(SkippedArray("i32", n)) == n


def test_what_gguf_cpp_accepts() -> None:
    # no dimensions is a scalar; zero elements are allowed; an alignment may be any power of two; text may be damaged
    h = read_header(
        raw(
            [key("general.alignment", "u32", 1), key("t", "str", b"\xff"), string("b") + struct.pack("<Ib", 7, 2)],
            [
                tensor("scalar", (), 0, 0),
                tensor("none", (0, 5), 0, 4),
                tensor("row", (3,), 0, 4),
                tensor("end", (1,), 0, 16),
            ],
        )
    )
    assert (h.tensors["scalar"].shape, h.tensors["scalar"].nbytes) == ((1,), 4)
    assert h.tensors["none"].nbytes == 0
    assert h.metadata["t"] == "\ufffd"
    assert h.metadata["b"] is True


def test_alignment_pads_offsets() -> None:
    entries: list[writer.Tensor] = [("a", (1,), "f32"), ("b", (3,), "f16"), ("c", (1,), "f32")]
    data = raw([key("general.alignment", "u32", 128)], writer.tensors(entries, 128))
    assert [t.offset for t in read_header(data).tensors.values()] == [0, 128, 256]


F = errors
NAME64 = "n" * 64
WRONG: list[tuple[str, bytes, type[errors.HeaderError], str]] = [
    ("empty", b"", F.TruncatedHeader, "the file is empty"),
    ("magic", b"GGML" + bytes(100), F.BadMagic, "not a GGUF file: starts with 'GGML'"),
    ("lfs", b"version https://git-lfs.github.com/spec/v1\n", F.BadMagic, "Git LFS pointer"),
    ("zip", b"PK\3\4" + bytes(100), F.BadMagic, "PyTorch"),
    ("version 0", raw([], [], 0), F.UnsupportedVersion, "GGUF version 0"),
    ("version 1", raw([], [], 1), F.UnsupportedVersion, "convert the model again"),
    ("version 4", raw([], [], 4), F.UnsupportedVersion, "update memplan"),
    ("big-endian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0), F.UnsupportedByteOrder, "big-endian"),
    ("only magic", b"GGUF", F.TruncatedHeader, "the version"),
    ("no counts", raw([], [])[:12], F.TruncatedHeader, "the number of tensors"),
    ("keys missing", raw([], [], counts=(0, 1)), F.TruncatedHeader, "1 key of 13 bytes"),
    ("tensors missing", raw([], [], counts=(5, 0)), F.TruncatedHeader, "5 tensors of 24 bytes"),
    ("key count", raw([], [], counts=(0, 2**62)), F.BadLength, "keys of 13 bytes"),
    ("tensor count", raw([], [], counts=(2**64 - 1, 0)), F.BadLength, "tensors of 24 bytes"),
    ("key length", raw([struct.pack("<QI", 2**50, 0) + bytes(20)], []), F.BadLength, "key number 0 has a string of"),
    ("key empty", raw([key("", "u32", 1)], []), F.BadValue, "key number 0 has no name"),
    ("key text", raw([key(b"\xff\xfe", "u32", 1)], []), F.BadValue, "not UTF-8"),
    ("key twice", raw([key("a", "u32", 1), key("a", "u8", 1)], []), F.DuplicateKey, "key 'a' occurs twice"),
    ("value type", raw([string("a") + struct.pack("<IQ", 13, 0)], []), F.UnknownValueType, "key 'a' has value type 13"),
    ("element type", raw([string("a") + struct.pack("<IIQ", 9, 99, 0)], []), F.UnknownValueType, "value type 99"),
    ("nested", raw([string("a") + struct.pack("<IIQ", 9, 9, 0)], []), F.UnknownValueType, "array of arrays"),
    ("value cut", raw([key("a", "u64", 1)], [])[:-1], F.TruncatedHeader, "key 'a'"),
    ("string length", raw([string("a") + struct.pack("<IQ", 8, 2**63)], []), F.BadLength, "key 'a' has a string of"),
    ("array length", raw([string("a") + struct.pack("<IIQ", 9, 4, 2**61)], []), F.BadLength, "key 'a' takes"),
    ("array cut", raw([string("a") + struct.pack("<IIQ", 9, 4, 9999)], []), F.TruncatedHeader, "takes 39996 bytes"),
    ("strings length", raw([string("a") + struct.pack("<IIQ", 9, 8, 2**61)], []), F.BadLength, "strings"),
    ("strings cut", raw([string("a") + struct.pack("<IIQ", 9, 8, 9999)], []), F.TruncatedHeader, "9999 strings"),
    ("alignment 0", raw([key("general.alignment", "u32", 0)], []), F.BadValue, "not a power of two"),
    ("alignment 48", raw([key("general.alignment", "u32", 48)], []), F.BadValue, "'general.alignment' is 48"),
    ("alignment type", raw([key("general.alignment", "u64", 32)], []), F.BadValue, "must be of type u32 but is u64"),
    ("name length", raw([], [tensor(NAME64, (1,), 0, 0)]), F.BadLength, "tensor number 0 has a string of 64 bytes"),
    ("name text", raw([], [tensor(b"\xff", (1,), 0, 0)]), F.BadValue, "not UTF-8"),
    (
        "twice",
        raw([], [tensor("a", (8,), 0, 0), tensor("a", (8,), 0, 32)]),
        F.DuplicateTensor,
        "tensor 'a' occurs twice",
    ),
    ("five dimensions", raw([], [tensor("a", (1,) * 5, 0, 0)]), F.BadValue, "has 5 dimensions"),
    ("negative", raw([], [tensor("a", (4, -1), 0, 0)]), F.BadValue, "a negative dimension"),
    ("rows", raw([], [tensor("a", (100,), 8, 0)]), F.BadValue, "rows of 100 elements, not a multiple of 32"),
    ("elements", raw([], [tensor("a", (2**32, 2**31), 24, 0)]), F.BadValue, "more elements than 64 bits"),
    ("elements 1", raw([], [tensor("a", (2**63 - 1,), 24, 0)]), F.BadValue, "more elements than 64 bits"),
    ("bytes", raw([], [tensor("a", (2**61, 3), 28, 0)]), F.BadValue, "more bytes than 64 bits"),
    ("all bytes", raw([], [tensor(n, (2**60,), 28, i << 63) for i, n in enumerate("ab")]), F.BadValue, "2**64"),
    ("type", raw([], [tensor("a", (1,), 43, 0)]), F.UnknownTensorType, "tensor 'a' has type 43, known are 0 to 42"),
    ("type -1", raw([], [tensor("a", (1,), -1, 0)]), F.UnknownTensorType, "type -1"),
    ("removed", raw([], [tensor("a", (256,), 31, 0)]), F.UnknownTensorType, "(q4_0_4_4), which ggml removed"),
    ("offset", raw([], [tensor("a", (8,), 0, 32)]), F.BadValue, "has offset 32, the tensors before it end at 0"),
    ("gap", raw([], [tensor("a", (1,), 0, 0), tensor("b", (1,), 0, 64)]), F.BadValue, "offset 64, "),
    ("tensor cut", raw([], [tensor("a", (8,), 0, 0)])[:-1], F.TruncatedHeader, "tensor 'a' takes 20 bytes"),
]


@pytest.mark.parametrize(("data", "error", "says"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_a_wrong_header_has_its_own_error(data: bytes, error: type[errors.HeaderError], says: str) -> None:
    with pytest.raises(errors.HeaderError, match=re.escape(says)) as caught:
        read_header(data, "bad.gguf")
    assert type(caught.value) is error
    assert re.fullmatch(r"bad\.gguf: [^\n]+ \(byte \d+\); [^\n]+", str(caught.value))


def test_every_leaf_is_tested() -> None:
    assert {w[2] for w in WRONG} == set(errors.HeaderError.__subclasses__())


def test_names_with_control_characters_stay_on_one_line() -> None:
    with pytest.raises(errors.DuplicateKey) as caught:
        read_header(raw([key("a\nb\x1b[31m" + "x" * 5000, "u8", 1)] * 2, []), "x")
    assert "\n" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_largest_tensor_that_ggml_can_represent() -> None:
    h = read_header(raw([], [tensor("a", (2**62, 1), 24, 0)]))
    assert h.tensors["a"].nbytes == 2**62
    assert F32 is BY_NAME["f32"]


def test_a_large_vocabulary_costs_no_lists() -> None:
    tokens = b"".join(string(b"t%06x" % i) for i in range(129_280))
    data = raw([string("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 129_280) + tokens], [])
    tracemalloc.start()
    try:
        h = read_header(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert h.metadata["tokenizer.ggml.tokens"] == SkippedArray("str", 129_280)
    assert peak < 3 * len(data)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the file is empty (byte 0)"),
        (b"hello", "starts with 'hell'"),
        (b"\x89PNG\r\n", "starts with '\\x89PNG'"),
        (b"GGUF\x03\0\0", "the version takes 4 bytes, but only 3 are left"),
        (b"GGUF\x03", "but only 1 is left"),
    ],
)
def test_what_is_said_of_other_files(data: bytes, said: str) -> None:
    class Pipe:
        """Cannot seek."""

        def __init__(self) -> None:
            self.file = io.BytesIO(data)

        def read(self, size: int, /) -> bytes:
            return self.file.read(size)

    with pytest.raises(errors.HeaderError) as caught:
        parse_header(io.BytesIO(data), "bad.gguf")
    assert said in str(caught.value) and "b'" not in str(caught.value)
    with pytest.raises(errors.HeaderError) as piped:
        parse_header(Pipe(), "bad.gguf")
    if data[:4] != b"GGUF":
        assert said in str(piped.value)


@pytest.mark.parametrize("kind", ["arr[u32]", "arr[str]", "str"])
def test_what_is_not_needed_is_not_kept(kind: str) -> None:
    every: dict[str, list[int] | list[str] | str]
    every = {"arr[u32]": list(range(4000)), "arr[str]": ["x" * 50] * 300, "str": "y" * 16_000}
    values = every[kind]
    keys = [writer.key("general.architecture", "str", "deepseek4"), writer.key("general.tags", "arr[str]", ["a"])]
    keys += [writer.key(f"k{i}", kind, values) for i in range(1200)] + [writer.key("last", "u32", 7)]
    for data in (writer.raw(keys, []), b"x" + writer.raw(keys, [])):
        file = io.BytesIO(data)
        file.seek(len(data) - len(writer.raw(keys, [])))
        tracemalloc.start()
        h = read_header(file)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 32 << 20
        assert (h.metadata["general.tags"], h.metadata["last"], len(h.metadata)) == (("a",), 7, 1203)
        assert h.metadata["k0"] == (values if kind == "str" else tuple(values))
        assert h.metadata["k1199"] == SkippedArray("u32" if "u32" in kind else "str", len(values))
        assert h.value_types["k1199"] == kind


def test_counts_and_names_have_limits() -> None:
    keys = [writer.key(f"{i:x}", "u8", 0) for i in range(70_000)]
    with pytest.raises(errors.BadLength, match="counts 70000 keys, more than 65536"):
        read_header(writer.raw(keys, []))
    with pytest.raises(errors.BadLength, match="names take more than"):
        read_header(writer.raw([writer.key(f"{i}" + "k" * 60_000, "u8", 0) for i in range(80)], []))
    entries = writer.tensors([(f"{i:x}", (1,), "f32") for i in range(140_000)])
    with pytest.raises(errors.BadLength, match="counts 140000 tensors, more than 131072"):
        read_header(writer.raw([], entries))
