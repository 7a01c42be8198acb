"""Logs of llama.cpp: what was asked for, what failed, why, and what mends it."""

from __future__ import annotations
