"""Addresses behind http and https: which can be asked for, and how one is shown."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

from memplan.errors import RemoteError


def shown_address(address: str) -> str:
    """``address`` for a message: without user, query and fragment, which may hold secrets; on one line."""
    text = re.split(r"[?#]", address, maxsplit=1)[0]
    text = re.sub(r"^([A-Za-z][A-Za-z0-9+.-]{0,20}:/{0,2}|/{0,2})[^/]*@", r"\1", text)
    return "".join(c if c.isprintable() else "?" for c in text)[:300]


def check_address(address: str) -> None:
    """Raises RemoteError, in one line, for what cannot be an http or https address."""
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
        parts = SplitResult("", "", "", "", "")
    if parts.scheme.lower() not in ("http", "https") or not host or not address.isascii() or not address.isprintable():
        raise RemoteError(f"{shown_address(address)}: not an address; write https://HOST/PATH.gguf, escaped as in %20")
    if " " in address:
        raise RemoteError(f"{shown_address(address)}: has a space in it; write it as %20")
    if parts.username is not None:
        raise RemoteError(f"{shown_address(address)}: leave user and password out of it; for a hub set its token")
