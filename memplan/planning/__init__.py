"""Searching for flags: which placement of a model's layers and experts fits a rig, and is fastest."""

from __future__ import annotations
