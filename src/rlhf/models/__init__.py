"""Models: how they are loaded and saved, how a packed batch runs through them, and the heads on top.

load.py        a model and its tokenizer from a folder, the hub, this package or a config
sources.py     where that is
checks.py      what must be true of a model folder before anything in it is opened
weights.py     what must be true of weights in memory
tokens.py      tokenizers, and whether they fit a model
adapters.py    LoRA: put on, read, merged
attention.py   attention on the packed row
logprobs.py    hidden states to log-probabilities, without a [tokens, vocabulary] tensor
score.py       a packed batch to numbers per scored token
paths.py       which way through score.py a model takes, found by comparing
policy.py      PolicyModel: what is trained
reference.py   ReferenceModel and others: what it is held to
logprob_cache.py  what frozen references said, kept in files
scalar.py      a transformer that gives numbers instead of words
reward.py      RewardModel: one number for a completion
learned.py     what a loss learns beside its scores: margins, a threshold
process.py     ProcessRewardModel: one number for each step of a solution
layers.py      fresh layers behind a backbone's own
value.py       ValueModel: one number for each token
folders.py     model folders on disk
card.py        their README.md
"""

from __future__ import annotations

from rlhf.models.card import model_card
from rlhf.models.load import disable_dropout, load_causal_lm
from rlhf.models.logprob_cache import LogprobCache
from rlhf.models.paths import PathChoice, choose_hidden_path, choose_path
from rlhf.models.policy import PolicyModel
from rlhf.models.process import ProcessRewardModel
from rlhf.models.reference import AdapterOffReference, Reference, ReferenceModel, build_reference
from rlhf.models.reward import RewardModel
from rlhf.models.score import TokenScores, score
from rlhf.models.tokens import load_tokenizer
from rlhf.models.value import ValueModel

__all__ = [
    "AdapterOffReference",
    "LogprobCache",
    "PathChoice",
    "PolicyModel",
    "ProcessRewardModel",
    "Reference",
    "ReferenceModel",
    "RewardModel",
    "TokenScores",
    "ValueModel",
    "build_reference",
    "choose_hidden_path",
    "choose_path",
    "disable_dropout",
    "load_causal_lm",
    "load_tokenizer",
    "model_card",
    "score",
]
