"""Files behind http and https, read forward by range requests: the standard library's urllib and nothing else.

A RemoteFile is a binary file-like object. It asks for a first window large enough for a whole header, hands out what
arrives as it arrives, and goes on from where it stands when a window ends or a connection dies. A server that ignores
ranges sends the whole file: it is read as far as the header goes, then the connection is closed.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib import error, request
from urllib.parse import SplitResult, urlsplit

from memplan.errors import RemoteError
from memplan.gguf.address import check_address, shown_address
from memplan.gguf.http_words import content_range, number, reason, retry_after

_CHUNK: Final = 256 << 10
_LARGEST_WINDOW: Final = 16 << 20
_PROGRESS: Final = 64 << 10
_RETRIED: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_MAX_WAIT: Final = 10.0
_PATIENCE: Final = 20.0
"""Seconds that a server may ask to be left alone; who asks for more is not asked again."""
LARGEST_PAGE: Final = 16 << 20
"""Bytes of a hub's listing, all its pages together."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How long to wait and how often to try again; times in seconds.

    ``timeout``: without a byte, for connecting and for reading.  ``attempts``: failures in a row, none of them with
    progress, that end it.  ``most``: requests for one file in all.  ``backoff``: the first pause, doubled each time.
    ``slow_after``, ``slow_bytes``: fewer bytes than these in so long count as a failure.  ``total``: for all that is
    read of a model, whatever comes meanwhile; what came until then is kept.
    """

    timeout: float = 15.0
    attempts: int = 4
    most: int = 24
    backoff: float = 0.5
    slow_after: float = 30.0
    slow_bytes: int = 32 << 10
    total: float = 30.0


class _Failed(Exception):
    """A request that may be tried again; ``wait``: seconds that the server asked for."""

    def __init__(self, why: str, wait: float = 0.0) -> None:
        super().__init__(why)
        self.wait = wait


class NotModified(Exception):
    """The file is still the one whose ETag was sent along."""


class Changed(RemoteError):
    """A file that is no longer the one of which a part was read."""


class Unreachable(RemoteError):
    """A server that did not answer, or not to the end, however often it was tried."""


class RemoteFile:
    """A file behind an address, readable forward. Raises RemoteError from ``read`` when it cannot be had.

    Args:
        first: bytes of the first window.  token: sent to this host only, never to one it redirects to.
        progress: called with the name and the bytes received so far.

    ``known_etag``: set it to the ETag of the version at hand, and the first ``read`` raises NotModified while that is
    current.  ``resume``: gives what was read of it before.
    """

    def __init__(
        self,
        address: str,
        *,
        name: str = "",
        token: str = "",
        first: int = 12 << 20,
        policy: Policy | None = None,
        progress: Callable[[str, int], None] | None = None,
    ) -> None:
        check_address(address)
        self.address = address
        self.name = name or shown_address(address)
        self.position = 0
        self.requests = 0
        self.size: int | None = None
        self.etag = ""
        self.known_etag = ""
        self._token = token
        self._window = first
        self._policy = policy or Policy()
        self._progress = progress
        self._opener = _opener()
        self._response: Any = None
        self._left: int | None = 0
        self._failures = 0
        self._failed_at = 0
        self._since = (0.0, 0)
        self._before = b""
        self._ends = time.monotonic() + self._policy.total

    def resume(self, data: bytes, etag: str) -> None:
        """Begin with ``data``, read before of the version ``etag``; ``read`` raises Changed if that is gone."""
        self._before, self.etag = data, etag

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes; none at the end of the file."""
        if size > 0 and self.position < len(self._before):
            data = self._before[self.position : self.position + size]
            self.position += len(data)
            return data
        while size > 0 and self.position != self.size:
            try:
                if self._response is None and not self._connect():
                    break
                data = self._receive(size)
            except _Failed as failure:
                self._close()
                self._try_again(failure)
                continue
            if data:
                self.position += len(data)
                if self._progress:
                    self._progress(self.name, self.position)
                return data
            self._close()
            if self._left is None:
                self.size = self.position
        return b""

    def close(self) -> None:
        """End the connection; what was not read stays unread."""
        self._close()

    def __enter__(self) -> RemoteFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self._close()

    def _close(self) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.close()

    def _connect(self) -> bool:
        """Ask for the next window; False when there is nothing left to ask for."""
        headers = {"Range": f"bytes={self.position}-{self.position + self._window - 1}"}
        if self.known_etag and not self.position:
            headers["If-None-Match"] = self.known_etag
        self.requests += 1
        response = _open(self._opener, self.address, headers, self._token, self._policy.timeout, self.name)
        if time.monotonic() > self._ends:
            response.close()
            raise self.too_slow()
        self._since = (time.monotonic(), self.position)
        status = response.status
        if status == 416:
            response.close()
            if 0 < self.position <= len(self._before):
                raise Changed(f"{self.name}: changed on the server since a part of it was read; try again")
            self.size = self.position
            return False
        self._response = response
        etag = response.headers.get("ETag") or ""
        if self.etag and etag and etag != self.etag:
            raise Changed(f"{self.name}: changed on the server while it was read; try again")
        self.etag = etag
        length = number(response.headers.get("Content-Length"))
        if status == 206:
            start, self.size = content_range(response.headers.get("Content-Range"), self.name)
            if start != self.position:
                raise RemoteError(f"{self.name}: byte {self.position} was asked for, the server sends byte {start}")
            self._left = self._window if length is None else min(length, self._window)
            self._window = min(4 * self._window, _LARGEST_WINDOW)
        else:
            # the whole file: a server without ranges
            self.size = length
            self._left = length
            self._pass_over(self.position)
        return True

    def _pass_over(self, count: int) -> None:
        while count > 0:
            data = self._receive(count)
            if not data:
                raise _Failed("the connection was closed early")
            count -= len(data)

    def _receive(self, size: int) -> bytes:
        if self._left == 0:
            return b""
        started, at = self._since
        now = time.monotonic()
        if now > self._ends:
            raise self.too_slow()
        if now - started > self._policy.slow_after:
            if self.position - at < self._policy.slow_bytes:
                raise _Failed(f"{self.position - at} bytes in {now - started:.0f} s")
            self._since = (now, self.position)
        wanted = min(size, _CHUNK) if self._left is None else min(size, _CHUNK, self._left)
        try:
            data: bytes = self._response.read1(wanted)
        except (OSError, http.client.HTTPException, ValueError) as e:
            raise _Failed(reason(e)) from None
        if self._left is not None:
            if not data:
                raise _Failed("the connection was closed early")
            self._left -= len(data)
        return data

    def too_slow(self) -> Unreachable:
        """The error for a header that is not there in the time that all of it may take."""
        return too_slow(self.name, self._policy, self.position)

    def _try_again(self, failure: _Failed) -> None:
        if self.position - self._failed_at >= _PROGRESS:
            self._failures = 0
        self._failures += 1
        if time.monotonic() > self._ends:
            raise self.too_slow()
        self._failed_at = self.position
        if self._failures >= self._policy.attempts or self.requests >= self._policy.most:
            times = f"{self.requests} attempts" if self.requests > 1 else "one attempt"
            raise Unreachable(
                f"{self.name}: {failure} after {times}, {self.position} bytes read; check the connection, or try later"
            )
        time.sleep(_pause(failure, self._failures, self._policy))


def too_slow(name: str, policy: Policy, read: int) -> Unreachable:
    """The error for what is not there in the time that it may take."""
    got = f"{read:,} bytes came" if read else "nothing came"
    return Unreachable(
        f"{name}: not read in {policy.total:.0f} s; check the connection, or try again: {got}, from where the next try"
        " goes on; --timeout SECONDS waits longer"
    )


def fetch(address: str, *, name: str, token: str, policy: Policy) -> tuple[bytes, Mapping[str, str]]:
    """The whole of a small page (a hub's listing), and its headers. Raises RemoteError."""
    check_address(address)
    failures = 0
    while True:
        try:
            with _open(_opener(), address, {}, token, policy.timeout, name) as response:
                return _whole(response, policy, name), response.headers
        except _Failed as failure:
            failures += 1
            if failures >= policy.attempts:
                raise Unreachable(
                    f"{name}: {failure} after {failures} attempts; check the connection, or try later"
                ) from None
            time.sleep(_pause(failure, failures, policy))


def _whole(response: Any, policy: Policy, name: str) -> bytes:
    data = bytearray()
    ends = time.monotonic() + policy.total
    try:
        while part := response.read1(_CHUNK):
            data += part
            if len(data) > LARGEST_PAGE:
                raise RemoteError(f"{name}: the listing has more than {LARGEST_PAGE} bytes; name the file itself")
            if time.monotonic() > ends:
                raise _Failed("the answer takes too long")
    except (OSError, http.client.HTTPException, ValueError) as e:
        raise _Failed(reason(e)) from None
    length = number(response.headers.get("Content-Length"))
    if length is not None and len(data) < length:
        raise _Failed("the connection was closed early")
    return bytes(data)


def _open(
    opener: request.OpenerDirector, address: str, headers: Mapping[str, str], token: str, timeout: float, name: str
) -> Any:
    """One request. Raises _Failed for what may pass, NotModified, and RemoteError for what will not."""
    from memplan import __version__

    fixed = {"User-Agent": f"memplan/{__version__}", "Accept-Encoding": "identity", **headers}
    asked = request.Request(address, headers=fixed)
    if token:
        asked.add_header("Authorization", f"Bearer {token}")
    try:
        response = opener.open(asked, timeout=timeout)
    except error.HTTPError as e:
        with e:
            if e.code == 416:
                return e
            if e.code == 304:
                raise NotModified from None
            _refuse(e, name, bool(token))
    except error.URLError as e:
        why = e.reason if isinstance(e.reason, BaseException) else e
        if isinstance(why, ssl.SSLCertVerificationError):
            raise RemoteError(f"{name}: the server's certificate is not trusted: {why.verify_message}") from None
        if isinstance(why, socket.gaierror) and why.errno == socket.EAI_NONAME:
            raise Unreachable(f"{name}: there is no host of that name; check the address, or the connection") from None
        if isinstance(why, ssl.SSLError) and not isinstance(why, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            raise RemoteError(
                f"{name}: the server does not speak TLS as https:// asks for; check the address and its port, or write"
                " http:// if it is a server of your own"
            ) from None
        raise _Failed(reason(why)) from None
    except (OSError, http.client.HTTPException, ValueError) as e:
        raise _Failed(reason(e)) from None
    encoding = response.headers.get("Content-Encoding") or "identity"
    if encoding.lower() != "identity":
        response.close()
        raise RemoteError(f"{name}: the server sends it compressed ({encoding[:20]}), which cannot be read in ranges")
    return response


def _refuse(e: error.HTTPError, name: str, with_token: bool) -> None:
    if e.code in (401, 403):
        if with_token:
            hint = "the token that is set has no access to it: accept the model's terms on its page, or set another"
        else:
            hint = "it is private, gated or not there; for a hub accept the model's terms and set its token (HF_TOKEN)"
        raise RemoteError(f"{name}: the server denies access ({e.code}); {hint}")
    if e.code in (404, 410):
        raise RemoteError(f"{name}: not found on the server ({e.code}); check owner, repository and file name")
    said = f"the server answers {e.code} {''.join(c for c in str(e.reason)[:60] if c.isprintable())}".rstrip()
    if e.code in _RETRIED:
        wait = retry_after(e.headers.get("Retry-After") if e.headers else None)
        if wait > _PATIENCE:
            raise Unreachable(f"{name}: {said} and asks to be left alone for {wait:,.0f} s; try later")
        raise _Failed(said, wait)
    if 300 <= e.code < 400:
        circle = "infinite loop" in str(e.msg)
        said = "the server redirects in a circle" if circle else "the server redirects to what is not followed"
    raise RemoteError(f"{name}: {said}; check the address")


class _Redirects(request.HTTPRedirectHandler):
    """Follows redirects with the range kept, and the token only within its own host."""

    max_redirections = 8

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if new.scheme not in ("http", "https") or (old.scheme == "https" and new.scheme == "http"):
            raise RemoteError(f"{shown_address(req.full_url)}: redirects to {new.scheme[:10]}, which is not followed")
        followed = super().redirect_request(req, fp, 307 if code == 308 else code, msg, headers, newurl)
        if followed is not None and _origin(old) != _origin(new):
            followed.remove_header("Authorization")
        return followed

    def http_error_308(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
        return self.http_error_302(req, fp, code, msg, headers)


def _opener() -> request.OpenerDirector:
    """urllib's opener without what reads files, ftp and data addresses."""
    opener = request.OpenerDirector()
    for handler in (
        request.ProxyHandler(),
        request.UnknownHandler(),
        request.HTTPHandler(),
        request.HTTPSHandler(),
        request.HTTPDefaultErrorHandler(),
        _Redirects(),
        request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _pause(failure: _Failed, failures: int, policy: Policy) -> float:
    doubled: float = policy.backoff * 2 ** (failures - 1)
    return max(min(doubled, _MAX_WAIT), failure.wait)
