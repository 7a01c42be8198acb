"""Models: one file an architecture, and the built-in headers that need no file."""
