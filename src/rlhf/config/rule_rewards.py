"""Rewards that are heuristics of form and of words."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf.config.base import InputPath
from rlhf.config.reward_base import RewardBase


class RulesRewardConfig(RewardBase):
    """Heuristics of form: length near a target, capital at the start, punctuation at the end."""

    builds = "rlhf.rewards.rules:build_rules"
    unbounded = True
    kind: Literal["rules"] = "rules"
    target_words: int = Field(200, ge=1)
    """The length, in words, that costs nothing."""
    length_weight: float = Field(1.0, ge=0)
    """Lost by a completion of 0 words or of twice the target, and in proportion between and beyond."""
    capital_weight: float = Field(0.5, ge=0)
    """Given for a first letter that is a capital."""
    punctuation_weight: float = Field(0.5, ge=0)
    """Given for a last character that ends a sentence."""


class LexiconRewardConfig(RewardBase):
    """How positive a text is, from a lexicon of rated words."""

    builds = "rlhf.rewards.lexicon:build_lexicon"
    unbounded = True
    kind: Literal["lexicon"] = "lexicon"
    path: InputPath
    """VADER's `vader_lexicon.txt`, or any file of `word<tab>valence` lines."""
    scale: Literal["mean", "compound"] = "mean"
    """`mean` valence of the rated words, -4 to 4; `compound` is VADER's sum s / sqrt(s^2 + 15), -1 to 1."""
    negation: bool = True
    """A negating word up to three words before turns a valence round, times VADER's 0.74."""
