"""ggml's planner: tensors without data, the ops that build them, graph order, splits over backends, packing."""
