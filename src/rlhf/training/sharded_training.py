"""Training one model over several ranks: what can be trained so, and its weights in shards while it lasts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel

from rlhf.config.rank_limits import refused_settings
from rlhf.config.training import TrainConfig
from rlhf.distributed.ranks import Ranks, current_ranks
from rlhf.distributed.sharding import unshard, whole_weights
from rlhf.errors import ConfigError
from rlhf.models.scalar_model import ScalarModel
from rlhf.models.sharded_models import shard_model
from rlhf.training.optim import TrainedModule

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
    if algorithm.penalties:
        refused.append("penalties on the weights")
    if algorithm.may_restore:
        refused.append("detectors that restore")
    if any(trained.device.type != "cpu" for trained in algorithm.modules()):
        refused.append("a device other than the CPU")
    if refused:
        raise ConfigError(
            f"{algorithm.name}: {ranks.size} ranks can't do this yet: {', '.join(refused)}. Train it in one process, or change "
            "that; docs/ranks.md lists what ranks can do."
        )


@contextmanager
def in_shards(modules: Sequence[TrainedModule], ranks: Ranks) -> Iterator[None]:
    """Inside, each rank holds a part of the models' weights; whole ones again afterwards, unless an error ends the run.

    Small modules without layers stay whole on every rank.
    """
    if ranks.size == 1:
        yield
        return
    networks = [network for trained in modules for network in _networks(trained.module)]
    roots = [shard_model(network) for network in networks if isinstance(network, PreTrainedModel | PeftModel)]
    yield
    for root in roots:
        unshard(root)


def on_whole_weights(method: Callable[..., ResultT]) -> Callable[..., ResultT]:
    """A method of an algorithm during which every rank has the whole weights of its modules, to sample and to score as it likes."""

    @functools.wraps(method)
    def run(algorithm: Any, *args: Any) -> ResultT:
        if current_ranks().size == 1:
            return method(algorithm, *args)
        with whole_weights([trained.module for trained in algorithm.modules()]):
            return method(algorithm, *args)

    return run


def _networks(module: nn.Module) -> Sequence[nn.Module]:
    return module.networks if isinstance(module, ScalarModel) else [module]
