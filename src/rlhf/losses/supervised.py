"""Losses on given completions. Label smoothing and other variants join here."""

from __future__ import annotations

from torch import Tensor


def nll_loss(logprobs: Tensor) -> Tensor:
    """Negative log-likelihood of each scored token, the loss of supervised fine-tuning.

        -log p(token | all before it)

    Args:
        logprobs: [M] nats.

    Returns:
        [M] loss per token; ``token_mean`` makes it the usual cross-entropy, whose exponential is the perplexity.
    """
    return -logprobs
