"""Servers of one language model side by side: `python -m benchmarks.serving`."""
