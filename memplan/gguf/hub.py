"""Addresses of models: plain ones, and those of the hubs (``hf:OWNER/REPO...``, ``modelscope:OWNER/REPO...``).

``hf:OWNER/REPO/FILE.gguf`` names a file; ``hf:OWNER/REPO:QUANT`` lets the hub's listing find it, by llama.cpp's own
rule (common/download.cpp: find_best_model, v0.5.0). ``OWNER/REPO@REVISION`` is a branch, tag or commit.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from memplan.errors import RemoteError, shown
from memplan.gguf.address import check_address, shown_address
from memplan.infile import open_input

QUANTS: Final = ("Q4_K_M", "Q8_0")
"""What a repository is searched for when no QUANT is named, in this order; then its first model."""

_NO_MODELS: Final = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
_SHARD: Final = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_WEB_PAGE: Final = re.compile(r"(/[^/]+/[^/]+)/blob/(.+\.gguf)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Hub:
    """A model hub: where it stands, and how it spells a file's address and a repository's listing."""

    prefix: str
    endpoint: str
    revision: str
    file: str
    """``{repo}``, ``{revision}`` and ``{path}`` to a file's address, after the endpoint."""
    listing: str
    token: str


@dataclass(frozen=True, slots=True)
class Location:
    """Where a model lies. ``address``: the file's, or empty when ``listing`` has to be searched for ``quant``."""

    name: str
    address: str
    token: str
    hub: Hub | None = None
    repo: str = ""
    revision: str = ""
    quant: str = ""

    @property
    def listing(self) -> str:
        """The address of the repository's listing."""
        if self.hub is None:
            return ""
        return self.hub.endpoint + self.hub.listing.format(repo=self.repo, revision=quote(self.revision, safe=""))

    def file(self, path: str) -> str:
        """The address of a file of the repository."""
        if self.hub is None:
            return self.address
        place = self.hub.file.format(repo=self.repo, revision=quote(self.revision, safe=""), path=quote(path))
        return self.hub.endpoint + place


def locate(model: str) -> Location:
    """Where ``model`` lies. Raises RemoteError when it is no such name. Asks nobody."""
    prefix, _, rest = model.partition(":")
    prefix = prefix.lower()
    if prefix in ("http", "https"):
        return _plain(model)
    hub = _hugging_face() if prefix == "hf" else _modelscope()
    rest, _, quant = rest.removeprefix("//").partition(":")
    owner, _, rest = rest.partition("/")
    repo, slash, path = rest.partition("/")
    repo, _, revision = repo.partition("@")
    usage = f"write {hub.prefix}:OWNER/REPO/FILE.gguf or {hub.prefix}:OWNER/REPO:QUANT"
    if not (_NAME.fullmatch(owner) and _NAME.fullmatch(repo)):
        raise RemoteError(f"{shown(model)}: owner or repository is missing, or not as hubs spell them; {usage}")
    if slash and (quant or not path.lower().endswith(".gguf") or ".." in path.split("/") or not path.isprintable()):
        raise RemoteError(f"{shown(model)}: not the name of a .gguf file; {usage}")
    if quant and not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", quant):
        raise RemoteError(f"{shown(model)}: {shown(quant)} is not the name of a quantisation; {usage}")
    there = Location(model, "", hub.token, hub, f"{owner}/{repo}", revision or hub.revision, quant)
    if not path:
        return there
    return Location(model, there.file(path), hub.token, hub, there.repo, there.revision)


def choose(location: Location, paths: Sequence[str]) -> str:
    """The file that a repository's QUANT means, the first shard of a split one. Raises RemoteError: what is there."""
    models = [path for path in paths if path.lower().endswith(".gguf") and not _other(path)]
    models = [path for path in models if not (match := _SHARD.search(path)) or int(match[1]) == 1]
    for quant in [location.quant] if location.quant else QUANTS:
        pattern = re.compile(re.escape(quant) + "[.-]", re.IGNORECASE)
        for path in models:
            if pattern.search(path):
                return path
    if models and not location.quant:
        return models[0]
    if not models:
        raise RemoteError(f"{location.name}: the repository has no .gguf model; look for one with GGUF in its name")
    names = sorted({_quant_of(path) for path in models} - {""})[:20] or models[:5]
    raise RemoteError(f"{location.name}: no file of that quantisation; there are {', '.join(names)}"[:400])


def siblings(address: str, count: int) -> list[str]:
    """The addresses of all ``count`` shards, from that of any one. Raises RemoteError: it is not named as a shard."""
    path, mark, query = address.partition("?")
    match = _SHARD.search(path)
    if not match or int(match[2]) != count:
        raise RemoteError(
            f"{path}: one of {count} shards, but its name does not end in -NNNNN-of-{count:05d}.gguf; "
            "give the address where it lies beside the others"
        )
    return [f"{path[: match.start()]}-{i + 1:05d}-of-{match[2]}{path[-5:]}{mark}{query}" for i in range(count)]


def parse_listing(location: Location, data: bytes) -> list[str]:
    """The paths in one page of a repository's listing. Raises RemoteError when it is none."""
    try:
        page: Any = json.loads(data)
        entries = page if isinstance(page, list) else page["Data"]["Files"]
        found = [_path(entry) for entry in entries]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise RemoteError(f"{location.name}: the hub's listing is not understood; name the file itself") from None
    return [path for path in found if path]


def next_page(location: Location, headers: Mapping[str, str]) -> str:
    """The address of a listing's next page, on the same host; empty at the last."""
    match = re.search(r'<([^<>\s]+)>\s*;\s*rel="?next"?', headers.get("Link") or "")
    if not match:
        return ""
    try:
        old, new = urlsplit(location.listing), urlsplit(match[1])
    except ValueError:
        return ""
    return match[1] if (old.scheme, old.netloc) == (new.scheme, new.netloc) else ""


def _path(entry: Any) -> str:
    kind = entry.get("type") or entry.get("Type") or "file"
    path = entry.get("path") or entry.get("Path") or ""
    good = isinstance(path, str) and path.isprintable() and ".." not in path.split("/") and kind in ("file", "blob")
    return path if good else ""


def _other(path: str) -> bool:
    name = path.rpartition("/")[2].lower()
    return any(word in name for word in _NO_MODELS[:2]) or name.startswith(_NO_MODELS[2:])


def _quant_of(path: str) -> str:
    stem = _SHARD.sub("", path).removesuffix(".gguf").rpartition("/")[2]
    match = re.search(r"[-.]((?:UD-)?[A-Z0-9_]+)$", stem, re.IGNORECASE)
    return match[1] if match else ""


def _plain(address: str) -> Location:
    check_address(address)
    parts = urlsplit(address)
    hub = _hugging_face()
    token = ""
    own = urlsplit(hub.endpoint)
    if (parts.scheme, parts.netloc) == (own.scheme, own.netloc):
        token = hub.token
        if match := _WEB_PAGE.fullmatch(parts.path):  # the page about the file: people copy its address
            address = f"{parts.scheme}://{parts.netloc}{match[1]}/resolve/{match[2]}"
    return Location(address.partition("?")[0], address, token)


def _hugging_face() -> Hub:
    endpoint = os.environ.get("HF_ENDPOINT") or os.environ.get("MODEL_ENDPOINT") or "https://huggingface.co"
    return Hub(
        "hf",
        _checked("HF_ENDPOINT", endpoint),
        "main",
        "/{repo}/resolve/{revision}/{path}",
        "/api/models/{repo}/tree/{revision}?recursive=true",
        _token(("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"), _hugging_face_file()),
    )


def _modelscope() -> Hub:
    endpoint = os.environ.get("MODELSCOPE_ENDPOINT") or "https://modelscope.cn"
    return Hub(
        "modelscope",
        _checked("MODELSCOPE_ENDPOINT", endpoint),
        "master",
        "/models/{repo}/resolve/{revision}/{path}",
        "/api/v1/models/{repo}/repo/files?Revision={revision}&Recursive=true",
        _token(("MODELSCOPE_API_TOKEN", "MODELSCOPE_TOKEN"), None),
    )


def _checked(variable: str, endpoint: str) -> str:
    try:
        check_address(endpoint)
    except RemoteError:
        raise RemoteError(
            f"{variable} is {shown(shown_address(endpoint))}: not an address; set it to https://HOST"
        ) from None
    return endpoint.rstrip("/")


def _hugging_face_file() -> Path | None:
    if path := os.environ.get("HF_TOKEN_PATH"):
        return Path(path)
    home = os.environ.get("HF_HOME")
    try:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(home) / "token" if home else Path(caches) / "huggingface" / "token"


def _token(variables: Sequence[str], file: Path | None) -> str:
    """A hub's token, from the environment or the hub's own file; empty when there is none that could be one."""
    found = next((os.environ[name] for name in variables if os.environ.get(name)), "")
    if not found and file is not None and os.environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "") not in ("1", "true"):
        try:
            with open_input(file) as opened:
                found = opened.read(1024).decode("ascii", "replace")
        except (OSError, ValueError):
            return ""
    found = found.strip()
    return found if re.fullmatch(r"[!-~]{1,512}", found) else ""
