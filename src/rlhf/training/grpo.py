"""Learning from rewards without a critic: a completion is judged against its siblings, its rollout, or a greedy one.

GRPO is the first of a family; its members differ in where credit comes from (``advantage``), in what it does to a token
(``policy_loss``), and in how tokens are weighed (``aggregation``). One trainer is all of them:

    grpo          group            clip        sequence    dr_grpo   group_mean       clip        constant
    dapo          group            clip        token       rloo      leave_one_out    reinforce   constant
    gspo          group            sequence    sequence    remax     greedy           reinforce   constant
    cispo         group            cispo       token       reinforce_pp   batch       clip        token
    sapo          group            sapo        sequence
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlhf.config.grpo_settings import GRPOConfig
from rlhf.data.contracts import Prompt
from rlhf.data.pack import PackedBatch
from rlhf.losses import (
    batch_std_advantages,
    greedy_baseline_advantages,
    group_advantages,
    leave_one_out_advantages,
    reinforce_plus_plus_advantages,
    segment_sum,
    teaching_groups,
)
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import Reference
from rlhf.rewards.types import Scorer
from rlhf.rollout.types import RolloutEngine
from rlhf.training.algorithm import Totals
from rlhf.training.experience import RolloutExperience
from rlhf.training.log import TrainingLogger
from rlhf.training.metrics import Metrics
from rlhf.training.online import OnlineTrainer
from rlhf.training.optim import TrainedModule
from rlhf.training.policy_objective import kl_in_reward
from rlhf.training.rollouts import Gathered, Judged, Rollout, shaped_scores


class GRPOTrainer(OnlineTrainer):
    """GRPO (Shao et al. 2024, eq. 3 and 4, arXiv:2402.03300) and, by its settings, the family above.

    Args:
        name: What metrics and seeds are called: the kind of stage.

    The other arguments are ``OnlineTrainer``'s.
    """

    name = "grpo"

    def __init__(
        self,
        policy: PolicyModel,
        config: GRPOConfig,
        prompts: Sequence[Prompt],
        scorer: Scorer,
        *,
        reference: Reference,
        eval_prompts: Sequence[Prompt] = (),
        engine: RolloutEngine | None = None,
        log: TrainingLogger | None = None,
        checkpoint_dir: Path | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            policy,
            config,
            prompts,
            scorer,
            reference=reference,
            eval_prompts=eval_prompts,
            engine=engine,
            log=log,
            checkpoint_dir=checkpoint_dir,
        )
        self.name = name or self.name
        self.settings = config
        self.asked_again = 0
        """Prompts that dynamic sampling has asked beyond those planned, over the whole run: the cursor moves on by them."""

    def modules(self) -> Sequence[TrainedModule]:
        """The policy."""
        return [TrainedModule("policy", self.policy.model, self.config.learning_rate)]

    def gather(self, phase: int, metrics: Metrics) -> Gathered:
        """See ``OnlineTrainer``; with groups that teach and greedy completions, where the settings ask for them."""
        config = self.settings
        prompts = self.first_prompts(phase)
        found = self.ask_and_judge(prompts, phase, metrics)
        if config.dynamic_sampling:
            return self._enough_that_teach(found, phase, metrics)
        if config.advantage == "greedy":
            return self._beside_greedy(prompts, found, phase, metrics)
        return Gathered(found.rollout, found.scores, found.scores)

    def first_prompts(self, phase: int) -> list[Prompt]:
        """See ``OnlineTrainer``; behind those that dynamic sampling has asked."""
        count = self.config.prompts_per_rollout
        return self.next_prompts(phase * count + self.asked_again, count)

    def compared(self, gathered: Gathered) -> tuple[Tensor, str]:
        """See ``OnlineTrainer``: siblings, the whole rollout, or each completion and its prompt's greedy one."""
        config, scores = self.settings, gathered.scores
        if config.advantage == "greedy":
            greedy = gathered.columns["greedy_scores"]
            pairs = torch.stack([shaped_scores(config, gathered.rollout, scores), greedy], dim=1)
            return pairs, "and those of the greedy completions"
        if config.advantage == "batch" and config.baseline == "none":
            return scores.view(1, -1), "of the rollout"
        return scores.view(-1, config.group_size), "in every group"

    def assign_credit(self, experience: RolloutExperience, metrics: Metrics) -> None:
        """How much better was each completion than what it is compared with?"""
        config = self.settings
        scores = experience.columns["scores"]
        token_rewards = None
        if config.kl.where == "reward":
            penalty = kl_in_reward(config, experience, metrics, policy=self.policy, reference=self.reference)
            token_rewards = -self.controller.coef * penalty
            scores = scores - self.controller.coef * segment_sum(
                penalty, experience.score_seq, experience.num_sequences
            )
        self._measure_rewards(scores, metrics)
        if config.advantage == "batch":
            advantages = token_advantages = self._batch_advantages(experience, token_rewards)
        else:
            advantages = self._sequence_advantages(scores, experience)
            token_advantages = advantages[experience.score_seq]
        metrics.mean(f"{self.name}/advantage_mean", advantages)
        experience.token_columns["advantages"] = token_advantages

    def loss(self, batch: PackedBatch, totals: Totals, metrics: Metrics) -> Tensor:
        """The policy's term is all there is."""
        batch = batch.to(self.policy.device)
        loss = self.policy_term(self.score(batch), batch, totals, metrics)
        metrics.total("loss/train", loss)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """See ``OnlineTrainer``, and how far dynamic sampling has moved the cursor."""
        return {**super().state_dict(), "asked_again": self.asked_again}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        super().load_state_dict(state)
        self.asked_again = state["asked_again"]

    def _sequence_advantages(self, scores: Tensor, experience: RolloutExperience) -> Tensor:
        """[S]."""
        match self.settings.advantage:
            case "group_mean":
                return group_advantages(scores, experience.group, divide_by_std=False)
            case "leave_one_out":
                return leave_one_out_advantages(scores, experience.group)
            case "batch_std":
                return batch_std_advantages(scores, experience.group)
            case "greedy":
                each = torch.arange(len(scores))
                return greedy_baseline_advantages(scores, experience.columns["greedy_scores"], each)
        return group_advantages(scores, experience.group)

    def _batch_advantages(self, experience: RolloutExperience, token_rewards: Tensor | None) -> Tensor:
        """[M] whitened over the rollout: all of it is here, however it will be cut into steps and micro-batches."""
        if token_rewards is None:
            token_rewards = torch.zeros(len(experience.score_seq))
        group = experience.group if self.settings.baseline == "group" else None
        scores = experience.columns["scores"]
        return reinforce_plus_plus_advantages(token_rewards, scores, experience.score_seq, group=group)

    def _measure_rewards(self, scores: Tensor, metrics: Metrics) -> None:
        """Of the scores after shaping and penalty; within groups where there are any."""
        metrics.mean(f"{self.name}/reward_mean", scores)
        if self.settings.group_size == 1:
            metrics.mean(f"{self.name}/reward_std", scores.std(correction=0))
            return
        by_group = scores.view(-1, self.settings.group_size)
        metrics.mean(f"{self.name}/reward_std", by_group.std(dim=1))
        if not self.settings.dynamic_sampling:  # which keeps none of them, and counts as it judges
            self._count_equal_groups(scores, metrics)

    def _count_equal_groups(self, scores: Tensor, metrics: Metrics) -> None:
        by_group = scores.view(-1, self.settings.group_size)
        metrics.mean(f"{self.name}/equal_groups_frac", (by_group == by_group[:, :1]).all(dim=1))

    def _enough_that_teach(self, first: Judged, phase: int, metrics: Metrics) -> Gathered:
        """Groups whose scores differ; prompts whose groups teach nothing are replaced by the next ones of the cycle.

        Where none teaches after all rounds, the first round's groups stand as they are: nothing is learned from them, and
        the alarm about equal rewards says so.
        """
        config = self.settings
        planned = config.prompts_per_rollout
        found = [first]
        taught = [_that_teach(first)]
        asked = planned
        while (missing := planned - sum(len(part.rollout.experience.groups) for part in taught)) > 0:
            if len(found) > config.max_sampling_rounds:
                break
            prompts = self.next_prompts((phase + 1) * planned + self.asked_again, missing)
            self.asked_again += missing
            found.append(self.ask_and_judge(prompts, phase, metrics, asked_before=asked))
            taught.append(_that_teach(found[-1]))
            asked += missing
        kept = [part for part in taught if part.rollout.completions] or [first]
        rollout = Rollout.joined([part.rollout for part in kept])
        judged = torch.cat([part.scores for part in found])
        self._count_equal_groups(judged, metrics)
        metrics.mean("rollout/rounds", torch.tensor(float(len(found))))
        metrics.mean("rollout/prompts_asked", torch.tensor(float(asked)))
        metrics.mean("rollout/prompts_kept", torch.tensor(float(len(rollout.experience.groups))))
        return Gathered(rollout, torch.cat([part.scores for part in kept]), judged)

    def _beside_greedy(self, prompts: Sequence[Prompt], found: Judged, phase: int, metrics: Metrics) -> Gathered:
        """One greedy completion of each prompt, judged alike and never learned from: the baseline of its prompt.

        A prompt whose greedy completion has no score is left out, as one is with a sample that has none.
        """
        asked = [prompts[place] for place in found.kept]
        greedy_sampling = self.config.sampling.updated(temperature=0.0)
        greedy = self._ask(asked, num_samples=1, seed=self.config.seed, step=phase, sampling=greedy_sampling)
        baseline = self._judged(greedy, Metrics(), step=phase * self.steps_per_phase + 1)
        metrics.mean(f"{self.name}/greedy_score_mean", baseline.scores)
        rollout, scores = found.rollout, found.scores
        if len(baseline.kept) < len(asked):
            places = [p for p, group in enumerate(rollout.experience.group.tolist()) if group in set(baseline.kept)]
            rollout, scores = rollout.only(baseline.kept), scores[places]
        greedy_scores = shaped_scores(self.config, baseline.rollout, baseline.scores)
        return Gathered(rollout, scores, found.scores, {"greedy_scores": greedy_scores[rollout.experience.group]})


class RLOOTrainer(GRPOTrainer):
    """REINFORCE leave-one-out (Ahmadian et al. 2024, arXiv:2402.14740): ``RLOOConfig`` has what differs from GRPO."""

    name = "rloo"


def _that_teach(judged: Judged) -> Judged:
    """The groups whose completions do not all score alike."""
    experience = judged.rollout.experience
    if not experience.num_sequences:
        return judged
    teaches = teaching_groups(judged.scores, experience.group)
    groups = sorted(set(experience.group[teaches].tolist()))
    return Judged(judged.rollout.only(groups), judged.scores[teaches], [judged.kept[group] for group in groups], None)
