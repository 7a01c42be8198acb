"""Asking the same question many times: axes, the points they span, and the largest value that fits."""
