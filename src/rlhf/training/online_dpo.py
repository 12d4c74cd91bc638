"""Online DPO: pairs from the policy's own completions, with a reward instead of people."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from rlhf.config.formulas import argument_values
from rlhf.config.on_policy import OnlineDPOConfig
from rlhf.data.pack import Group, PackedBatch
from rlhf.losses import implicit_rewards, segment_sum, split_pairs
from rlhf.losses.formula import load_formula
from rlhf.training.algorithm import Totals
from rlhf.training.experience import RolloutExperience
from rlhf.training.metrics import Metrics, share_above
from rlhf.training.rl_trainer import RLTrainer


class OnlineDPOTrainer(RLTrainer[OnlineDPOConfig]):
    """DPO on pairs that the policy made a moment ago (Guo et al. 2024, arXiv:2402.04792).

    Of each prompt's completions the best and the worst are the pair. Prompts whose completions score alike are left out; where
    that leaves nothing, the rollout is kept, with a loss of 0.

    Called with the fields of ``RLInputs``.
    """

    name = "online_dpo"
    config_class = OnlineDPOConfig

    @override
    def collect(self, rollout_index: int, metrics: Metrics) -> RolloutExperience:
        """One rollout, of which pairs are left."""
        return best_and_worst(super().collect(rollout_index, metrics))

    @override
    def assign_credit(self, experience: RolloutExperience, metrics: Metrics) -> None:
        """How far apart a prompt's best and worst completion are."""
        by_group = experience.columns["scores"].view(-1, self.config.group_size)
        gap = by_group.amax(dim=1) - by_group.amin(dim=1)
        metrics.mean(f"{self.name}/score_gap", gap)
        metrics.mean(f"{self.name}/equal_groups_frac", gap == 0)

    @override
    def loss(self, batch: PackedBatch, totals: Totals, metrics: Metrics) -> Tensor:
        """Mean over pairs of the chosen form."""
        config = self.config
        batch = batch.to(self.policy.device)
        scores = self.score(batch)
        self.measure_ratios(scores.logprobs, batch, metrics)
        logprobs, ref = (
            segment_sum(values, batch.score_seq, batch.num_sequences)
            for values in (scores.logprobs, batch.token_columns["ref_logprobs"].to(scores.logprobs.dtype))
        )
        formula = config.pair_formula
        arguments = {"beta": config.beta, **argument_values(config, formula.arguments)}
        losses = load_formula(formula.function)(*split_pairs(logprobs), *split_pairs(ref), **arguments)
        teaches, _ = split_pairs(batch.columns["teaches"])
        chosen, rejected = split_pairs(implicit_rewards(logprobs.detach(), ref, beta=config.beta))
        metrics.mean(f"{self.name}/reward_margin", chosen - rejected, teaches)
        metrics.mean(f"{self.name}/accuracy", share_above(chosen, rejected), teaches)
        loss = (losses * teaches).sum() / totals.num_groups
        metrics.total("loss/train", loss)
        return loss


def best_and_worst(experience: RolloutExperience) -> RolloutExperience:
    """Each group's best completion and its worst, in this order; of equal ones the first is the best and the last the worst.

    Groups of equal scores are left out, unless all are. The column ``teaches`` [S] is 1 for the others.
    """
    scores, first = experience.columns["scores"], 0
    groups: list[Group] = []
    places: list[int] = []
    teaches: list[bool] = []
    for group in experience.groups:
        own = scores[first : first + len(group.branches)].tolist()
        best = max(range(len(own)), key=lambda place: (own[place], -place))
        worst = min(range(len(own)), key=lambda place: (own[place], -place))
        groups.append(Group(group.prefix, [group.branches[best], group.branches[worst]], group.columns))
        places += [first + best, first + worst]
        teaches.append(own[best] > own[worst])
        first += len(own)
    kept = [number for number, useful in enumerate(teaches) if useful] or list(range(len(groups)))
    sequences = [places[2 * number + side] for number in kept for side in (0, 1)]
    counts = torch.bincount(experience.score_seq, minlength=experience.num_sequences).tolist()
    tokens_of = torch.arange(len(experience.score_seq)).split(counts)
    tokens = torch.cat([tokens_of[sequence] for sequence in sequences])
    columns = {name: values[sequences] for name, values in experience.columns.items()}
    columns["teaches"] = torch.tensor([float(teaches[number]) for number in kept for _ in (0, 1)])
    return RolloutExperience(
        [groups[number] for number in kept],
        columns=columns,
        token_columns={name: values[tokens] for name, values in experience.token_columns.items()},
    )
