"""What can be measured on sampled completions without any judge: distance from the baseline, entropy, length,
variety."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.data.pack import Branch, Group, pack, split_by_tokens
from rlhf.evaluation.intervals import Array
from rlhf.losses import kl_k1, kl_k3, segment_mean, segment_sum
from rlhf.models.policy import PolicyModel
from rlhf.models.score import evaluating
from rlhf.rollout.types import Completion

TOKENS_PER_BATCH = 8192


@dataclass(frozen=True, slots=True)
class TokenMeasures:
    """Numbers per completion, in order; the prompts' samples lie together."""

    kl_k1: Array
    """[S] sum over tokens of log policy - log baseline, nats: unbiased for the KL of the whole sequence, either
    sign."""
    kl_k3: Array
    """[S] sum over tokens of the k3 estimate, nats: unbiased too, never negative, a third of k1's deviation in
    research/evaluation.md, section 5. (k3 of the ratio of whole sequences would be useless.)"""
    entropy: Array
    """[S] mean over tokens of the policy's exact entropy, nats."""


@torch.no_grad()
def token_measures(
    policy: PolicyModel,
    baseline: PolicyModel,
    prompts: Sequence[Prompt],
    samples: Sequence[Sequence[Completion]],
    *,
    temperature: float = 1.0,
) -> TokenMeasures:
    """Score the policy's own samples under itself and under the baseline.

    Args:
        policy: Drew the samples.
        baseline: What the distance is measured to; the same tokenizer.
        prompts: [P].
        samples: [P] completions of each prompt.
        temperature: At which the samples were drawn, above 0; both are scored at it.

    Returns:
        See ``TokenMeasures``.
    """
    numbers: dict[str, list[float]] = {"k1": [], "k3": [], "entropy": []}
    groups = [
        Group(prompt.ids, [Branch(c.tokens) for c in group], {"id": prompt.id})
        for prompt, group in zip(prompts, samples, strict=True)
    ]
    with evaluating(policy.model, baseline.model):
        for part in split_by_tokens(groups, max_tokens=TOKENS_PER_BATCH):
            batch = pack(part)
            own = policy.score(batch, temperature=temperature, with_entropy=True)
            other = baseline.score(batch, temperature=temperature).logprobs.cpu().double()
            assert own.entropy is not None
            mine, count = own.logprobs.cpu().double(), batch.num_sequences
            numbers["k1"] += segment_sum(kl_k1(mine, other), batch.score_seq, count).tolist()
            numbers["k3"] += segment_sum(kl_k3(mine, other), batch.score_seq, count).tolist()
            numbers["entropy"] += segment_mean(own.entropy.cpu().double(), batch.score_seq, count).tolist()
    return TokenMeasures(*(np.array(numbers[name]) for name in ("k1", "k3", "entropy")))


def why_no_kl(sampling: SamplingConfig) -> str | None:
    """Why samples drawn like this say nothing about the KL between the policies; None where they do."""
    if sampling.temperature == 0:
        return "greedy completions are no samples of the policy; measure at a temperature above 0"
    filters = {"top_k": None, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
    used = [name for name, off in filters.items() if getattr(sampling, name) != off]
    if used:
        return f"{' and '.join(used)} cut the distribution that was sampled; measure without"
    return None


def distinct_n(texts: Sequence[str], n: int) -> float:
    """Share of n-grams of words, over all texts together, that are different from one another.

        distinct-n = number of different n-grams / number of n-grams

    It falls with the number and the length of texts, so only equal numbers of texts compare.

    Source: Li et al. 2016, "A Diversity-Promoting Objective Function for Neural Conversation Models", section 5.2,
    arXiv:1510.03055.

    Returns:
        0 to 1; NaN where no text has n words.
    """
    grams = [tuple(words[i : i + n]) for words in map(str.split, texts) for i in range(len(words) - n + 1)]
    return len(set(grams)) / len(grams) if grams else math.nan
