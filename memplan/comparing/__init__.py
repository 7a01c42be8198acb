"""Two answers side by side: what moved on which device, and which tensors, lifetimes or gaps moved it."""
