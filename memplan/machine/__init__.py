"""This machine: its GPUs and its memory, asked of llama.cpp, the drivers and the system."""

from __future__ import annotations
