from __future__ import annotations

from pathlib import Path

import pytest

from memplan.cli import main
from memplan.errors import SourceError, UnknownModel
from memplan.gguf.header import SkippedArray
from memplan.gguf.remote import Access
from memplan.gguf.source import read_header
from memplan.models.builtin import builtin_header, builtin_names
from memplan.models.open import open_model
from memplan.models.raw import header_file, raw_headers
from tests.gguf import writer

pytestmark = pytest.mark.slow

SMALL = writer.small()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(SMALL + b"\0" * (-len(SMALL) % 32) + b"data" * 9999)
    return path


def test_every_byte_is_the_originals(model: Path) -> None:
    made = header_file(str(model))
    assert made.data[: len(SMALL)] == SMALL
    assert len(made.data) % 32 == 0 and len(made.data) - len(SMALL) < 32
    assert read_header(made.data, "x") == read_header(SMALL, "x")
    assert made.size == len(made.data) + sum(-(-t.nbytes // 32) * 32 for t in read_header(SMALL).tensors.values())


def test_without_its_vocabulary(model: Path) -> None:
    made = header_file(str(model), vocabulary=False)
    assert made.tokens == 5000
    header, original = read_header(made.data), read_header(SMALL)
    assert len(made.data) < len(SMALL) // 10
    assert header.tensors == original.tensors
    assert header.metadata["deepseek4.vocab_size"] == 5000
    assert header.metadata["tokenizer.ggml.model"] == "none"
    kept = {key for key in original.metadata if not key.startswith("tokenizer.")}
    assert {key: header.metadata[key] for key in kept} == {key: original.metadata[key] for key in kept}
    assert not any(isinstance(value, SkippedArray) for value in header.metadata.values())
    again = header_file(_written(model, made.data), vocabulary=False)
    assert again.data == made.data


def test_shards_become_one_file(tmp_path: Path) -> None:
    for i, part in enumerate(writer.shards(3)):
        (tmp_path / f"m-{i + 1:05d}-of-00003.gguf").write_bytes(part)
    merged = read_header(tmp_path / "m-00001-of-00003.gguf")
    header = read_header(header_file(str(tmp_path / "m-00002-of-00003.gguf")).data)
    whole = read_header(SMALL)
    assert header.tensors == whole.tensors and header.metadata == whole.metadata
    assert [t.nbytes for t in header.tensors.values()] == [t.nbytes for t in merged.tensors.values()]


@pytest.mark.parametrize("name", builtin_names())
def test_builtin_models(name: str) -> None:
    header, builtin = read_header(header_file(name).data, name), builtin_header(name)
    assert header.metadata == builtin.metadata and header.value_types == builtin.value_types
    assert header.tensors == builtin.tensors


def test_the_gguf_package_reads_it_too(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    made = header_file(str(_written(tmp_path / "m.gguf", SMALL)), vocabulary=False)
    path = tmp_path / "sparse.gguf"
    path.write_bytes(made.data + b"\0" * (made.size - len(made.data)))
    read = gguf.GGUFReader(path)
    assert [t.name for t in read.tensors] == [name for name, _, _ in writer.SMALL_TENSORS]
    assert read.fields["deepseek4.vocab_size"].contents() == 5000


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel):
        header_file("nothing")
    with pytest.raises(SourceError):
        header_file(str(tmp_path / "absent.gguf"))
    with pytest.raises(SourceError):
        header_file("hf:owner/repo/m.gguf", Access(offline=True, cache=False))


def test_it_is_read_as_the_original(model: Path, tmp_path: Path) -> None:
    path = _written(tmp_path / "h.gguf", header_file(str(model)).data)
    assert open_model(path).tensors == open_model(str(model)).tensors


def _written(path: Path, data: bytes) -> str:
    path = path.with_name("written.gguf")
    path.write_bytes(data)
    return str(path)


def test_what_no_vocab_did_is_said(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, said in ((str(model), "without its vocabulary of"), ("deepseek-v4-flash", "which has no vocabulary")):
        assert main(["header", name, "--no-vocab", "-o", str(tmp_path / "h.gguf")]) == 0
        out, err = capsys.readouterr()
        assert out == "" and said in err
        assert main(["header", name, "-o", str(tmp_path / "h.gguf")]) == 0
        assert "vocabulary" not in capsys.readouterr().err


def test_of_other_shards_no_metadata_are_kept(tmp_path: Path) -> None:
    """Of twenty headers of 30 MiB, all their arrays as numbers would be most of a gigabyte."""
    split: list[writer.Key] = [("split.no", "u16", 1), ("split.count", "u16", 2), ("split.tensors.count", "i32", 22)]
    second = writer.header([*split, ("x", "arr[u16]", range(4096))], writer.SMALL_TENSORS[11:])
    for name, data in (("m-00001-of-00002.gguf", writer.shards(2)[0]), ("m-00002-of-00002.gguf", second)):
        (tmp_path / name).write_bytes(data)
    read = raw_headers(str(tmp_path / "m-00001-of-00002.gguf"))
    assert "general.architecture" in read[0].header.metadata
    assert dict(read[1].header.metadata) == {"split.no": 1, "split.count": 2} and not read[1].keys
