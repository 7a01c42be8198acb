"""llama.cpp's own rules: flags, hyper-parameters, which tensor goes to which device, caches, reservations."""

from __future__ import annotations
