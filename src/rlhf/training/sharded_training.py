"""Training one model over several ranks: what can be trained so, and its weights in shards while it lasts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel

from rlhf.config.rank_limits import refused_in_one_process, refused_settings
from rlhf.config.training import TrainConfig
from rlhf.distributed.ranks import Ranks
from rlhf.distributed.sharding import ShardOptions, cut_by, unshard
from rlhf.errors import ConfigError
from rlhf.models.offload import is_offloaded
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import ReferenceModel
from rlhf.models.sharded_models import networks_of, shard_model
from rlhf.rewards.model_reward import ModelReward, model_rewards
from rlhf.rewards.types import TextCompletion
from rlhf.rollout.requests import rows_to_check
from rlhf.training.penalties import ElasticWeightConsolidation

PATH_CHARACTERS = 32
"""Of a prompt's text, which stand for a completion where the path of a reward model is chosen."""


def check_over_ranks(algorithm: Any, config: TrainConfig, ranks: Ranks) -> None:
    """Refuse what several ranks can't train yet, or one process.

    Raises:
        ConfigError: Naming each setting.
    """
    if ranks.size == 1:
        if (refused_alone := refused_in_one_process(config)) is not None:
            raise ConfigError(f"{algorithm.name}: {refused_alone}.")
        return
    refused = refused_settings(config)
    if any(not isinstance(penalty, ElasticWeightConsolidation) for penalty in algorithm.penalties):
        refused.append("penalties of one's own on the weights")
    if refused:
        raise ConfigError(
            f"{algorithm.name}: {ranks.size} ranks can't do this yet: {', '.join(refused)}. Train it in one process, or change "
            "that; docs/ranks.md lists what ranks can do."
        )


@contextmanager
def in_shards(models: Sequence[nn.Module], ranks: Ranks, config: TrainConfig, *, keep: bool = False) -> Iterator[None]:
    """Inside, each rank holds a part of the models' weights; whole ones again afterwards, unless an error ends the run.

    Small modules without layers stay whole on every rank.

    Args:
        models: What is cut.
        ranks: A process by itself keeps whole weights.
        config: How they are cut; DeepSpeed, where it is named, does so itself with what it trains, and the others stay whole.
        keep: Leave the weights in shards afterwards; the models must then be used on all ranks at once.
    """
    if ranks.size == 1 or config.deepspeed is not None:
        yield
        return
    networks = [network for model in models for network in networks_of(model)]
    fsdp = config.fsdp
    dtype = None if fsdp.param_dtype is None else getattr(torch, fsdp.param_dtype)
    options = ShardOptions(fsdp.replicate, fsdp.cpu_offload, dtype, fsdp.vocab_parallel)
    with cut_by(options):
        roots = [
            shard_model(network, options) for network in networks if isinstance(network, PreTrainedModel | PeftModel)
        ]
        yield
    for root in () if keep else roots:
        unshard(root)


def models_of_rollouts(trainer: Any) -> list[nn.Module]:
    """What lies in shards in a trainer that samples: what it trains, its reference where that has log-probabilities alone to give and
    stays as it is, and reward models that do not wait on the CPU."""
    models = [trained.module for trained in trainer.modules() if trained.name not in trainer.whole_on_ranks]
    copied = _copied_reference(trainer)
    if copied is not None and trainer.config.kl.estimator != "exact" and trainer.moving_reference is None:
        models.append(copied)
    return models + [reward.model for reward in _rewards(trainer) if not is_offloaded(reward.model)]


def choose_paths(trainer: Any) -> None:
    """Those of policy, critic, reference and reward models by the same rows on every rank; in a process by itself the first batch decides."""
    rows = rows_to_check(trainer.prompts)
    for model in (trainer.policy, trainer.inputs.value_model, _copied_reference(trainer)):
        if model is not None and model.choice is None and not getattr(model, "is_shared", False):
            model.choose_path(rows)
    asked = trainer.prompts[:3]
    said = [TextCompletion(prompt.text[:PATH_CHARACTERS], truncated=True) for prompt in asked]
    for reward in _rewards(trainer):
        if reward.model.choice is None:
            reward.model.choose_path(reward.groups(asked, said))


def _rewards(trainer: Any) -> list[ModelReward[Any]]:
    """Those with models, of the reward and of the held-out judge; each model once."""
    inputs = trainer.inputs
    return list(
        {id(one.model): one for scorer in (inputs.scorer, inputs.judge) for one in model_rewards(scorer)}.values()
    )


def _copied_reference(trainer: Any) -> PolicyModel | None:
    """The reference, where it is a model of its own."""
    reference = trainer.reference
    copied = reference.copy if isinstance(reference, ReferenceModel) else reference
    return copied if isinstance(copied, PolicyModel) and copied is not trainer.policy else None
