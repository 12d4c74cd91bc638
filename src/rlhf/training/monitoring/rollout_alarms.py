"""Alarms for rollouts from which nothing is learned, or something else than it seems."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from rlhf.training.log import TrainingLogger


class RolloutAlarms:
    """Tells the log when a rollout teaches nothing.

    Args:
        log: Gets the alarms.
        name: What messages call the run.
        steps_per_rollout: Optimizer steps from one rollout to the next.
    """

    def __init__(self, log: TrainingLogger, *, name: str, steps_per_rollout: int) -> None:
        self.log = log
        self.name = name
        self.steps_per_rollout = steps_per_rollout
        self.equal_rollouts = 0
        """Rollouts whose scores taught nothing, because those that are compared were all the same."""

    def all_weights_zero(self, rollout_index: int, weights: Tensor, *, level: str, low: float, high: float) -> None:
        """Where the correction of the sampler has taken every token out.

        Args:
            rollout_index: Which rollout it is.
            weights: [M] importance weights.
            level: What had a ratio: tokens or completions.
            low: Lowest ratio that counts.
            high: Highest ratio that counts.
        """
        if bool(weights.any()):
            return
        text = (
            f"{self.name}: the ratio of trainer to sampler is outside {low:g} to {high:g} for all {len(weights)} tokens of "
            f"the rollout (importance, by {level}), so that no reward reaches the policy. Widen the bounds, take bound: "
            "truncate, or find out why the sampler is another model."
        )
        self._tell(rollout_index, text, guard="importance", metric="importance/out_of_bounds", value=len(weights))

    def all_scores_equal(
        self, rollout_index: int, compared: Tensor, where: str, *, scores: Tensor, reward: str
    ) -> None:
        """Where scores that are compared with each other are all equal, the first time and then at doubling counts.

        Args:
            rollout_index: Which rollout it is.
            compared: [K, C] scores in rows of those that are compared with each other.
            where: These rows, in words.
            scores: [S] of the rollout.
            reward: Who gave them.
        """
        if compared.shape[1] == 1 or not bool((compared == compared[:, :1]).all()):
            return
        self.equal_rollouts += 1
        if self.equal_rollouts.bit_count() != 1:
            return
        text = (
            f"{self.name}: all rewards {where} are equal in rollout {rollout_index + 1} (the first is {float(scores[0]):g}): nothing "
            f"can be learned from them. Rollouts like this so far: {self.equal_rollouts}. Is the task too hard or too easy, or is the "
            f"reward {reward} constant?"
        )
        value, metric = float(scores.mean()), f"{self.name}/score_mean"
        self._tell(rollout_index, text, guard="equal_rewards", metric=metric, value=value)

    def steps_without_ratio(self, rollout_index: int, policy_loss: str, *, has_ratio: bool) -> None:
        """Where a loss without a ratio is to take several steps on one rollout."""
        steps = self.steps_per_rollout
        if has_ratio or steps == 1:
            return
        text = (
            f"{self.name}: policy_loss `{policy_loss}` has no ratio, and a rollout is {steps} steps: all but the first learn from "
            "completions of an older policy as if they were its own. Use `clip`, or one step to a rollout."
        )
        self._tell(rollout_index, text, guard="off_policy", metric="steps of a rollout", value=steps, limit=1)

    def _tell(self, rollout_index: int, text: str, *, limit: float | None = None, **what: Any) -> None:
        step = rollout_index * self.steps_per_rollout + 1
        self.log.alarm(text, step=step, limit=limit, action="warn", **what)
