from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gguf.server import Server, running

_VARIABLES = (
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HOME", "HF_TOKEN_PATH", "HF_HUB_DISABLE_IMPLICIT_TOKEN", "MODEL_ENDPOINT",
    "MODELSCOPE_API_TOKEN", "MODELSCOPE_TOKEN", "http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY",
)  # fmt: skip


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    """A local server that is both hubs, an empty cache folder, and no token."""
    for variable in _VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with running() as started:
        monkeypatch.setenv("HF_ENDPOINT", started.address)
        monkeypatch.setenv("MODELSCOPE_ENDPOINT", started.address + "/ms")
        yield started
