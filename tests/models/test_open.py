from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from memplan.errors import (
    BadHyperParameter,
    BadMagic,
    BadTensorShape,
    MissingKey,
    MissingTensor,
    ModelError,
    RemoteError,
    SourceError,
    UnknownModel,
    UnsupportedArchitecture,
)
from memplan.estimator import estimate
from memplan.gguf.header import Header
from memplan.gguf.remote import Access
from memplan.gguf.source import read_header
from memplan.llama.flags import parse_flags
from memplan.models.builtin import builtin_header
from memplan.models.open import open_model
from memplan.models.registry import architecture
from memplan.rig import parse_gpus
from tests.gguf import writer


def test_builtin_names() -> None:
    assert open_model("deepseek-v4-flash") == builtin_header("deepseek-v4-flash")
    assert open_model("DEEPSEEK-V4-PRO:q8_0") == builtin_header("deepseek-v4-pro:q8_0")
    with pytest.raises(UnknownModel, match="has no recipe 'nope'"):
        open_model("deepseek-v4-flash:nope")


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deepseek-v4-flash"
    path.write_bytes(writer.small())
    assert open_model(path) == open_model(str(path)) == read_header(path)
    monkeypatch.chdir(tmp_path)
    assert open_model("./deepseek-v4-flash").tensors == read_header(path).tensors
    assert open_model("deepseek-v4-flash").name == "deepseek-v4-flash:antirez-q2"
    Path("plain").write_bytes(b"no model")
    with pytest.raises(BadMagic):
        open_model("plain")
    with pytest.raises(SourceError, match=r"absent\.gguf: no such file"):
        open_model("absent.gguf")
    with pytest.raises(SourceError, match="no such file"):
        open_model("folder/absent")


@pytest.mark.parametrize("name", ["", "qwen3", "deepseek-v4", "flash-antirez-q2", "a\nb", "nul\0"])
def test_neither(name: str) -> None:
    with pytest.raises(UnknownModel, match="memplan models lists those") as caught:
        open_model(name)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("address", ["https://example.org/m.gguf", "HTTP://example.org/m.gguf", "hf:owner/repo/m.gguf"])
def test_addresses_go_to_the_network_unless_it_is_not_allowed(
    address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(RemoteError, match="not in memplan's cache"):
        open_model(address, Access(offline=True))


def test_every_error_of_a_model_names_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.gguf"
    good = builtin_header("deepseek-v4-flash")
    some = dict(good.tensors)
    some.popitem()
    flat = {name: replace(tensor, shape=(*tensor.shape[:-1], 1)) for name, tensor in good.tensors.items()}
    wrong: list[tuple[type[ModelError], dict[str, object]]] = [
        (MissingTensor, {"tensors": {}}),
        (MissingTensor, {"tensors": some}),
        (BadTensorShape, {"tensors": flat}),
        (MissingKey, {"metadata": {}}),
        (MissingKey, {"metadata": {"general.architecture": "deepseek4"}}),
        (UnsupportedArchitecture, {"metadata": {**good.metadata, "general.architecture": "bloom"}}),
        (BadHyperParameter, {"metadata": {**good.metadata, "deepseek4.block_count": 0}}),
    ]
    for error, change in wrong:
        header = replace(good, name=str(path), **change)  # type: ignore[arg-type]
        with pytest.raises(error, match=r"/mine\.gguf: .") as caught:
            estimate(header, parse_flags(["-c", "4096"]), parse_gpus([]))
        assert str(caught.value).count("mine.gguf") == 1


def test_an_architecture_of_something_else_is_named_in_a_short_line() -> None:
    bert = Header(3, {"general.architecture": "bert"}, {}, 32, 1, "bert.gguf", {})
    with pytest.raises(UnsupportedArchitecture) as caught:
        architecture(bert)
    assert "architecture 'bert' is not modelled; memplan models" in str(caught.value) and len(str(caught.value)) < 120
