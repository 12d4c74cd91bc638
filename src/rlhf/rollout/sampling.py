"""From logits to tokens, by inverting the cumulative distribution at given uniform numbers.

R is the number of rows. The uniform numbers come from a counter, not from a generator's state: the t-th number of a
sample is a hash of (the sample's seed, t), so a sample is the same alone, in any batch, in any order, and after a
resume.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlhf.config.policy import SamplingConfig

GOLDEN = 0x9E3779B97F4A7C15
"""2^64 / golden ratio, odd: the step of SplitMix64's counter."""
MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
BLOCK = 128
"""Tokens in one block of the two-level search: near the square root of common vocabularies."""
TOP_P_FIRST = 256
"""Tokens examined before a nucleus is searched further."""


@dataclass(frozen=True, slots=True)
class Draw:
    """One token for each row."""

    tokens: Tensor
    """int64 [R]."""
    logprobs: Tensor
    """[R] nats under the model's whole tempered distribution."""
    sampling_logprobs: Tensor | None
    """[R] nats under the distribution that was drawn from; None where that is the same."""


def uniforms(seeds: np.ndarray, step: int | np.ndarray) -> np.ndarray:
    """Number ``step`` of each sample's own stream.

    SplitMix64: the counter ``seed + (step + 1) * GOLDEN`` is mixed by two xor-shift-multiply rounds; the upper 53 bits
    make the fraction. Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators", OOPSLA, whose
    64-bit mixer is the thirteenth of Stafford's.

    Args:
        seeds: uint64 [R].
        step: From 0; int64 [R] where the samples are not equally far.

    Returns:
        float64 [R] in [0, 1).
    """
    counter = np.atleast_1d(step).astype(np.uint64) + np.uint64(1)
    z = seeds + counter * np.uint64(GOLDEN)  # modulo 2^64
    for shift, factor in MIX:
        z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
    z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)) * 2.0**-53


def draw(logits: Tensor, uniform: Tensor, sampling: SamplingConfig, *, seen: Tensor | None = None) -> Draw:
    """Sample one token for each row.

    Order, as transformers has it: repetition penalty, temperature, top-k, top-p, min-p.

    Args:
        logits: [R, V]; overwritten where they are float32 or float64.
        uniform: float64 [R] in [0, 1).
        sampling: Temperature, filters and penalty.
        seen: bool [R, V] tokens of the prompt and of the completion so far; needed for a repetition penalty.

    Returns:
        Tokens and their log-probabilities.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    greedy = sampling.temperature == 0
    if is_plain(sampling):
        if sampling.temperature != 1:
            logits.div_(sampling.temperature)
        probs = torch.softmax(logits, dim=-1)
        tokens = invert_cdf(probs, uniform)
        return Draw(tokens, _pick(probs, tokens).log(), None)
    if greedy:
        shaped = _penalized(logits, sampling, seen)
        tokens = shaped.argmax(dim=-1)
        return Draw(tokens, _pick(logits, tokens) - logits.logsumexp(dim=-1), None)
    probs = distribution(logits, sampling, seen=seen)
    tokens = invert_cdf(probs, uniform)
    whole = logits.div_(sampling.temperature)
    return Draw(tokens, _pick(whole, tokens) - whole.logsumexp(dim=-1), _pick(probs, tokens).log())


def distribution(logits: Tensor, sampling: SamplingConfig, *, seen: Tensor | None = None) -> Tensor:
    """[R, V] probabilities that tokens are drawn from; the temperature is above 0, and the rest as for ``draw``."""
    shaped = _penalized(logits, sampling, seen) / sampling.temperature
    if has_filters(sampling):
        shaped = shaped.masked_fill_(shaped < threshold(shaped, sampling)[:, None], -math.inf)
    return torch.softmax(shaped, dim=-1)


def invert_cdf(probs: Tensor, uniform: Tensor) -> Tensor:
    """First token whose cumulative probability exceeds the uniform number; never one of probability 0.

    Two levels: sums of blocks, then the tokens of one block, each added up in float64. A single cumulative sum over a
    large vocabulary costs several times more and loses small probabilities to rounding.

    Args:
        probs: [R, V] not negative; rows need not sum exactly to 1.
        uniform: float64 [R] in [0, 1).

    Returns:
        int64 [R].
    """
    vocabulary = probs.shape[1]
    whole = vocabulary - vocabulary % BLOCK
    sums = probs[:, :whole].unflatten(1, (-1, BLOCK)).sum(-1) if whole else probs[:, :0]
    if whole < vocabulary:
        sums = torch.cat([sums, probs[:, whole:].sum(-1, keepdim=True)], dim=1)
    cdf = sums.double().cumsum(-1)
    target = _below(uniform * cdf[:, -1], cdf[:, -1])
    block = (cdf <= target[:, None]).sum(-1, keepdim=True)
    rest = target - torch.where(block > 0, cdf.gather(1, (block - 1).clamp_(min=0)), 0.0).squeeze(1)
    index = block * BLOCK + torch.arange(BLOCK, device=probs.device)
    inside = (
        probs.gather(1, index.clamp(max=vocabulary - 1)).double().masked_fill_(index >= vocabulary, 0.0).cumsum_(-1)
    )
    rest = _below(rest, inside[:, -1])  # the block's own sum was rounded in another order
    return block.squeeze(1) * BLOCK + (inside <= rest[:, None]).sum(-1)


def is_plain(sampling: SamplingConfig) -> bool:
    """Whether tokens are drawn from the model's whole tempered distribution."""
    return sampling.temperature > 0 and sampling.repetition_penalty == 1 and not has_filters(sampling)


def has_filters(sampling: SamplingConfig) -> bool:
    """Whether some tokens can't be drawn at all."""
    return sampling.top_k is not None or sampling.top_p < 1 or sampling.min_p > 0


def threshold(logits: Tensor, sampling: SamplingConfig) -> Tensor:
    """Every filter keeps the tokens whose logit reaches a threshold; this is the highest of them, so equal logits
    share a fate.

    Sources: top-k: Fan et al. 2018, section 5.4, arXiv:1805.04833; top-p: Holtzman et al. 2019, section 3.1,
    arXiv:1904.09751 (here among what top-k leaves); min-p: Nguyen et al. 2024, arXiv:2407.01082.

    Args:
        logits: [R, V] tempered.
        sampling: ``top_k``, ``top_p``, ``min_p``.

    Returns:
        [R].
    """
    lowest = torch.full_like(logits[:, 0], -math.inf)
    if sampling.top_k is not None and sampling.top_k < logits.shape[1]:
        lowest = logits.topk(sampling.top_k, dim=-1).values[:, -1]
    if sampling.top_p < 1:
        lowest = torch.maximum(lowest, _nucleus_threshold(logits, lowest, sampling.top_p))
    if sampling.min_p > 0:
        lowest = torch.maximum(lowest, logits.amax(dim=-1) + math.log(sampling.min_p))
    return lowest


def penalize(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Divide positive and multiply negative logits of seen tokens.

    Source: Keskar et al. 2019, section 4.1, arXiv:1909.05858; the sign rule is transformers'.

    Args:
        logits: [R, V] before the temperature.
        seen: bool [R, V].
        penalty: Above 1 discourages repetition.

    Returns:
        [R, V], a new tensor.
    """
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def _penalized(logits: Tensor, sampling: SamplingConfig, seen: Tensor | None) -> Tensor:
    """[R, V] logits after the repetition penalty."""
    if sampling.repetition_penalty == 1:
        return logits
    assert seen is not None, "a repetition penalty needs the tokens seen so far"
    return penalize(logits, seen, sampling.repetition_penalty)


def _nucleus_threshold(logits: Tensor, lowest: Tensor, top_p: float) -> Tensor:
    """[R] logit of the last token of the smallest set that holds ``top_p``; looks at as few tokens as it can."""
    kept = logits.masked_fill(logits < lowest[:, None], -math.inf)
    total = kept.logsumexp(dim=-1, keepdim=True)
    width = min(TOP_P_FIRST, logits.shape[1])
    while True:
        values = kept.topk(width, dim=-1).values
        held = (values - total).exp().double().cumsum(-1)
        if width == logits.shape[1] or bool((held[:, -1] >= top_p).all()):
            last = (held < top_p).sum(-1, keepdim=True).clamp_(max=width - 1)
            return values.gather(1, last).squeeze(1)
        width = min(8 * width, logits.shape[1])


def _below(value: Tensor, bound: Tensor) -> Tensor:
    """``value``, or the number just below ``bound`` where rounding made it reach the bound."""
    return torch.minimum(value, torch.nextafter(bound, torch.zeros_like(bound)))


def _pick(table: Tensor, tokens: Tensor) -> Tensor:
    return table.gather(1, tokens[:, None]).squeeze(1)
