"""Asking an engine, and checking that it samples with the weights that it was given."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rlhf.activity import count_tokens, doing
from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import TrainingError
from rlhf.models.policy import PolicyModel
from rlhf.rollout.engines import samples_elsewhere
from rlhf.rollout.types import RolloutEngine
from rlhf.training.rollouts import Rollout
from rlhf.training.rollouts_over_ranks import ask_over_ranks
from rlhf.training.start_checks import STALE

CHECKED_VERSIONS = 2
"""Versions of the weights whose fingerprint an engine outside must show: the first ones, and the first ones that were trained."""


def ask_engine(
    engine: RolloutEngine,
    prompts: Sequence[Prompt],
    *,
    num_samples: int,
    sampling: SamplingConfig,
    seed: int,
    rollout_index: int,
    version: int,
    name: str,
    same_as: PolicyModel | None,
) -> Rollout:
    """Completions sampled with the newest weights; ranks share the prompts where each samples by itself.

    Args:
        engine: Who is asked.
        prompts: At least one.
        num_samples: Completions of each.
        sampling: How they are drawn.
        seed: The run's, or one made from it.
        rollout_index: Which rollout of the run this is.
        version: Of the weights, as given to the engine.
        name: What messages call the run.
        same_as: Whose weights an engine outside must show; None for an engine that samples from them by itself.

    Raises:
        TrainingError: The engine sampled with other weights.
    """
    engine.load_weights(version)
    with doing("rollout decode"):
        sample = partial(
            engine.generate, num_samples=num_samples, sampling=sampling, seed=seed, rollout_index=rollout_index
        )
        if samples_elsewhere(engine):
            groups = sample(prompts)
        else:
            ids = [prompt.id for prompt in prompts]
            groups = ask_over_ranks(ids, lambda places: sample([prompts[place] for place in places]))
    completions = [completion for group in groups for completion in group]
    count_tokens("rollout decode", sum(len(completion.tokens) for completion in completions))
    if same_as is not None and version < CHECKED_VERSIONS and engine.fingerprint() != same_as.fingerprint():
        raise TrainingError(
            f"{name}: the engine's weights are not the trainer's at version {version}, though it says that it loaded them: {STALE}"
        )
    stale = {completion.weight_version for completion in completions} - {version}
    if stale:
        raise TrainingError(
            f"{name}: the engine sampled with the weights of version {min(stale)}, and the trainer is at "
            f"{version}; an engine must sample with the version that load_weights named last."
        )
    return Rollout.of(prompts, groups)
