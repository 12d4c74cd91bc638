"""The critic's loss."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf.losses.shapes import check_same_shape


def clipped_value_loss(values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float | None = 0.2) -> Tensor:
    """Squared error of each value estimate, with the step away from the old estimate bounded as PPO bounds the ratio.

        near = clip(values, old_values - c, old_values + c)
        loss = max((values - returns)^2, (near - returns)^2) / 2

    A value that has moved more than c towards its return has no gradient left; one that has moved away from it has.

    Sources: the loss of the original PPO code; Engstrom et al. 2020, section 3, arXiv:2005.12729, who find no benefit,
    and Huang et al. 2024, arXiv:2403.17031, who keep it for language models.

    Args:
        values: [M] current estimates; the only input with gradient.
        old_values: [M] estimates at the time of sampling, from which the returns were made.
        returns: [M] targets.
        clip: c, in units of the return; None for the plain squared error.

    Returns:
        [M] loss per token. The caller divides by the token count of the whole optimizer step.
    """
    check_same_shape(values, old_values, returns)
    error = (values - returns).square()
    if clip is None:
        return error / 2
    near = torch.clamp(values, old_values - clip, old_values + clip)
    return torch.maximum(error, (near - returns).square()) / 2
