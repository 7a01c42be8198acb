"""memplan: what llama.cpp will allocate on every device with these flags, from a GGUF header alone."""

from __future__ import annotations

__version__ = "0.1.0"
