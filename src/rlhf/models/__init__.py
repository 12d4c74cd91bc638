"""Models: how they are loaded and saved, how a packed batch runs through them, and the heads on top.

load.py        a model and its tokenizer from a folder, the hub, this package or a config
sources.py     where that is
checks.py      checks of a model folder before anything in it is opened
weights.py     checks of weights in memory
tokens.py      tokenizers, and whether they fit a model
adapters.py    LoRA: put on, read, merged
adapted.py     apply_lora, compile_model: the same for a model in memory
adapter_base.py  the model that an adapter belongs to, and whether it is still the one
attention.py   attention on the packed row; optimized_attention.py: OptimizedAttention, chosen by name or by measuring
logprobs.py    hidden states to log-probabilities, without a [tokens, vocabulary] tensor
score.py       a packed batch to numbers per scored token
paths.py       which way through score.py a model takes, found by comparing
policy.py      PolicyModel: what is trained
reference.py   ReferenceModel and others: what it is held to
logprob_cache.py  log-probabilities of frozen references, cached in files
scalar.py      a transformer that gives numbers instead of words
reward.py      RewardModel: one number for a completion
learned.py     parameters that a loss learns with its scores: margins, a threshold
process_reward.py  ProcessRewardModel: one number for each step of a solution
block_expansion.py  fresh layers behind a backbone's own
value.py       ValueModel: one number for each token
folders.py     model folders on disk
card.py        their README.md
"""

from __future__ import annotations
