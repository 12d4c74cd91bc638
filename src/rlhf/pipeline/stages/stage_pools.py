"""Pools of actors that work for one stage, where the recipe's ``launch`` has them: rewards, the reference, environments.

Their modules are loaded by text: who computes is in no stage's key.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from rlhf.config.base import Names, named_things
from rlhf.config.environments import EnvironmentBase
from rlhf.config.launch import RewardPoolConfig
from rlhf.config.stage_inputs import PolicyStage
from rlhf.distributed.current_cluster import pool_of
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import Reference
from rlhf.pipeline.stages.context import StageContext, seed_of
from rlhf.rewards.factory import BuildsElsewhere
from rlhf.rewards.in_memory import is_in_memory
from rlhf.rollout.environments import EnvironmentContext

if TYPE_CHECKING:
    from rlhf.rollout.environment_pool import PooledEnvironments


def pool_of_rewards() -> BuildsElsewhere | None:
    """What builds rewards in actors; None where this process computes them."""
    if (pool := pool_of("reward")) is None:
        return None
    cluster, settings = pool
    assert isinstance(settings, RewardPoolConfig)
    return partial(import_module("rlhf.rewards.reward_pool").pooled_rewards, cluster, settings)


def pooled_reference(stage: PolicyStage, policy: PolicyModel, at: StageContext) -> Reference | None:
    """The reference in actors; None where this process holds it.

    It does where the reference moves, is the policy with its adapter off, or is asked for whole distributions (``kl.estimator: exact``).
    """
    if (pool := pool_of("reference")) is None:
        return None
    why = None
    if stage.moving_reference is not None:
        why = "moving_reference changes it"
    elif stage.kl.estimator == "exact" and stage.kl.where != "none":
        why = "kl.estimator exact asks for whole distributions"
    elif stage.reference is None and stage.model.lora is not None:
        why = "it is the policy with its adapter off"
    if why is not None:
        at.log.write(
            "note", message=f"The reference stays in this process, and the pool `reference` does nothing: {why}."
        )
        return None
    cluster, settings = pool
    named = stage.reference if stage.reference is not None else stage.model
    pooled: Reference = import_module("rlhf.training.reference_pool").PooledReference(
        cluster, settings, at.model(named), seed=seed_of(stage.seed),
        same_as=policy if stage.reference is None else None, autocast=stage.autocast, notify=at.log.alarm,
    )  # fmt: skip
    return pooled


def pooled_environments(
    settings: EnvironmentBase, context: EnvironmentContext, at: StageContext
) -> PooledEnvironments | None:
    """Environments in actors; None where they are in this process.

    They are where something else plays the episodes (a server, verifiers), and where only this process has the class.

    Raises:
        ConfigError: An actor has less time than an environment, or can't use it.
    """
    if (pool := pool_of("environments")) is None:
        return None
    why = None if settings.played_by is None else f"{settings.played_by} plays the episodes"
    if any(names is Names.FUNCTION and is_in_memory(text) for _, text, names in named_things(settings)):
        why = "its class exists in this process only"
    if why is not None:
        at.log.write(
            "note", message=f"The environment stays in this process, and the pool `environments` does nothing: {why}."
        )
        return None
    pooled: PooledEnvironments = import_module("rlhf.rollout.environment_pool").PooledEnvironments(
        *pool, settings, context, notify=at.log.alarm
    )
    return pooled


@contextmanager
def ended_afterwards(*parts: object) -> Iterator[None]:
    """Actors and processes of these end with the block."""
    try:
        yield
    finally:
        for part in parts:
            close = getattr(part, "close", None)
            if close is not None:
                close()
