"""Finished episodes as traces that other tools read, and traces as rows to train on (docs/traces.md)."""
