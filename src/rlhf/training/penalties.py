"""Terms of the loss that are functions of the weights alone. They are added once a step, by the loop.

They anchor the weights as they are when a penalty is made: before training, and so also before a resumed run reads its
checkpoint. Nothing of them is saved, because the same start, rows and seed give the same bits again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from rlhf.config.regularizers import FisherTargets
from rlhf.data.pack import Group, pack
from rlhf.distributed.ranks import current_ranks
from rlhf.distributed.sharding import is_shard, like, part
from rlhf.errors import ConfigError
from rlhf.losses import DiagonalFisher, ewc_penalty, l2_penalty
from rlhf.models.policy import PolicyModel
from rlhf.models.score import evaluating, sampled_targets
from rlhf.seeds import derive_seed
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
        """0-dimensional, its weight included, with the graph of the weights as they are."""
        own = _counted_here(self.parameters)
        return self.coef * l2_penalty(own, _as_parts(self.start, own)) if own else torch.zeros(())


def distance_from_start(modules: Sequence[TrainedModule], coef: float) -> list[DistanceFromStart]:
    """One for each module; none where the weight is 0, so that no copy of the weights is kept."""
    return [DistanceFromStart(trained.module, coef=coef) for trained in modules] if coef else []


class ElasticWeightConsolidation:
    """Holds a policy near what it is now, each trained weight as firmly as what it knows of some rows depends on it.

        coef / 2 * sum over i of F[i] (theta[i] - anchor[i])^2

    F is the diagonal of the Fisher information of the rows' scored tokens at the weights as they are when this is made, see
    ``diagonal_fisher``. Append it to a trainer's ``penalties`` before training; its value is the metric ``loss/ewc``.

    Only what is trained is held: with a fresh LoRA adapter that is the adapter at the place where it changes nothing yet.
    Memory: two numbers for each trained weight, the anchor in the weight's own type and F in float32, and while this is made
    the gradient of one row. Time: a forward and a backward pass for each row, two forward passes for targets of the model's own.

    Source: Kirkpatrick et al. 2017, "Overcoming catastrophic forgetting in neural networks", eq. 3, arXiv:1612.00796.

    Args:
        policy: What is trained, as it should be remembered.
        rows: What it should not forget: demonstrations, as ``SFTDataset`` gives them, at least one.
        coef: Weight of the term, the paper's lambda. F is that of one row, the mean over all of them, and the training loss a
            mean over tokens; 10 to 1000 are of use, the more the less new data may change.
        targets: See ``diagonal_fisher``.
        seed: Of the targets that are drawn.
    """

    name = "ewc"

    def __init__(
        self,
        policy: PolicyModel,
        rows: Iterable[Group],
        *,
        coef: float,
        targets: FisherTargets = "model",
        seed: int = 0,
    ) -> None:
        if coef < 0:
            raise ConfigError(
                f"Elastic weight consolidation has the weight {coef}; below 0 it would drive weights away."
            )
        self.coef = coef
        self.policy = policy
        self.anchors = {name: p.detach().clone() for name, p in policy.trainable_parameters().items()}
        self.fisher = diagonal_fisher(policy, rows, targets=targets, seed=seed)

    def __call__(self) -> Tensor:
        """0-dimensional, its weight included, with the graph of the weights as they are."""
        parameters = self.policy.trainable_parameters()  # others than at first where they lie in shards now
        self.anchors = {name: like(self.anchors[name], p) for name, p in parameters.items()}
        self.fisher = {name: like(self.fisher[name], p) for name, p in parameters.items()}
        own = _counted_here(parameters)
        return self.coef * ewc_penalty(own, _as_parts(self.anchors, own), _as_parts(self.fisher, own))


def diagonal_fisher(
    policy: PolicyModel, rows: Iterable[Group], *, targets: FisherTargets = "model", seed: int = 0
) -> dict[str, Tensor]:
    """Diagonal of the Fisher information of a policy's trained weights, by name, in float32 or wider.

        F[i] = mean over rows of (d / d theta[i] of sum over scored tokens of log p(token | all before it))^2

    With ``targets="model"`` each token is drawn from the policy's own distribution after the row's text: the expectation that
    the expansion behind elastic weight consolidation asks for. ``"data"`` takes the rows' own tokens, the *empirical* Fisher
    information: what the policy knows by heart then counts for nothing, and what it finds absurd for most (Kunstner et al. 2019,
    arXiv:1905.12558).

    Dropout is off. The policy stays as it is, its gradients and all random state included.

    Args:
        policy: At the weights to expand around.
        rows: At least one.
        targets: Whose tokens.
        seed: Of the tokens that are drawn.

    Raises:
        TrainingError: There are no rows, or a gradient is not finite; names the row's number.
    """
    parameters = dict(policy.trainable_parameters())
    fisher = DiagonalFisher(parameters)
    with evaluating(policy.model):
        for number, row in enumerate(rows):
            batch = pack([row]).to(policy.device)
            path = (policy.choice or policy.choose_path([row])).path
            if targets == "model":
                generator = torch.Generator().manual_seed(derive_seed(seed, "fisher", number))
                drawn = sampled_targets(policy.model, batch, generator=generator, path=path)
                batch = replace(batch, score_token=drawn)
            fisher.add_row(-policy.score(batch).logprobs.sum(), parameters)
    return fisher.mean()


def _counted_here(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """This rank's part of what lies in shards, with its gradient; of what every rank has whole, rank 0 counts all."""
    is_main = current_ranks().is_main
    return {name: part(p) for name, p in parameters.items() if is_main or is_shard(p)}


def _as_parts(tensors: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    return {name: part(tensors[name]) for name in names}
