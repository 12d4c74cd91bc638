"""Pools of actors that work for one stage, where the recipe's ``launch`` has them: rewards and the reference.

Their modules are loaded by text: who computes is in no stage's key.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module

from rlhf.config.launch import RewardPoolConfig
from rlhf.config.stage_inputs import PolicyStage
from rlhf.distributed.current_cluster import pool_of
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import Reference
from rlhf.pipeline.stages.context import StageContext, seed_of
from rlhf.rewards.factory import BuildsElsewhere


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
