"""A frozen reference that actors hold: each is given the micro-batches that this process would compute, so the numbers are the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rlhf.config.launch import PoolConfig
from rlhf.config.model import ModelConfig
from rlhf.config.training import Autocast
from rlhf.data.pack import PackedBatch
from rlhf.distributed.actor_calls import Cluster
from rlhf.distributed.actor_pool import ActorPool, Preparation
from rlhf.errors import ModelError
from rlhf.models.paths import PathChoice
from rlhf.models.policy import PolicyModel
from rlhf.native.compiled_mode import is_in_c

ROLE = "reference"
WORKER = "rlhf.training.reference_worker:build_worker"


class PooledReference:
    """A ``Reference`` whose log-probabilities actors compute. They start at once, and load the model from where this process did.

    Args:
        cluster: Where they live.
        settings: Of the pool.
        config: Where the model is.
        seed: Of weights that are drawn.
        same_as: The policy that the reference is a copy of; None for another model, whose path its first rows decide.
        autocast: Type of the matrix products.
        notify: Called with a message when an actor is replaced.

    Raises:
        ModelError: The actors find other weights than those of ``same_as``.
        TrainingError: None starts.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: PoolConfig,
        config: ModelConfig,
        *,
        seed: int,
        same_as: PolicyModel | None,
        autocast: Autocast,
        notify: Callable[[str], None],
    ) -> None:
        device = "auto" if settings.gpus else "cpu"
        self.pool = ActorPool(cluster, ROLE, settings, WORKER, (config, seed, device))
        self.pool.notify = notify
        self.autocast: Autocast = autocast
        self._choice: PathChoice | None = None if same_as is None else same_as.choice
        self._fingerprint: str = self.pool.about()
        if same_as is not None and self._fingerprint != (own := same_as.fingerprint()):
            self.close()
            raise ModelError(
                f"The actors of the pool `reference` find other weights ({self._fingerprint[:12]}...) than the policy began with "
                f"({own[:12]}...) at {config.path}: is it the same folder on all nodes?"
            )

    def logprobs(self, batch: PackedBatch, *, temperature: float = 1.0) -> Tensor:
        """[M] nats of the scored tokens, on the batch's device."""
        return self.logprobs_of([batch], temperature=temperature)[0].to(batch.tokens.device)

    def logprobs_of(self, batches: Sequence[PackedBatch], *, temperature: float = 1.0) -> list[Tensor]:
        """[M] nats of each batch, on the CPU; the actors share them.

        Raises:
            TrainingError: Actors were lost too often, or one has other weights.
        """
        if not batches:
            return []
        slim = [_slim(batch) for batch in batches]
        if self.pool.preparation is None:
            self.pool.preparation = Preparation("path", "prepare", (self._choice, slim[0]), self._check)
        how: tuple[Any, ...] = (temperature, self.autocast, is_in_c())
        costs = [float(len(batch.tokens)) for batch in batches]
        answers: list[Tensor] = self.pool.run("logprobs", [(batch, *how) for batch in slim], costs=costs)
        return answers

    def fingerprint(self) -> str:
        """Of the weights that every actor has."""
        return self._fingerprint

    def close(self) -> None:
        """End the actors; another request starts them again."""
        self.pool.close()

    def _check(self, fingerprint: str) -> str | None:
        if fingerprint == self._fingerprint:
            return None
        return f"has other weights ({fingerprint[:12]}...) than the first one had ({self._fingerprint[:12]}...)"


def _slim(batch: PackedBatch) -> PackedBatch:
    """What a reference reads of a batch."""
    return replace(batch.to(torch.device("cpu")), columns={}, token_columns={}, derived={})
