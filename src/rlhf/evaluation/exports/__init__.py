"""Evaluations in formats that other viewers read (docs/evaluation.md)."""
