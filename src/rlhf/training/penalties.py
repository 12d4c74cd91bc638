"""Terms of the loss that are functions of the weights alone. They are added once a step, by the loop."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from rlhf.losses import l2_penalty
from rlhf.training.optim import TrainedModule


class DistanceFromStart:
    """Half the squared distance of a module's trained weights from what they were when this was made, times a weight.

    Args:
        module: What is trained.
        coef: Weight of the term.
    """

    name = "l2"

    def __init__(self, module: nn.Module, *, coef: float) -> None:
        self.coef = coef
        self.parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.start = {name: p.detach().clone() for name, p in self.parameters.items()}

    def __call__(self) -> Tensor:
        """See ``rlhf.training.algorithm.Penalty``."""
        return self.coef * l2_penalty(self.parameters, self.start)


def distance_from_start(modules: Sequence[TrainedModule], coef: float) -> list[DistanceFromStart]:
    """One for each module; none where the weight is 0, so that no copy of the weights is kept."""
    return [DistanceFromStart(trained.module, coef=coef) for trained in modules] if coef else []
