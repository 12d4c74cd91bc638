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

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

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
from rlhf.seeds import derive_seed
from rlhf.training.algorithm import Totals
from rlhf.training.experience import RolloutExperience
from rlhf.training.metrics import Metrics
from rlhf.training.rl_trainer import RLTrainer
from rlhf.training.rollouts import Gathered, Judged, Rollout


class GRPOTrainer(RLTrainer[GRPOConfig]):
    """GRPO (Shao et al. 2024, eq. 3 and 4, arXiv:2402.03300) and, by its settings, the family above.

    Called with the fields of ``RLInputs``; ``name`` says which of the family it is.
    """

    name = "grpo"
    config_class = GRPOConfig

    @override
    def prepare(self) -> None:
        """The cursor of dynamic sampling."""
        self.asked_again = 0
        """Prompts that dynamic sampling has asked beyond those planned, over the whole run: the cursor moves on by them."""

    @override
    def gather(self, rollout_index: int, metrics: Metrics) -> Gathered:
        """The next prompts; also groups that teach, and greedy completions, where the config asks for them."""
        config = self.config
        prompts = self.first_prompts(rollout_index)
        judged = self.first_round(rollout_index, metrics)
        if config.dynamic_sampling:
            return self._enough_informative(judged, rollout_index, metrics)
        if config.advantage == "greedy":
            return self._with_greedy_baseline(prompts, judged, rollout_index, metrics)
        return Gathered(judged.rollout, judged.scores, judged.scores)

    @override
    def places_of(self, rollout_index: int) -> tuple[int, int]:
        """Behind those that dynamic sampling has asked."""
        start, count = super().places_of(rollout_index)
        return start + self.asked_again, count

    @override
    def compared(self, gathered: Gathered) -> tuple[Tensor, str]:
        """Siblings, the whole rollout, or each completion and its prompt's greedy one."""
        config, scores = self.config, gathered.scores
        if config.advantage == "greedy":
            greedy = gathered.columns["greedy_scores"]
            pairs = torch.stack([self.shaped_scores(gathered.rollout, scores), greedy], dim=1)
            return pairs, "and those of the greedy completions"
        if config.advantage == "batch" and config.baseline == "none":
            return scores.view(1, -1), "of the rollout"
        return scores.view(-1, config.group_size), "in every group"

    @override
    def assign_credit(self, experience: RolloutExperience, metrics: Metrics) -> None:
        """How much better was each completion than what it is compared with?"""
        config = self.config
        scores = experience.columns["scores"]
        token_rewards = None
        if config.kl.where == "reward":
            penalty = self.kl_in_reward(experience, metrics)
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

    @override
    def loss(self, batch: PackedBatch, totals: Totals, metrics: Metrics) -> Tensor:
        """The policy's term is all there is."""
        batch = batch.to(self.policy.device)
        loss = self.policy_term(self.score(batch), batch, totals, metrics)
        metrics.total("loss/train", loss)
        return loss

    @override
    def deferred_state_dict(self) -> Callable[[], dict[str, Any]]:
        """Also how far dynamic sampling has moved the cursor."""
        others, asked_again = super().deferred_state_dict(), self.asked_again
        return lambda: {**others(), "asked_again": asked_again}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        super().load_state_dict(state)
        self.asked_again = state["asked_again"]

    def _sequence_advantages(self, scores: Tensor, experience: RolloutExperience) -> Tensor:
        """[S]."""
        match self.config.advantage:
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
        group = experience.group if self.config.baseline == "group" else None
        scores = experience.columns["scores"]
        return reinforce_plus_plus_advantages(token_rewards, scores, experience.score_seq, group=group)

    def _measure_rewards(self, scores: Tensor, metrics: Metrics) -> None:
        """Of the scores after shaping and penalty; within groups where there are any."""
        metrics.mean(f"{self.name}/reward_mean", scores)
        if self.config.group_size == 1:
            metrics.mean(f"{self.name}/reward_std", scores.std(correction=0))
            return
        by_group = scores.view(-1, self.config.group_size)
        metrics.mean(f"{self.name}/reward_std", by_group.std(dim=1))
        if not self.config.dynamic_sampling:  # which keeps none of them, and counts as it judges
            self._count_equal_groups(scores, metrics)

    def _count_equal_groups(self, scores: Tensor, metrics: Metrics) -> None:
        by_group = scores.view(-1, self.config.group_size)
        metrics.mean(f"{self.name}/equal_groups_frac", (by_group == by_group[:, :1]).all(dim=1))

    def _enough_informative(self, first: Judged, rollout_index: int, metrics: Metrics) -> Gathered:
        """Groups whose scores differ; prompts whose groups teach nothing are replaced by the next ones of the cycle.

        Where none teaches after all rounds, the first round's groups stay as they are: nothing is learned from them, and
        the alarm about equal rewards says so.
        """
        config = self.config
        planned = config.prompts_per_rollout
        rounds = [first]
        informative = [_informative_groups(first)]
        asked = planned
        begun = max(rollout_index + 1, min(rollout_index + config.max_staleness, config.rollouts))
        while (missing := planned - sum(len(part.rollout.experience.groups) for part in informative)) > 0:
            if len(rounds) > config.max_sampling_rounds:
                break
            prompts = self.next_prompts(begun * planned + self.asked_again, missing)
            self.asked_again += missing
            # a prompt that comes again in a later round must not get the same completions again
            seed = derive_seed(config.seed, "sampling round", asked)
            rollout = self.collector.sample(prompts, rollout_index, num_samples=config.group_size, seed=seed)
            rounds.append(self.judge(rollout, metrics, rollout_index))
            informative.append(_informative_groups(rounds[-1]))
            asked += missing
        kept = [part for part in informative if part.rollout.completions] or [first]
        rollout = Rollout.joined([part.rollout for part in kept])
        all_scores = torch.cat([part.scores for part in rounds])
        self._count_equal_groups(all_scores, metrics)
        metrics.mean("rollout/rounds", torch.tensor(float(len(rounds))))
        metrics.mean("rollout/prompts_asked", torch.tensor(float(asked)))
        metrics.mean("rollout/prompts_kept", torch.tensor(float(len(rollout.experience.groups))))
        return Gathered(rollout, torch.cat([part.scores for part in kept]), all_scores)

    def _with_greedy_baseline(
        self, prompts: Sequence[Prompt], judged: Judged, rollout_index: int, metrics: Metrics
    ) -> Gathered:
        """One greedy completion of each prompt, judged alike and never learned from: the baseline of its prompt.

        A prompt whose greedy completion has no score is left out, as one is with a sample that has none.
        """
        asked = [prompts[place] for place in judged.kept]
        sampling = self.config.sampling.updated(temperature=0.0)
        greedy = self.collector.sample(asked, rollout_index, num_samples=1, seed=self.config.seed, sampling=sampling)
        baseline = self.collector.judge(greedy, Metrics(), step=self.first_step_of(rollout_index))
        metrics.mean(f"{self.name}/greedy_score_mean", baseline.scores)
        rollout, scores = judged.rollout, judged.scores
        if len(baseline.kept) < len(asked):
            places = [p for p, group in enumerate(rollout.experience.group.tolist()) if group in set(baseline.kept)]
            rollout, scores = rollout.only(baseline.kept), scores[places]
        greedy_scores = self.shaped_scores(baseline.rollout, baseline.scores)
        return Gathered(rollout, scores, judged.scores, {"greedy_scores": greedy_scores[rollout.experience.group]})


class RLOOTrainer(GRPOTrainer):
    """REINFORCE leave-one-out (Ahmadian et al. 2024, arXiv:2402.14740): ``RLOOConfig`` has what differs from GRPO."""

    name = "rloo"


def _informative_groups(judged: Judged) -> Judged:
    """The groups whose completions do not all score alike."""
    experience = judged.rollout.experience
    if not experience.num_sequences:
        return judged
    teaches = teaching_groups(judged.scores, experience.group)
    groups = sorted(set(experience.group[teaches].tolist()))
    return Judged(judged.rollout.only(groups), judged.scores[teaches], [judged.kept[group] for group in groups], None)
