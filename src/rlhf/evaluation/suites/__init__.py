"""Capability suites: fixed questions asked before and after training.

suite          items and settings, from YAML or JSONL; bundled suites in ``bundled/``
scorers        rewards, likelihood of choices, refusals        instructions: checks of form, as a reward
run            a model's scores on a suite
"""

from __future__ import annotations
