"""Losses on given completions, one number per scored token.

Which tokens are scored (completions only, every assistant turn, whole texts) is the packing's choice; a loss sees no
others. ``token_mean`` makes each of them one number, over the tokens of the whole optimizer step.
"""

from __future__ import annotations

from torch import Tensor

from rlhf.losses.shapes import check_same_shape, check_smoothing


def nll_loss(logprobs: Tensor) -> Tensor:
    """Negative log-likelihood of each scored token, the loss of supervised fine-tuning.

        -log p(token | all before it)

    Args:
        logprobs: [M] nats.

    Returns:
        [M] loss per token; ``token_mean`` makes it the usual cross-entropy, whose exponential is the perplexity.
    """
    return -logprobs


def label_smoothed_loss(logprobs: Tensor, mean_logprobs: Tensor, *, label_smoothing: float) -> Tensor:
    """Cross-entropy against the given token mixed with the uniform distribution over the vocabulary.

        target(v) = (1 - s) [v is the token] + s / V
        loss      = -sum over v of target(v) log p(v) = -(1 - s) log p(token) - s (1 / V) sum over v of log p(v)

    The minimum is no longer at certainty but at p(token) = 1 - s + s / V, so logits stop growing. The second sum runs
    over the vocabulary; it comes from the scorer as one number per token, ``mean(logits) - logsumexp(logits)``. A
    token barred with a logit of -inf would make it infinite: smoothing asks for every token to stay possible.

    Sources: Szegedy et al. 2016, section 7, arXiv:1512.00567; for language models Vaswani et al. 2017, section 5.4,
    arXiv:1706.03762 (s = 0.1).

    Args:
        logprobs: [M] of the given tokens, nats.
        mean_logprobs: [M] mean of the log-probabilities of all tokens of the vocabulary at the same place, nats.
        label_smoothing: s, in [0, 1).

    Returns:
        [M] loss per token.

    Raises:
        ConfigError: ``label_smoothing`` is outside its range.
    """
    check_smoothing(label_smoothing, below=1)
    check_same_shape(logprobs, mean_logprobs)
    return -(1 - label_smoothing) * logprobs - label_smoothing * mean_logprobs


def dft_loss(logprobs: Tensor) -> Tensor:
    """Dynamic fine-tuning: each token's negative log-likelihood, weighted by the probability it has already.

        -sg(p) log p,   p = p(token | all before it),   sg: without gradient

    The gradient of the plain loss, read as a policy gradient, pays a token 1 / p: what the model finds absurd is
    learned hardest. The weight takes that away, and the gradient becomes that of -p. It sharpens what is likely
    already and all but ignores what is not, so the data should lie near to what the model can do.

    The value is not a measure of progress: -p log p is small at p = 1 and at p = 0. Report ``nll_loss`` with it.

    Source: Wu et al. 2025, "On the Generalization of SFT: A Reinforcement Learning Perspective with Reward
    Rectification", arXiv:2508.05629.

    Args:
        logprobs: [M] nats.

    Returns:
        [M] loss per token.
    """
    return -logprobs.detach().exp() * logprobs
