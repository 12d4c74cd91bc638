"""What must hold at the first step of a run that learns from its own completions, before anything was learned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rlhf.training.algorithm import SelfCheck

MAX_ENGINE_GAP = 1e-3
"""Nats between two computations of one log-probability above which the run says so (float32 agrees to 1e-4)."""
MAX_HALF_GAP = 0.5
"""The same for half precision, where the worst of some thousand tokens differs by some hundredths."""
CHECKED_EVERY = 50
"""Rollouts from one comparison of the sampler's log-probabilities with the trainer's to the next, where nothing else asks for them: a
fault of the sampler may want longer prompts, or other weights, than those of the first rollout."""
STALE = (
    "stale weights, an adapter that never reached the sampler, or a sampler that does not run the same model. Look at the "
    "engine's load_weights."
)
OTHER_POLICY = "the policy that learns is not the one that sampled. Is dropout on, or another type in use?"
OTHER_REFERENCE = (
    "the reference is not the policy that this run starts from. Was it loaded in another type, or changed?"
)


def checks_at_start(gaps: Mapping[str, float], ratios: Sequence[float], *, limit: float) -> list[SelfCheck]:
    """Sampler, trainer and reference are one model.

    Args:
        found: What the first rollout found, in nats per token: ``gap`` between sampler and trainer, ``kl`` to a reference
            that claims to be the policy; absent where they were not measured.
        ratios: The extreme ratios of the first step's tokens; empty where none were measured.
        limit: Nats by which two computations of one log-probability may differ.
    """
    checks = []
    if "gap" in gaps:
        checks.append(SelfCheck("the gap between sampler and trainer (nats)", gaps["gap"], limit, STALE))
    if ratios:
        distance = max(abs(math.log(ratio)) for ratio in ratios)
        checks.append(SelfCheck("the first ratio's distance from 1 (nats)", distance, limit, OTHER_POLICY))
    if "kl" in gaps:
        checks.append(
            SelfCheck("the KL to the reference (largest, nats per token)", gaps["kl"], limit, OTHER_REFERENCE)
        )
    return checks
