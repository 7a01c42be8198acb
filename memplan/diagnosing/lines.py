"""A log's lines without what terminals, containers and loggers put around them."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from typing import Final

from memplan.errors import LogError, printable, without_secrets
from memplan.llama.flag_table import SECRET

MAX_LINE: Final = 4096
"""Characters of a line that are looked at; llama.cpp's own lines are far shorter."""

MAX_BYTES: Final = 256 << 20
"""Bytes of a log that are read."""

_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-9;:?]{0,32}[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[@-Z\\-_])")

_FLAG: Final = "|".join(re.escape(flag).replace(r"\-", "[-_]") for flag in sorted(SECRET, key=len, reverse=True))
_SECRET: Final = re.compile(
    rf"""(?P<what>(?<![\w-])(?:{_FLAG}|[A-Z_]{{0,40}}(?:API_KEY|TOKEN))(?:["'],?)?(?:\s?[=,:]\s?|\s{{1,9}})|\bBearer\s)"""
    r"""(?:"[^"]*"?|'[^']*'?|[^\s"',]+)|\bhf_[A-Za-z0-9]{20,}"""
)
_HINTS: Final = ("--", "-hft", "API_KEY", "TOKEN", "hf_", "Bearer ")


def blanked(text: str) -> str:
    """``text`` without what is secret: values of flags and variables that are, tokens, users and queries of addresses.

    A log is posted with its diagnosis, and llama.cpp, or the system, may say again what it was started with.
    """
    if any(hint in text for hint in _HINTS):
        text = _SECRET.sub(lambda found: f"{found['what'] or ''}...", text)
    return without_secrets(text)


def blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """A log that comes in chunks of bytes in blocks of whole lines, UTF-8, each line with a line feed at its end.

    A carriage return ends a line as well (progress bars). UTF-16 with a byte-order mark is read too, as PowerShell's
    ``>`` writes it. Raises LogError for a log that has no end.
    """
    rest = b""
    for chunk in _utf8(chunks):
        data = rest + chunk
        held = data.endswith(b"\r")  # perhaps half of a line's end
        if b"\r" in data:
            data = (data[:-1] if held else data).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = data.rfind(b"\n") + 1
        rest = data[end:][-MAX_LINE * 8 :] + b"\r" * held
        if end:
            yield data[:end]
    if rest:
        yield rest.rstrip(b"\r") + b"\n"


def marked(block: bytes, marks: Iterable[bytes]) -> Iterator[tuple[int, bytes, tuple[bytes, ...]]]:
    """The lines of a block that hold any of ``marks``: how many lines stand before it, the line, and which it holds."""
    starts: dict[int, tuple[bytes, ...]] = {}
    for mark in marks:
        at = block.find(mark)
        while at >= 0:
            start = block.rfind(b"\n", 0, at) + 1
            starts[start] = (*starts.get(start, ()), mark)
            at = block.find(mark, block.find(b"\n", at))
    number = at = 0
    for start in sorted(starts):
        number += block.count(b"\n", at, start)
        at = start
        yield number, block[start : block.find(b"\n", start)], starts[start]


def _utf8(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks as UTF-8, what they were at most ``MAX_BYTES``."""
    utf16: codecs.IncrementalDecoder | None = None
    start, read = b"", 0
    for chunk in chunks:
        read += len(chunk)
        if read > MAX_BYTES:
            raise LogError(f"the log has more than {MAX_BYTES >> 20} MiB; cut out where llama.cpp loads the model")
        if read - len(chunk) < 2:
            start += chunk
            if read < 2:
                continue
            chunk, start = start, b""
            if chunk.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                utf16 = codecs.getincrementaldecoder("utf-16")("replace")
            chunk = chunk.removeprefix(codecs.BOM_UTF8)
        yield chunk if utf16 is None else utf16.decode(chunk).encode("utf-8", "replace")
    yield start


def clean(line: bytes) -> str:
    """One line, as llama.cpp meant it: decoded, without colours and control characters, and without secrets.

    JSON lines (``--log-jsonl``, docker's json-file) give their message.
    """
    text = line[: 4 * MAX_LINE].decode("utf-8", "replace")
    if text.startswith('{"') and ('"msg"' in text or '"log"' in text):
        try:
            entry = json.loads(text)
            message = (entry.get("msg") or entry.get("log")) if isinstance(entry, dict) else None
            text = message.rstrip() if isinstance(message, str) else text
        except (ValueError, RecursionError):
            pass
    if not text.isprintable():
        text = _ESCAPES.sub("", text)
    return blanked(printable(text[:MAX_LINE]).rstrip())
