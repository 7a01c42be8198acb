"""Block drafters, DFlash and DSpark: a block of masked tokens is filled in one pass over what the target's layers read.

Follows src/models/dflash.cpp, v0.5.0, and what b10361 and v0.4.0 do otherwise. DeepSeek-V4's has stages of its own
kind; the plain form is a small dense model, for Qwen, Gemma and others.
"""

from memplan.models.dflash.architecture import ARCHITECTURE

__all__ = ["ARCHITECTURE"]
