"""Estimates as text: pure functions from data to a string."""

from __future__ import annotations
