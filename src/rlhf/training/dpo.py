"""Direct preference optimisation: learn from pairs without a reward model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlhf.config.preference import DPOConfig
from rlhf.data.pack import Group, PackedBatch, pack, split_by_tokens
from rlhf.losses import (
    PAIR_LOSSES,
    implicit_rewards,
    nll_loss,
    segment_count,
    segment_mean,
    segment_sum,
    split_pairs,
)
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import Reference
from rlhf.training.algorithm import Totals
from rlhf.training.log import RunLog
from rlhf.training.metrics import Metrics, describe, share_above
from rlhf.training.offline import OfflineTrainer, RowsOfStep
from rlhf.training.optim import TrainedModule, mixed_precision
from rlhf.training.rows import MapData


class DPOTrainer(OfflineTrainer):
    """Raises the margin between chosen and rejected completions, measured against a reference policy.

    The reference scores every pair once, before the first step, and the sums are kept: no step pays for a second
    forward. So the policy as it is given can be its own reference, and no second model is in memory.

    Args:
        policy: Changed in place.
        config: Settings.
        train_data: ``PreferenceDataset``: groups of two branches, chosen first.
        eval_data: Held-out pairs, or None.
        reference: What the policy is measured against; None for the policy as it is given.
        log: Where metrics go.
        checkpoint_dir: Where checkpoints go; None for none.
    """

    name = "dpo"

    def __init__(
        self,
        policy: PolicyModel,
        config: DPOConfig,
        train_data: MapData,
        eval_data: MapData | None = None,
        *,
        reference: Reference | None = None,
        log: RunLog | None = None,
        checkpoint_dir: Path | None = None,
    ) -> None:
        self.settings = config
        self.policy = policy
        self.reference: Reference = reference or policy
        self.pairs = {"train": ScoredPairs(train_data)}
        if eval_data:
            self.pairs["eval"] = ScoredPairs(eval_data)
        super().__init__(config, self.pairs["train"], self.pairs.get("eval"), log=log, checkpoint_dir=checkpoint_dir)

    @property
    def tokenizer(self) -> Any:
        """The policy's."""
        return self.policy.tokenizer

    def modules(self) -> Sequence[TrainedModule]:
        """The policy."""
        return [TrainedModule("policy", self.policy.model, self.config.learning_rate)]

    def collecting_takes_long(self, phase: int) -> bool:
        """Where the reference is still to be asked."""
        return any(pairs.ref_logprobs is None for pairs in self.pairs.values())

    def collect(self, phase: int, metrics: Metrics) -> RowsOfStep:
        """The next pairs; before the first, the reference's scores of all of them."""
        for pairs in self.pairs.values():
            if pairs.ref_logprobs is None:
                pairs.ref_logprobs = self._score_reference(pairs.data)
        return super().collect(phase, metrics)

    def pack(self, groups: Sequence[Group]) -> PackedBatch:
        """Pairs with the reference's summed log-probabilities as a column."""
        return pack(groups).with_columns(ref_logprobs=torch.cat([group.columns["ref_logprobs"] for group in groups]))

    def loss(self, batch: PackedBatch, totals: Totals, metrics: Metrics) -> Tensor:
        """Mean over pairs of the chosen form, plus a share of the chosen completions' likelihood where asked."""
        config = self.settings
        batch = batch.to(self.policy.device)
        token_logprobs = self.policy.score(batch).logprobs
        losses = self._pair_losses(batch, token_logprobs, metrics, "dpo")
        metrics.mean("loss/train", losses)
        loss = losses.sum() / totals.num_groups
        if config.sft_coef:
            # each chosen completion's own token mean, as the paper has it
            nll = segment_mean(nll_loss(token_logprobs), batch.score_seq, batch.num_sequences)
            chosen, _ = split_pairs(nll)
            metrics.mean("loss/sft", chosen)
            loss = loss + config.sft_coef * chosen.sum() / totals.num_groups
        return loss

    def measure(self, batch: PackedBatch, metrics: Metrics) -> None:
        """Loss, accuracy of the implicit reward (a tie counts half) and margin."""
        batch = batch.to(self.policy.device)
        losses = self._pair_losses(batch, self.policy.score(batch).logprobs, metrics, "eval")
        metrics.mean("eval/loss", losses)

    def headline(self, metrics: Mapping[str, float]) -> str:
        """Loss, accuracy and margin."""
        return describe(metrics, {"loss/train": "loss", "dpo/accuracy": "accuracy", "dpo/reward_margin": "margin"})

    def state_dict(self) -> dict[str, Any]:
        """The cursor, and the reference's scores: after the first step the policy could not give them again."""
        scores = {name: pairs.ref_logprobs for name, pairs in self.pairs.items()}
        return {**super().state_dict(), "ref_logprobs": scores}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        super().load_state_dict(state)
        for name, pairs in self.pairs.items():
            pairs.ref_logprobs = state["ref_logprobs"].get(name)

    def _pair_losses(self, batch: PackedBatch, token_logprobs: Tensor, metrics: Metrics, prefix: str) -> Tensor:
        """[P] losses, and what people watch."""
        config = self.settings
        logprobs = segment_sum(token_logprobs, batch.score_seq, batch.num_sequences)
        ref = batch.columns["ref_logprobs"].to(logprobs.dtype)
        chosen_rewards, rejected_rewards = split_pairs(implicit_rewards(logprobs.detach(), ref, beta=config.beta))
        metrics.mean(f"{prefix}/reward_margin", chosen_rewards - rejected_rewards)
        metrics.mean(f"{prefix}/accuracy", share_above(chosen_rewards, rejected_rewards))
        metrics.mean(f"{prefix}/chosen_reward", chosen_rewards)
        metrics.mean(f"{prefix}/rejected_reward", rejected_rewards)
        options: dict[str, Any] = {"beta": config.beta}
        if config.loss == "sigmoid":
            options["label_smoothing"] = config.label_smoothing
        if config.ipo_per_token:
            lengths = segment_count(batch.score_seq, batch.num_sequences)
            options["chosen_lengths"], options["rejected_lengths"] = split_pairs(lengths)
        return PAIR_LOSSES[config.loss](*split_pairs(logprobs), *split_pairs(ref), **options)

    def _score_reference(self, data: MapData) -> Tensor:
        """[rows, 2] summed log-probabilities, scored in order of length and put back in order."""
        groups = [data[i] for i in range(len(data))]
        order = sorted(range(len(groups)), key=lambda i: groups[i].num_tokens)
        runs = split_by_tokens([groups[i] for i in order], max_tokens=self.config.tokens_per_microbatch)
        sums = []
        with mixed_precision(self.config.autocast, self.policy.device):
            for batch in (pack(run).to(self.policy.device) for run in runs):
                logprobs = self.reference.logprobs(batch)
                sums.append(segment_sum(logprobs, batch.score_seq, batch.num_sequences).view(-1, 2).cpu())
        in_order = torch.empty(len(groups), 2, dtype=sums[0].dtype)
        in_order[order] = torch.cat(sums)
        return in_order


class ScoredPairs:
    """Pairs, each with the column ``ref_logprobs`` [2] once the reference has scored them."""

    def __init__(self, data: MapData) -> None:
        self.data = data
        self.ref_logprobs: Tensor | None = None
        """[rows, 2] nats, summed over each completion."""

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Group:
        group = self.data[index]
        if self.ref_logprobs is None:
            return group
        return Group(group.prefix, group.branches, {**group.columns, "ref_logprobs": self.ref_logprobs[index]})
