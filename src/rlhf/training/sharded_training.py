"""Training one model over several ranks: what can be trained so, and its weights in shards while it lasts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel

from rlhf.config.rank_limits import refused_settings
from rlhf.config.training import TrainConfig
from rlhf.distributed.ranks import Ranks, current_ranks
from rlhf.distributed.sharding import ShardOptions, cut_by, unshard, whole_weights
from rlhf.errors import ConfigError
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import ReferenceModel
from rlhf.models.sharded_models import networks_of, shard_model
from rlhf.rollout.requests import rows_to_check
from rlhf.training.penalties import ElasticWeightConsolidation

ResultT = TypeVar("ResultT")


def check_over_ranks(algorithm: Any, config: TrainConfig, ranks: Ranks) -> None:
    """Refuse what several ranks can't train yet.

    Raises:
        ConfigError: Naming each setting.
    """
    if ranks.size == 1:
        return
    refused = refused_settings(config)
    if not algorithm.trains_over_ranks:
        refused.append("this kind of training")
    if any(not isinstance(penalty, ElasticWeightConsolidation) for penalty in algorithm.penalties):
        refused.append("penalties of one's own on the weights")
    if any(trained.device.type != "cpu" for trained in algorithm.modules()):
        refused.append("a device other than the CPU")
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
        keep: Leave the weights in shards afterwards: whoever uses the models then does so on all ranks at once.
    """
    if ranks.size == 1 or config.deepspeed is not None:
        yield
        return
    networks = [network for model in models for network in networks_of(model)]
    fsdp = config.fsdp
    dtype = None if fsdp.param_dtype is None else getattr(torch, fsdp.param_dtype)
    options = ShardOptions(fsdp.replicate, fsdp.cpu_offload, dtype)
    with cut_by(options):
        roots = [
            shard_model(network, options) for network in networks if isinstance(network, PreTrainedModel | PeftModel)
        ]
        yield
    for root in () if keep else roots:
        unshard(root)


def on_whole_weights(method: Callable[..., ResultT]) -> Callable[..., ResultT]:
    """A method of a trainer that samples, during which every rank has the whole weights, to sample and to score as it likes."""

    @functools.wraps(method)
    def run(trainer: Any, *args: Any) -> ResultT:
        if current_ranks().size == 1:
            return method(trainer, *args)
        with whole_weights(models_of_rollouts(trainer)):
            return method(trainer, *args)

    return run


def models_of_rollouts(trainer: Any) -> list[nn.Module]:
    """What a trainer that samples trains, and its reference where no step asks that."""
    models = [trained.module for trained in trainer.modules()]
    kl, reference = trainer.config.kl, trainer.reference
    copied = reference.copy if isinstance(reference, ReferenceModel) else reference
    asked_in_steps = kl.where == "loss" and kl.estimator == "exact"
    if isinstance(copied, PolicyModel) and copied is not trainer.policy and not asked_in_steps:
        models.append(copied)
    return models


def choose_paths(trainer: Any) -> None:
    """Those of policy and critic by the same rows on every rank; in a process by itself the first batch decides."""
    rows = rows_to_check(trainer.prompts)
    for model in (trainer.policy, trainer.inputs.value_model):
        if model is not None and model.choice is None and not getattr(model, "is_shared", False):
            model.choose_path(rows)
