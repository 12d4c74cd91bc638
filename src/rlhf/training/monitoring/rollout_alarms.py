"""Rollouts from which nothing is learned, or something else than it seems: what an alarm says of them."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def all_weights_zero(weights: Tensor, *, name: str, level: str, low: float, high: float) -> dict[str, Any] | None:
    """Where the correction of the sampler has taken every token out: such a rollout teaches nothing.

    Args:
        weights: [M] importance weights.
        name: What messages call the run.
        level: What had a ratio: tokens or completions.
        low: Lowest ratio that counts.
        high: Highest ratio that counts.
    """
    if bool(weights.any()):
        return None
    text = (
        f"{name}: the ratio of trainer to sampler is outside {low:g} to {high:g} for all {len(weights)} tokens of "
        f"the rollout (importance, by {level}), so that no reward reaches the policy. Widen the bounds, take bound: "
        "truncate, or find out why the sampler is another model."
    )
    return {"text": text, "guard": "importance", "metric": "importance/out_of_bounds", "value": len(weights),
            "limit": None, "action": "warn"}  # fmt: skip


def all_scores_equal(
    scores: Tensor, where: str, *, name: str, reward: str, rollout_index: int, count: int
) -> dict[str, Any] | None:
    """Where scores that are compared with each other are all equal, the first time and then at doubling counts.

    Args:
        scores: [S] of the rollout.
        where: Those that are compared, in words.
        name: What messages call the run.
        reward: Who gave them.
        rollout_index: Which rollout it is.
        count: Rollouts like this so far, this one included.
    """
    if count.bit_count() != 1:
        return None
    text = (
        f"{name}: all rewards {where} are equal in rollout {rollout_index + 1} (the first is {float(scores[0]):g}): nothing can "
        f"be learned from them. Rollouts like this so far: {count}. Is the task too hard or too easy, or is the "
        f"reward {reward} constant?"
    )
    return {"text": text, "guard": "equal_rewards", "metric": f"{name}/score_mean", "value": float(scores.mean()),
            "limit": None, "action": "warn"}  # fmt: skip


def steps_without_ratio(*, name: str, policy_loss: str, has_ratio: bool, steps: int) -> dict[str, Any] | None:
    """Where a loss without a ratio is to take several steps on one rollout."""
    if has_ratio or steps == 1:
        return None
    text = (
        f"{name}: policy_loss `{policy_loss}` has no ratio, and a rollout is {steps} steps: all but the first learn from completions of "
        "an older policy as if they were its own. Use `clip`, or one step to a rollout."
    )
    return {"text": text, "guard": "off_policy", "metric": "steps of a rollout", "value": steps, "limit": 1,
            "action": "warn"}  # fmt: skip
