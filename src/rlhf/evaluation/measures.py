"""Measurements on sampled completions that need no judge: distance from the baseline, entropy, length,
variety."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.data.pack import Branch, Group, pack, split_by_tokens
from rlhf.errors import ModelError
from rlhf.evaluation.intervals import Array
from rlhf.losses import kl_k1, kl_k3, segment_mean, segment_sum
from rlhf.models.divergence import check_comparable, exact_kl_per_token
from rlhf.models.policy import PolicyModel
from rlhf.models.score import evaluating
from rlhf.rollout.types import Completion

TOKENS_PER_BATCH = 8192
WORDS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|\w+|[^\w\s]")
"""Words, signs, and the letters of scripts that put no spaces between words."""
USUAL_LENGTHS = 0.99
"""Share of the judge's training completions that is no longer than what counts as long."""


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


@torch.no_grad()
def exact_token_kls(
    policy: PolicyModel,
    ref_model: PolicyModel,
    prompts: Sequence[Prompt],
    samples: Sequence[Sequence[Completion]],
    *,
    temperature: float = 1.0,
) -> list[Array]:
    """KL(policy || reference) of the next-token distributions at every token of the policy's own samples, exact.

        sum over v of p(v | prefix) (log p(v | prefix) - log q(v | prefix))

    Their sum over a completion is the Rao-Blackwellised estimate of the sequence's KL: unbiased like the sum of log-ratios (k1), with a
    variance that is never larger, because what the next token adds is averaged over all tokens instead of taken at the sampled one.

    Source: Amini et al. 2025, "Better Estimation of the KL Divergence Between Language Models", arXiv:2504.10637.

    Args:
        policy: Drew the samples, without filters.
        ref_model: What the distance is measured to; the same vocabulary.
        prompts: [P].
        samples: [P] completions of each prompt.
        temperature: At which the samples were drawn, above 0; both are scored at it.

    Returns:
        [S] one array for each completion, nats, one number for each of the policy's own tokens.

    Raises:
        ModelError: The two read other token ids.
    """
    check_comparable(policy, ref_model, what="The reference model")
    groups = [
        Group(prompt.ids, [Branch(c.tokens, c.scored) for c in group], {"id": prompt.id})
        for prompt, group in zip(prompts, samples, strict=True)
    ]
    kls: list[Array] = []
    with evaluating(policy.model, ref_model.model):
        for part in split_by_tokens(groups, max_tokens=TOKENS_PER_BATCH):
            batch = pack(part)
            exact = exact_kl_per_token(policy, ref_model, batch, temperature=temperature).cpu().double()
            counts = torch.bincount(batch.score_seq.cpu(), minlength=batch.num_sequences).tolist()
            kls += [each.numpy() for each in exact.split(counts)]
    return kls


def why_no_kl(sampling: SamplingConfig) -> str | None:
    """Why samples drawn like this can't measure the KL between the policies; None if they can."""
    if sampling.temperature == 0:
        return "greedy completions are not samples of the policy; measure at a temperature above 0"
    filters = {"top_k": None, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
    used = [name for name, off in filters.items() if getattr(sampling, name) != off]
    if used:
        return f"{' and '.join(used)} cut the distribution that was sampled; measure without"
    return None


def why_not_comparable(policy: PolicyModel, ref_model: PolicyModel) -> str | None:
    """Why two models' next-token distributions are not over the same tokens; None where they are."""
    try:
        check_comparable(policy, ref_model, what="The reference model")
    except ModelError as err:
        return str(err)
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


def effective_pairs(texts: Sequence[str]) -> float:
    """How many different pairs of neighboring letters texts are made of, all together, weighted by how often each comes.

        exp(-sum_p f_p log f_p),   f_p the share of pair p

    Letters, because this means the same for any tokenizer: a model that says nothing but "rrrrnrr" says a new word each time. Hardly
    depends on how many texts there are, as rare pairs count little.

    Source: Hill 1973, "Diversity and Evenness", Ecology 54 (order 1).

    Returns:
        At least 1; NaN where no text has two letters.
    """
    counts = Counter(text[i : i + 2] for text in texts for i in range(len(text) - 1))
    total = sum(counts.values())
    return math.exp(-sum(n / total * math.log(n / total) for n in counts.values())) if total else math.nan


class KnownTexts:
    """What a learned judge was trained on, as far as it takes to say how unlike it a completion is.

    Args:
        texts: Completions that it learned from.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self.pieces: set[tuple[str, ...]] = set()
        """Words, and pairs of them."""
        lengths = []
        for text in texts:
            self.pieces.update(_pieces(text))
            lengths.append(len(text.strip()))
        self.num_texts = len(lengths)
        self.long = float(np.quantile(lengths, USUAL_LENGTHS)) if lengths else math.inf
        """Letters."""

    def unseen_frac(self, text: str) -> float:
        """Share of a text's words and pairs of words that the judge never saw; 0 for a text without any."""
        pieces = _pieces(text)
        return sum(piece not in self.pieces for piece in pieces) / len(pieces) if pieces else 0.0

    def is_long(self, text: str) -> bool:
        """Whether it is longer than nearly all that the judge saw."""
        return len(text.strip()) > self.long


def _pieces(text: str) -> list[tuple[str, ...]]:
    words = WORDS.findall(text.lower())
    return [(word,) for word in words] + list(pairwise(words))
