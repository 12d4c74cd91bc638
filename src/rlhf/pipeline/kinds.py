"""Kinds of stages that readers of a run's records look for; they load no settings classes."""

from __future__ import annotations

EVALUATION = "evaluate"
"""Compares two policies."""
REWARD_MODEL = "reward"
"""Trains a judge of whole completions."""
GATE = "gate"
"""Promotes a candidate, or keeps the champion."""
UNCERTIFIED = "uncertified_judge"
"""Event of a run's log: a judge on which nothing is to rest yet."""
