"""A frozen reference in an actor."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf.config.model import ModelConfig
from rlhf.config.training import Autocast
from rlhf.data.pack import PackedBatch
from rlhf.models.device import placed_on
from rlhf.models.load import disable_dropout
from rlhf.models.paths import PathChoice, groups_of
from rlhf.models.policy import PolicyModel
from rlhf.native.compiled_mode import in_c
from rlhf.training.optim import mixed_precision


class ReferenceWorker:
    """What an actor of the pool `reference` is made of: a frozen model.

    Args:
        config: Where the model is loaded from, as its node finds it.
        seed: Of weights that are drawn.
        device: Where it computes.
    """

    def __init__(self, config: ModelConfig, seed: int, device: str) -> None:
        with placed_on(device):
            self.policy = PolicyModel.from_pretrained(config, seed=seed).requires_grad_(False).eval()
        disable_dropout(self.policy.model)
        self.fingerprint = self.policy.fingerprint()

    def started(self) -> str:
        """The fingerprint of its weights."""
        return self.fingerprint

    def prepare(self, choice: PathChoice | None, first: PackedBatch) -> str:
        """Take the path that others take, or the one that the first batch decides; its fingerprint."""
        if choice is None:
            self.policy.choose_path(groups_of(first.to(self.policy.device), limit=3))
        else:
            self.policy.choice = choice
        return self.fingerprint

    def logprobs(self, batch: PackedBatch, temperature: float, autocast: Autocast, compiled: bool) -> Tensor:
        """[M] nats of a micro-batch, on the CPU.

        Args:
            batch: On the CPU.
            temperature: Divides the logits.
            autocast: As the process that trains has it.
            compiled: Whether that computes in C.
        """
        device = self.policy.device
        with torch.no_grad(), in_c(compiled), mixed_precision(autocast, device):
            return self.policy.logprobs(batch.to(device), temperature=temperature).cpu()


def build_worker(config: ModelConfig, seed: int, device: str) -> ReferenceWorker:
    """What an actor of a pool is made of."""
    return ReferenceWorker(config, seed, device)
