"""Capability suites: fixed questions asked before and after training.

suite          items and settings, from YAML or JSONL; bundled suites in ``bundled/``
scorers        rewards, likelihood of choices, refusals        instructions: checks of form, as a reward
suite_run      a model's scores on a suite
capability     two models on the same items: pass, fail or undecided
"""

from __future__ import annotations
