"""What contexts remember: caches of keys and values, recurrent states, each a list of tensors."""
