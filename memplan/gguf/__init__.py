"""Reading GGUF headers: byte sources, the parser, ggml's tensor types."""
