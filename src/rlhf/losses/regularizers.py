"""Regularizers: penalties towards old weights, an entropy bonus, noisy embeddings.

The weight penalties do not depend on the batch. Add them once per optimizer step, not to each of its micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rlhf.errors import CheckpointError, ConfigError, TrainingError
from rlhf.losses.segments import segment_count


def entropy_bonus(entropy: Tensor) -> Tensor:
    """The negated entropy of each place's next-token distribution: as a term of a loss it keeps a policy exploring.

        -H,   H = -sum over v of p(v) log p(v)

    The entropy must be the exact one over the vocabulary (``TokenScores.entropy``). The log-probability of the sampled
    token estimates its value but not its gradient: that of -log p(token) is 0 on average over the policy's tokens.

    Source: Mnih et al. 2016, section 4, arXiv:1602.01783; 0.01 is a usual coefficient.

    Args:
        entropy: [M] nats, with gradient.

    Returns:
        [M] per token, before its coefficient.
    """
    return -entropy


def l2_penalty(parameters: Mapping[str, Tensor], anchors: Mapping[str, Tensor]) -> Tensor:
    """Half the squared distance of the weights from where they started.

        1/2 sum over i of (theta[i] - anchor[i])^2

    Unlike weight decay, which pulls towards 0 and so away from what was learned before.

    Source: Li, Grandvalet and Davoine 2018 ("L2-SP"), section 3, arXiv:1802.01483.

    Args:
        parameters: Current weights by name; those without an anchor are free.
        anchors: Copies of the weights to stay near, without gradient.

    Returns:
        0-dimensional, before its coefficient.

    Raises:
        ConfigError: Nothing is anchored, or an anchor has no parameter of its name and shape.
    """
    return _half_squares(parameters, anchors, None)


def ewc_penalty(
    parameters: Mapping[str, Tensor], anchors: Mapping[str, Tensor], fisher: Mapping[str, Tensor]
) -> Tensor:
    """Elastic weight consolidation: weights that an earlier task depends on are held, the others may move.

        1/2 sum over i of fisher[i] (theta[i] - anchor[i])^2

    The second-order expansion of the earlier task's loss around its optimum, with the Fisher information for the
    Hessian and without what lies off its diagonal.

    Source: Kirkpatrick et al. 2017, eq. 3, arXiv:1612.00796, where the coefficient is lambda.

    Args:
        parameters: Current weights by name; those without an anchor are free.
        anchors: The weights after the earlier task, without gradient.
        fisher: ``DiagonalFisher.mean()`` of the earlier task's rows at those weights, at least 0.

    Returns:
        0-dimensional, before its coefficient.

    Raises:
        ConfigError: Nothing is anchored, or an anchor has no parameter or no Fisher information of its name and shape.
    """
    return _half_squares(parameters, anchors, fisher)


class DiagonalFisher:
    """Diagonal of the Fisher information, as a mean over rows of squared gradients.

        F[i] = mean over rows of (d log p(row) / d theta[i])^2

    Each row's gradient is squared separately. Squaring the gradient of a batch would measure how far its mean is from 0,
    which at an optimum is nowhere.

    Rows of data give the *empirical* Fisher information; completions that the model itself drew give the true one,
    which is what the expansion asks for (Kunstner et al. 2019, arXiv:1905.12558).

    Totals add: two halves of a data set, or two ranks, ``merge`` into what one pass over all rows gives.
    """

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        """Begin at no rows.

        Args:
            parameters: The weights to be anchored, by name. Totals are on the same device, in float32 or wider.
        """
        self.num_rows = 0
        self._totals = {name: torch.zeros_like(weight, dtype=_wide(weight)) for name, weight in parameters.items()}

    def add_row(self, loss: Tensor, parameters: Mapping[str, Tensor]) -> None:
        """Add the squared gradients of one row.

        Args:
            loss: 0-dimensional, the row's summed negative log-likelihood: not a mean over its tokens, which would
                count long rows for less, and not over several rows.
            parameters: The weights it was computed with; a name that the loss does not reach adds 0.

        Raises:
            TrainingError: A gradient is not finite. Nothing was added.
        """
        weights = [parameters[name] for name in self._totals]
        gradients = torch.autograd.grad(loss, weights, allow_unused=True)
        by_name = {name: grad for name, grad in zip(self._totals, gradients, strict=True) if grad is not None}
        for name, gradient in by_name.items():
            if not bool(gradient.isfinite().all()):
                raise TrainingError(
                    f"Row {self.num_rows} of the Fisher information has a gradient for {name} that is not finite, from "
                    f"a loss of {loss.item():g}; leave the row out, or compute in float32."
                )
        for name, gradient in by_name.items():
            total = self._totals[name]
            total.add_(gradient.detach().to(total.dtype).square())
        self.num_rows += 1

    def merge(self, other: DiagonalFisher) -> None:
        """Add the rows of another, such as another rank's."""
        _check_names(self._totals, other._totals, "totals to merge")
        for name, total in self._totals.items():
            total.add_(other._totals[name].to(total))
        self.num_rows += other.num_rows

    def mean(self) -> dict[str, Tensor]:
        """The Fisher information by name, without gradient.

        Raises:
            TrainingError: No row was added: the information is unknown, not 0.
        """
        if self.num_rows == 0:
            raise TrainingError("The Fisher information was asked for before any row was added; give it a data set.")
        return {name: total / self.num_rows for name, total in self._totals.items()}

    def state_dict(self) -> dict[str, Any]:
        """Totals and number of rows; copies, which later rows don't change."""
        return {"num_rows": self.num_rows, "totals": {name: total.clone() for name, total in self._totals.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken.

        Raises:
            CheckpointError: The state is of other parameters.
        """
        totals: Mapping[str, Tensor] = state["totals"]
        shapes = {name: list(total.shape) for name, total in self._totals.items()}
        saved = {name: list(total.shape) for name, total in totals.items()}
        if shapes != saved:
            name = next(n for n in [*shapes, *saved] if shapes.get(n) != saved.get(n))
            raise CheckpointError(
                f"The saved Fisher information has {saved.get(name, 'nothing')} for {name} where the model has "
                f"{shapes.get(name, 'nothing')}; it belongs to another model."
            )
        self.num_rows = int(state["num_rows"])
        for name, total in self._totals.items():
            total.copy_(totals[name])


def neftune_noise(embeddings: Tensor, segment: Tensor, *, alpha: float, generator: torch.Generator) -> Tensor:
    """Noise to add to token embeddings while training, and only then.

        uniform(-1, 1) * alpha / sqrt(L H)

    with L the length of the token's own sequence: a sequence's noise has the norm alpha / sqrt(3) on average, whatever
    its length and the rest of the batch. (Implementations on padded batches take the longest row's L.)

    Numbers are drawn in the order of tokens. For noise that does not depend on how rows are split into batches, draw
    each sequence's by a separate call, with a generator seeded by the row.

    Source: Jain et al. 2023, algorithm 1, arXiv:2310.05914; alpha 5 to 15.

    Args:
        embeddings: [N, H]; only its shape, dtype and device are used.
        segment: [N] int64, the sequence each token belongs to, from 0.
        alpha: Size of the noise, at least 0.
        generator: Source of the numbers; one on the CPU gives the same noise on every device.

    Returns:
        [N, H] in the dtype of ``embeddings``, without gradient.

    Raises:
        ConfigError: Alpha is negative, or not every embedding has its sequence.
    """
    if alpha < 0:
        raise ConfigError(f"NEFTune's alpha is {alpha}; it is the size of a noise, 0 or above.")
    if embeddings.ndim != 2 or segment.shape != embeddings.shape[:1]:
        raise ConfigError(
            f"Noise is for embeddings [N, H] with a sequence [N] each; got shapes {list(embeddings.shape)} and "
            f"{list(segment.shape)}."
        )
    draw = torch.rand(embeddings.shape, generator=generator, device=generator.device)
    num_segments = int(segment.max()) + 1 if segment.numel() else 0
    lengths = segment_count(segment, num_segments)[segment]
    scale = alpha / (lengths * embeddings.shape[1]).float().sqrt()
    return ((2 * draw - 1).to(embeddings.device) * scale[:, None]).to(embeddings.dtype)


def _half_squares(
    parameters: Mapping[str, Tensor], anchors: Mapping[str, Tensor], weights: Mapping[str, Tensor] | None
) -> Tensor:
    """Half the squared distances, each weighted, summed over all anchored parameters; in float32 or wider."""
    if not anchors:
        raise ConfigError("No parameter is anchored, so nothing would be held; give the anchors of at least one.")
    _check_names(anchors, parameters, "parameters")
    if weights is not None:
        _check_names(anchors, weights, "Fisher information")
    terms = []
    for name, anchor in anchors.items():
        parameter = parameters[name].to(_wide(parameters[name]))
        squares = (parameter - anchor.to(parameter)).square()
        terms.append((squares if weights is None else weights[name].to(parameter) * squares).sum())
    return torch.stack([term.to(terms[0].device) for term in terms]).sum() / 2


def _check_names(wanted: Mapping[str, Tensor], given: Mapping[str, Tensor], what: str) -> None:
    """Every name and shape of the first is in the second: nothing is skipped, nothing broadcasts."""
    for name, tensor in wanted.items():
        tensor_given = given.get(name)
        if tensor_given is None or tensor_given.shape != tensor.shape:
            raise ConfigError(
                f"{name} of shape {list(tensor.shape)} is not among the {what}: got "
                f"{'nothing of this name' if tensor_given is None else f'shape {list(tensor_given.shape)}'}. Take both from one model."
            )


def _wide(weight: Tensor) -> torch.dtype:
    return torch.promote_types(weight.dtype, torch.float32)
