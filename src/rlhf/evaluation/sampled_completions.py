"""Completions of held-out prompts, in parts so that progress shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.rollout.engines import close_engine
from rlhf.rollout.types import Completion, RolloutEngine

PROMPTS_AT_ONCE = 64
"""Between two progress messages; a sample does not depend on the rest of its batch."""


def sample_completions(
    engine: RolloutEngine,
    prompts: Sequence[Prompt],
    *,
    num_samples: int,
    sampling: SamplingConfig,
    seed: int,
    name: str = "policy",
    progress: Callable[..., None] | None = None,
) -> list[list[Completion]]:
    """Ask an engine, and close it.

    Args:
        engine: Closed at the end, before another one needs its memory.
        prompts: [P].
        num_samples: Completions of each.
        sampling: How they are drawn.
        seed: A named seed.
        name: Given to ``progress``.
        progress: Called as ``progress(name, by=how_many)`` for completions that are done.

    Returns:
        [P] those of each prompt.
    """
    completions: list[list[Completion]] = []
    try:
        for start in range(0, len(prompts), PROMPTS_AT_ONCE):
            part = prompts[start : start + PROMPTS_AT_ONCE]
            completions += engine.generate(part, num_samples=num_samples, sampling=sampling, seed=seed, rollout_index=0)
            if progress is not None:
                progress(name, by=len(part) * num_samples)
    finally:
        close_engine(engine)
    return completions
