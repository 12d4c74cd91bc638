"""The engine that a config asks for, and its end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any, Literal

from rlhf.config.engines import EngineConfig
from rlhf.distributed.current_cluster import pool_of
from rlhf.rollout.types import RolloutEngine, SamplablePolicy


def build_engine(
    policy: SamplablePolicy, config: EngineConfig, *, autocast: Literal["none", "bfloat16", "float16"] = "none"
) -> Any:
    """A sampler of this policy; it starts with the first request. A pool of them, where the recipe's `launch` has one.

    Args:
        policy: Who is sampled.
        config: By which engine; its module is imported here.
        autocast: The type that the trainer multiplies matrices in.

    Returns:
        A ``RolloutEngine``, with whatever more its kind has.
    """
    if (pool := pool_of("engines")) is not None:
        # By text: no result depends on it, so it is in no stage's key.
        return import_module("rlhf.rollout.engine_pool").build_pooled(*pool, policy, config, autocast=autocast)
    module, _, function = config.builds.partition(":")
    return getattr(import_module(module), function)(policy, config, autocast=autocast)


def innermost(engine: RolloutEngine) -> RolloutEngine:
    """Who samples, behind whatever is wrapped around."""
    while (inner := getattr(engine, "engine", None)) is not None:
        engine = inner
    return engine


def samples_elsewhere(engine: RolloutEngine) -> bool:
    """Whether an engine samples in other processes, with copies of the weights that it is sent."""
    return bool(getattr(innermost(engine), "reopens", False))


def is_exact(engine: RolloutEngine) -> bool:
    """Whether log-probabilities can be expected to be the trainer's up to the order of additions: unless the engine says otherwise."""
    return bool(getattr(innermost(engine), "exact", True))


def exactly(engine: RolloutEngine) -> AbstractContextManager[None]:
    """While this lasts, an engine in this process samples with the policy's own weights, also where it has a copy of lower precision."""
    exactly = getattr(innermost(engine), "exactly", None)
    return nullcontext() if exactly is None else exactly()


def engine_figures(engine: RolloutEngine) -> dict[str, float]:
    """What an engine reports about the newest rollout in addition to its completions, as metrics."""
    return dict(getattr(innermost(engine), "figures", {}))


def listen_to(engine: RolloutEngine, notify: Callable[[str], None]) -> None:
    """Send the messages of an engine in another process to ``notify``."""
    inner = innermost(engine)
    if hasattr(inner, "notify"):
        inner.notify = notify


def close_engine(engine: RolloutEngine) -> None:
    """Stop what an engine has started outside this process; another request would restart it."""
    if samples_elsewhere(engine):
        inner: Any = innermost(engine)
        inner.close()
