"""A reference that follows the policy from rollout to rollout (TR-DPO's soft update)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from rlhf.config.kl import MovingReferenceConfig
from rlhf.distributed.sharding import whole_weights
from rlhf.errors import ConfigError, kind_of
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import Reference, ReferenceModel


class MovingReference:
    """Moves a reference before every k-th rollout, and keeps where it is in checkpoints.

        reference <- decay * reference + (1 - decay) * policy

    Source: Gorbatovski et al. 2024, "Learn your reference model for real good alignment", eq. 6, arXiv:2404.09656, whose unit is a step
    of the optimizer.

    Args:
        reference: Changed in place.
        policy: Whom it follows.
        every: Rollouts between two moves.
        decay: Share of itself that the reference keeps.
        keeps_first: Keep where it began, in the memory of the CPU, so that ``where_it_began`` can go back there.

    Raises:
        ConfigError: The reference is not a copy of the policy, so that it can't follow it.
        ModelError: It is in half precision.
    """

    def __init__(
        self, reference: Reference, policy: PolicyModel, *, every: int, decay: float, keeps_first: bool = False
    ) -> None:
        if not isinstance(reference, ReferenceModel):
            raise ConfigError(
                f"moving_reference changes the reference, and that is {kind_of(reference)}; give a copy of the policy, "
                "ReferenceModel(policy)."
            )
        reference.check_can_move()
        own = {name: parameter.shape for name, parameter in reference.copy.named_parameters()}
        if own != {name: parameter.shape for name, parameter in policy.named_parameters()}:
            raise ConfigError(
                "moving_reference averages the reference with the policy, and their weights differ in name or shape; give "
                "ReferenceModel(policy)."
            )
        self.reference = reference
        self.policy = policy
        self.every = every
        self.decay = decay
        self.first = self._on_cpu() if keeps_first else None
        """Where it began; a run that resumes begins there too, so that no checkpoint holds it."""

    @classmethod
    def of(
        cls,
        config: MovingReferenceConfig | None,
        reference: Reference,
        policy: PolicyModel,
        *,
        keeps_first: bool = False,
    ) -> MovingReference | None:
        """As a recipe asks for it; None where it asks for none."""
        if config is None:
            return None
        return cls(reference, policy, every=config.every, decay=config.decay, keeps_first=keeps_first)

    def before_rollout(self, rollout_index: int) -> None:
        """Move, where it is due; rollouts are counted from 0, and the first has the reference as it was given."""
        if rollout_index and rollout_index % self.every == 0:
            with whole_weights([self.policy.model]):  # over ranks each has the whole reference
                self.reference.move(self.policy, decay=self.decay)

    @contextlib.contextmanager
    def where_it_began(self) -> Iterator[Reference]:
        """The reference as it was before its first move, inside the block: its weights change places with those kept on the CPU, so that
        the device holds no second reference."""
        assert self.first is not None
        moved = self._on_cpu()
        self.load_state_dict(self.first)
        try:
            yield self.reference
        finally:
            self.load_state_dict(moved)

    def state_dict(self) -> dict[str, Tensor]:
        """A copy of the weights that move: a rollout that is broken off begins again from it."""
        return {name: kept.detach().clone() for name, kept in self._moving().items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        for name, kept in self._moving().items():
            kept.copy_(state[name])

    def _on_cpu(self) -> dict[str, Tensor]:
        return {name: kept.detach().to("cpu", copy=True) for name, kept in self._moving().items()}

    def _moving(self) -> dict[str, Tensor]:
        trained = {name for name, parameter in self.policy.named_parameters() if parameter.requires_grad}
        return {name: kept for name, kept in self.reference.copy.named_parameters() if name in trained}
