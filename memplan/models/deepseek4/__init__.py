"""DeepSeek-V4: its graph, and the graph's parts for the quick planner."""
