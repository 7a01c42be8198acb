"""What servers and connections say, in the words of HTTP and of the system."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import time

from memplan.errors import RemoteError, printable


def content_range(text: str | None, name: str) -> tuple[int, int | None]:
    """The first byte and the file's size of a Content-Range. Raises RemoteError when it says neither."""
    match = re.fullmatch(r"\s*bytes\s+([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)\s*", text or "", re.ASCII)
    if not match:
        raise RemoteError(f"{name}: the server sends a part of the file without saying which; download the file")
    return int(match[1]), None if match[3] == "*" else int(match[3])


def number(text: str | None) -> int | None:
    """A whole number in a header; None for anything else."""
    return int(text) if text and re.fullmatch(r"[0-9]{1,18}", text.strip(), re.ASCII) else None


def retry_after(text: str | None) -> float:
    """Seconds that a Retry-After asks to wait, in seconds or until a date; 0 when it says nothing."""
    seconds = number(text)
    if seconds is not None or not text:
        return float(seconds or 0)
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError, OSError):
        return 0.0


def reason(e: BaseException) -> str:
    """Why a connection failed, for a message."""
    if isinstance(e, TimeoutError | socket.timeout):
        return "no answer in time"
    if isinstance(e, socket.gaierror):
        return "the host's name cannot be looked up"
    if isinstance(e, ConnectionRefusedError):
        return "the host refuses the connection"
    if isinstance(e, ConnectionError | http.client.IncompleteRead | ssl.SSLEOFError):
        return "the connection was closed early"
    text = str(getattr(e, "strerror", None) or e or type(e).__name__)
    return printable(text)[:120]
