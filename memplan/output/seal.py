"""Seals on pictures: a digest in the file, which says that nobody has changed it since memplan drew it."""

from __future__ import annotations

import struct
import zlib
from hashlib import sha256
from typing import Final

_IEND: Final = b"\0\0\0\0IEND\xaeB`\x82"
_PNG: Final = b"\x89PNG"


def sealed(data: bytes) -> bytes:
    """A picture with its digest: in a tEXt chunk before the last of a PNG, in a last line of an SVG or PDF."""
    digest = sha256(data).hexdigest().encode()
    if data.startswith(_PNG):
        chunk = b"tEXtmemplan\0" + digest
        return data[: -len(_IEND)] + struct.pack(f">I{len(chunk)}sI", len(chunk) - 4, chunk, zlib.crc32(chunk)) + _IEND
    return data + (b"%% memplan %s\n" if data.startswith(b"%PDF") else b"<!-- memplan %s -->\n") % digest


def is_sealed(data: bytes) -> bool:
    """Whether this is what ``sealed`` gave, to the byte."""
    if data.startswith(_PNG):
        seal = len(sealed(_PNG + _IEND)) - len(_PNG + _IEND)
        return sealed(data[: -len(_IEND) - seal] + _IEND) == data
    return sealed(data[: data.rfind(b"\n", 0, -1) + 1]) == data
