"""Training one model over several ranks: what can be trained so, and its weights in shards while it lasts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from peft import PeftModel
from transformers import PreTrainedModel

from rlhf.config.rank_limits import refused_settings
from rlhf.config.training import TrainConfig
from rlhf.distributed.ranks import Ranks
from rlhf.distributed.sharding import unshard
from rlhf.errors import ConfigError
from rlhf.models.sharded_models import shard_model
from rlhf.training.optim import TrainedModule


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
    models = [t.module for t in modules if isinstance(t.module, PreTrainedModel | PeftModel)]
    roots = [shard_model(model) for model in models]
    yield
    for root in roots:
        unshard(root)
