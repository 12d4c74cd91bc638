"""Frozen models of a trainer that samples: where they are between two rollouts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rlhf.errors import ConfigError
from rlhf.models.offload import offload, on_device
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import Reference
from rlhf.rewards.model_reward import model_rewards
from rlhf.training.experience import RolloutExperience
from rlhf.training.inputs import RLInputs


def offload_frozen(inputs: RLInputs[Any]) -> None:
    """Move the models that ``offload`` names to the CPU; each is on the policy's device while it scores a rollout.

    Raises:
        ConfigError: There is no such model in this process.
    """
    for which in inputs.config.offload:
        models = list(_models_of(which, inputs))
        if not models:
            raise ConfigError(
                f"offload names `{which}`, which has no weights of its own in this process; leave it out of offload."
            )
        for model in models:
            offload(model, inputs.policy.device)


def logprobs_of(
    model: PolicyModel | Reference,
    experience: RolloutExperience,
    *,
    temperature: float,
    device: torch.device,
    max_tokens: int,
) -> Tensor:
    """[M] a model's log-probabilities of a rollout's completions, on the CPU: by this process on ``device``, or by actors."""
    logprobs_of = getattr(model, "logprobs_of", None)
    if logprobs_of is not None:  # rlhf.training.reference_pool, which is in no stage's key
        batches = experience.batches(range(len(experience.groups)), max_tokens=max_tokens)
        return torch.cat(logprobs_of(batches, temperature=temperature))
    with on_device(model):
        return experience.map(
            lambda batch: model.logprobs(batch.to(device), temperature=temperature), max_tokens=max_tokens
        )


def _models_of(which: str, inputs: RLInputs[Any]) -> Iterator[nn.Module]:
    if which == "reward":
        yield from (reward.model for scorer in (inputs.scorer, inputs.judge) for reward in model_rewards(scorer))
        return
    reference: object = inputs.reference
    if isinstance(reference, nn.Module) and reference is not inputs.policy:
        yield reference
