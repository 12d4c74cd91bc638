"""The embedded world: a small English assistant world in which everything can be checked, built from a seed."""

from __future__ import annotations

from rlhf.data.world.build import build_world, split_prompts
from rlhf.data.world.judge import Verdict, judge
from rlhf.data.world.pairs import LabeledPair, Sample, label_pairs
from rlhf.data.world.tokenizer import train_tokenizer

__all__ = [
    "LabeledPair",
    "Sample",
    "Verdict",
    "build_world",
    "judge",
    "label_pairs",
    "split_prompts",
    "train_tokenizer",
]
