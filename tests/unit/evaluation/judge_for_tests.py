"""A judge that can be loaded by name."""

from __future__ import annotations


def length(prompts, completions, **columns):
    return [float(len(text)) for text in completions]
