"""The engine that a config asks for, and its end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

from rlhf.config.engines import LocalEngineConfig, VLLMEngineConfig
from rlhf.rollout.local import LocalEngine, SamplablePolicy
from rlhf.rollout.types import RolloutEngine
from rlhf.rollout.vllm import VLLMEngine


def build_engine(
    policy: SamplablePolicy,
    config: LocalEngineConfig | VLLMEngineConfig,
    *,
    autocast: Literal["none", "bfloat16", "float16"] = "none",
) -> LocalEngine | VLLMEngine:
    """A sampler of this policy; it starts with the first request.

    Args:
        policy: Who is sampled.
        config: By which engine.
        autocast: The type that the trainer multiplies matrices in.
    """
    if isinstance(config, VLLMEngineConfig):
        return VLLMEngine(policy, config, autocast=autocast)
    return LocalEngine(
        policy,
        autocast=autocast,
        weights=config.weights,
        speculate=config.speculate,
        compiled=config.compiled,
    )


def innermost(engine: RolloutEngine) -> RolloutEngine:
    """Who samples, behind whatever is wrapped around."""
    while (inner := getattr(engine, "engine", None)) is not None:
        engine = inner
    return engine


def is_exact(engine: RolloutEngine) -> bool:
    """Whether log-probabilities can be expected to be the trainer's up to the order of additions: unless the engine says otherwise."""
    return bool(getattr(innermost(engine), "exact", True))


def exactly(engine: RolloutEngine) -> AbstractContextManager[None]:
    """While this lasts, an engine in this process samples with the policy's own weights, also where it has a copy of lower precision."""
    inner = innermost(engine)
    return inner.exactly() if isinstance(inner, LocalEngine) else nullcontext()


def engine_figures(engine: RolloutEngine) -> dict[str, float]:
    """What an engine reports about the newest rollout in addition to its completions, as metrics."""
    inner = innermost(engine)
    return inner.figures if isinstance(inner, LocalEngine) else {}


def listen_to(engine: RolloutEngine, notify: Callable[[str], None]) -> None:
    """Send the messages of an engine in another process to ``notify``."""
    inner = innermost(engine)
    if isinstance(inner, VLLMEngine):
        inner.notify = notify


def close_engine(engine: RolloutEngine) -> None:
    """Stop what an engine has started outside this process; another request would restart it."""
    inner = innermost(engine)
    if isinstance(inner, VLLMEngine):
        inner.close()
