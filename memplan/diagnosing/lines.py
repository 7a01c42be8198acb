"""A log's lines without what terminals, containers and loggers put around them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final

from memplan.errors import LogError

MAX_LINE: Final = 4096
"""Characters of a line that are looked at; llama.cpp's own lines are far shorter."""

MAX_BYTES: Final = 256 << 20
"""Bytes of a log that are read."""

_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-9;:?]{0,32}[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[@-Z\\-_])")


def clean_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """The lines of a log that comes in chunks of bytes: decoded, without colours and control characters.

    A carriage return ends a line as well (progress bars); JSON lines (``--log-jsonl``) give their message. Raises
    LogError for a log that is no text or has no end.
    """
    rest, read = b"", 0
    for chunk in chunks:
        read += len(chunk)
        if read > MAX_BYTES:
            raise LogError(f"the log has more than {MAX_BYTES >> 20} MiB; cut out where llama.cpp loads the model")
        if read == len(chunk) and chunk.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise LogError("the log is UTF-16 text, as PowerShell's > writes it; save it as UTF-8")
        lines = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
        rest = lines.pop()[-MAX_LINE * 8 :]
        for line in lines:
            if line:
                yield clean(line)
    if rest:
        yield clean(rest)


def clean(line: bytes) -> str:
    """One line, as llama.cpp meant it."""
    text = line[: 4 * MAX_LINE].decode("utf-8", "replace")
    if text.startswith('{"') and '"msg"' in text:
        try:
            entry = json.loads(text)
            message = entry.get("msg") if isinstance(entry, dict) else None
            text = message if isinstance(message, str) else text
        except (ValueError, RecursionError):
            pass
    if text.isprintable():
        return text[:MAX_LINE].rstrip()
    text = _ESCAPES.sub("", text)
    return "".join(char if char.isprintable() else " " for char in text[:MAX_LINE]).rstrip()
