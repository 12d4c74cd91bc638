"""Speculative sampling as it was published: a drafted token is accepted at random, such that the distribution is kept.

Sources: Leviathan et al. 2023, algorithm 1, arXiv:2211.17192; Chen et al. 2023, algorithm 2, arXiv:2302.01318. A token x that was drawn
from q is accepted with probability min(1, p(x) / q(x)); where it is not, another is drawn from max(p - q, 0), normalized. What comes out
is distributed as p. A token is accepted with probability 1 - TV(p, q), the most that there is.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rlhf.config.policy import SamplingConfig
from rlhf.rollout.sampling import Draw, distribution, invert_cdf

DRAFTING = np.uint64(0xD1B54A32D192ED03)
ACCEPTING = np.uint64(0x8CB92BA72F3D8DD7)
"""A sample's seed becomes that of its stream for drafts, and of the one for accepting them, by exclusive or."""
NO_GUESS = -1


def draw_or_accept(
    logits: Tensor,
    uniform: Tensor,
    sampling: SamplingConfig,
    *,
    seen: Tensor | None,
    guesses: Tensor,
    probs: Tensor,
    accepting: Tensor,
) -> Draw:
    """Accept a guess, or draw another token, in each of N places.

    Args:
        logits: [N, V] of the sampled model.
        uniform: float64 [N] in [0, 1), for drawing.
        sampling: At a temperature above 0.
        seen: As for ``rlhf.rollout.sampling.draw``.
        guesses: int64 [N], ``NO_GUESS`` where there is none.
        probs: [N, V] what guesses were drawn from; without effect where there is none.
        accepting: float64 [N] in [0, 1), for accepting.

    Returns:
        Tokens, which are other than the guesses where these were not accepted, and their log-probabilities.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    wanted = distribution(logits, sampling, seen=seen)
    is_guess = guesses != NO_GUESS
    token = guesses.clamp(min=0)
    accepted = is_guess & (accepting.to(logits.device) * _pick(probs, token) < _pick(wanted, token))
    left = torch.where(is_guess[:, None], (wanted - probs).clamp_(min=0), wanted)
    # Where nothing is left the guess was accepted; what is drawn there does not matter.
    tokens = torch.where(accepted, token, invert_cdf(left, uniform).clamp_(max=logits.shape[1] - 1))
    whole = logits / sampling.temperature
    logprobs = _pick(whole, tokens) - whole.logsumexp(dim=-1)
    return Draw(tokens, logprobs, _pick(wanted, tokens).log())


def _pick(table: Tensor, tokens: Tensor) -> Tensor:
    return table.gather(1, tokens[:, None]).squeeze(1)
