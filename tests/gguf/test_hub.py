from __future__ import annotations

import json
from pathlib import Path

import pytest

from memplan.errors import RemoteError
from memplan.gguf.http import Policy
from memplan.gguf.hub import choose, locate, siblings
from memplan.gguf.remote import Access, read_remote
from tests.gguf import writer
from tests.gguf.server import Server, status

SMALL = writer.small()
ACCESS = Access(policy=Policy(timeout=1, attempts=2, backoff=0.001))
FILES = [
    ".gitattributes", "README.md", "mmproj-F16.gguf", "imatrix.gguf", "UD-Q2_K_XL/m-UD-Q2_K_XL-00001-of-00002.gguf",
    "UD-Q2_K_XL/m-UD-Q2_K_XL-00002-of-00002.gguf", "m-Q8_0.gguf", "m-MXFP4_MOE.gguf", "mtp-m-Q8_0.gguf",
]  # fmt: skip


def hugging_face(server: Server, repo: str = "owner/repo") -> None:
    tree = [{"type": "directory", "path": "UD-Q2_K_XL"}, *({"type": "file", "path": name, "size": 1} for name in FILES)]
    server.files[f"/api/models/{repo}/tree/main"] = json.dumps(tree).encode()
    for name in FILES:
        server.files[f"/{repo}/resolve/main/{name}"] = SMALL
    first, second = writer.shards(2)
    server.files[f"/{repo}/resolve/main/{FILES[4]}"] = first
    server.files[f"/{repo}/resolve/main/{FILES[5]}"] = second


@pytest.mark.parametrize(
    ("model", "file"),
    [
        ("hf:owner/repo/m-Q8_0.gguf", "m-Q8_0.gguf"),
        ("HF:owner/repo:q8_0", "m-Q8_0.gguf"),
        ("hf:owner/repo:MXFP4_MOE", "m-MXFP4_MOE.gguf"),
        ("hf:owner/repo:UD-Q2_K_XL", FILES[4]),
        ("hf:owner/repo", "m-Q8_0.gguf"),
        ("hf://owner/repo/UD-Q2_K_XL/m-UD-Q2_K_XL-00002-of-00002.gguf", FILES[4]),
    ],
)
def test_hugging_face(server: Server, model: str, file: str) -> None:
    hugging_face(server)
    header = read_remote(model, ACCESS)
    assert header.name == f"{server.address}/owner/repo/resolve/main/{file}"
    assert len(header.tensors) == 22
    asked = len(server.log)
    assert read_remote(model, Access(offline=True)).tensors == header.tensors
    assert len(server.log) == asked


def test_modelscope(server: Server) -> None:
    files = [{"Path": "d", "Type": "tree"}, {"Path": "d/m-Q4_K_M.gguf", "Type": "blob"}]
    listing = {"Code": 200, "Data": {"Files": files}}
    server.files["/ms/api/v1/models/owner/repo/repo/files"] = json.dumps(listing).encode()
    server.files["/ms/models/owner/repo/resolve/master/d/m-Q4_K_M.gguf"] = SMALL
    for model in ("modelscope:owner/repo:Q4_K_M", "ms:owner/repo", "ms:owner/repo/d/m-Q4_K_M.gguf"):
        assert len(read_remote(model, Access(cache=False)).tensors) == 22
    assert "Revision=master" in server.log[0][0]


def test_revisions_and_odd_characters(server: Server) -> None:
    assert locate("hf:owner/repo@v1.0:Q8_0").listing.endswith("/api/models/owner/repo/tree/v1.0?recursive=true")
    assert locate("hf:owner/repo@v1.0/a b+c.gguf").address.endswith("/owner/repo/resolve/v1.0/a%20b%2Bc.gguf")


def test_addresses_of_web_pages(server: Server) -> None:
    page = f"{server.address}/owner/repo/blob/main/d/m.gguf"
    assert locate(page).address == f"{server.address}/owner/repo/resolve/main/d/m.gguf"
    assert locate("https://example.org/owner/repo/blob/main/m.gguf").address.endswith("/blob/main/m.gguf")


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("hf:", "owner or repository is missing"),
        ("hf:owner", "owner or repository is missing"),
        ("hf:owner/", "owner or repository is missing"),
        ("hf:ow ner/repo", "owner or repository is missing"),
        ("hf:../repo:Q8_0", "owner or repository is missing"),
        ("hf:owner/repo/README.md", "not the name of a .gguf file"),
        ("hf:owner/repo/../../x.gguf", "not the name of a .gguf file"),
        ("hf:owner/repo/x.gguf:Q8_0", "not the name of a .gguf file"),
        ("hf:owner/repo:Q8/0", "'Q8/0' is not the name of a quantisation"),
        ("hf:owner/repo/a\nb.gguf", "not the name of a .gguf file"),
        ("https://", "not an address"),
        ("http://:80/m.gguf", "not an address"),
        ("https://example.org:port/m.gguf", "not an address"),
        ("https://[::1/m.gguf", "not an address"),
        ("https://user:pass@example.org/m.gguf", "leave user and password out"),
        ("https://example.org/a b.gguf", "write it as %20"),
        ("https://example.org/a\r\nHost: x", "not an address"),
        ("https://exämple.org/m.gguf", "not an address"),
    ],
)
def test_names_that_are_none(model: str, said: str) -> None:
    with pytest.raises(RemoteError) as caught:
        locate(model)
    assert said in str(caught.value)
    assert str(caught.value).isprintable() and "pass" not in str(caught.value).replace("password", "")


def test_what_a_repository_has_not(server: Server) -> None:
    hugging_face(server)
    with pytest.raises(RemoteError, match="there are MXFP4_MOE, Q8_0, UD-Q2_K_XL"):
        read_remote("hf:owner/repo:Q3_K_S", ACCESS)
    server.files["/api/models/owner/repo/tree/main"] = b"[]"
    with pytest.raises(RemoteError, match=r"has no \.gguf model"):
        read_remote("hf:owner/repo:Q3_K_S", Access(cache=False))
    for bad in (b"", b"<html>", b"{}", b"[1]", b"null", b"[" * 100_000):
        server.files["/api/models/owner/repo/tree/main"] = bad
        with pytest.raises(RemoteError, match="listing is not understood"):
            read_remote("hf:owner/repo:Q3_K_S", Access(cache=False))
    server.failures = [status(503), status(503)]
    with pytest.raises(RemoteError, match="503"):
        read_remote("hf:owner/repo:Q3_K_S", Access(cache=False, policy=ACCESS.policy))
    with pytest.raises(RemoteError, match="not found"):
        read_remote("hf:owner/other:Q8_0", ACCESS)


@pytest.mark.parametrize("where", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "XDG_CACHE_HOME"])
def test_where_the_token_comes_from(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    hugging_face(server)
    file = {
        "HF_TOKEN_PATH": tmp_path / "t",
        "HF_HOME": tmp_path / "home" / "token",
        "XDG_CACHE_HOME": tmp_path / "cache" / "huggingface" / "token",
    }.get(where)
    if file is None:
        monkeypatch.setenv(where, "hf_1")
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("hf_1\n")
        monkeypatch.setenv(where, str({"HF_TOKEN_PATH": file, "HF_HOME": file.parent}.get(where, tmp_path / "cache")))
    read_remote("hf:owner/repo:Q8_0", Access(cache=False))
    assert {headers.get("Authorization") for _, headers in server.log} == {"Bearer hf_1"}


@pytest.mark.parametrize("token", ["two words", "line\nbreak", "x" * 600, "ümlaut", " "])
def test_what_is_no_token_is_not_sent(server: Server, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    hugging_face(server)
    monkeypatch.setenv("HF_TOKEN", token)
    read_remote("hf:owner/repo/m-Q8_0.gguf", Access(cache=False))
    assert "Authorization" not in server.log[0][1]


def test_a_wrong_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "hub.example")
    with pytest.raises(RemoteError, match=r"HF_ENDPOINT is 'hub\.example': not an address"):
        locate("hf:owner/repo:Q8_0")


def test_choice_is_llama_cpps() -> None:
    location = locate("hf:owner/repo:Q4_K_M")
    assert choose(location, ["a-Q4_K_M.gguf", "a-Q4_K_M-v2.gguf"]) == "a-Q4_K_M.gguf"
    assert choose(location, ["a-Q4_K_M_L.gguf", "a.q4_k_m.gguf"]) == "a.q4_k_m.gguf"


def test_siblings() -> None:
    address = "https://example.org/m-00002-of-00003.gguf?x=1"
    assert siblings(address, 3)[2] == "https://example.org/m-00003-of-00003.gguf?x=1"
    with pytest.raises(RemoteError, match="one of 4 shards"):
        siblings(address, 4)
