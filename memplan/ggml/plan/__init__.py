"""The quick planner: like stretches of a graph built once, scheduled and packed as numbers."""
