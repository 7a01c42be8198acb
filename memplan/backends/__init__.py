"""Backends: which ops a device computes, how its memory is laid out, what it offloads and fuses."""
