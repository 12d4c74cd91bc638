"""Direct preference optimisation: learn from pairs without a reward model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlhf.config.training import DPOConfig
from rlhf.data.pack import Group, PackedBatch, pack, split_by_tokens
from rlhf.losses import (
    dpo_hinge_loss,
    dpo_loss,
    implicit_rewards,
    ipo_loss,
    nll_loss,
    segment_count,
    segment_sum,
    split_pairs,
)
from rlhf.models.policy import PolicyModel
from rlhf.training.log import RunLog
from rlhf.training.loop import Totals
from rlhf.training.metrics import Metrics, describe
from rlhf.training.offline import OfflineTrainer
from rlhf.training.optim import TrainedModule
from rlhf.training.rows import MapData


class DPOTrainer(OfflineTrainer):
    """Raises the margin between chosen and rejected completions, measured against the policy it started from.

    The reference is the policy as it is given: every pair is scored once before the first step and the sums are kept, so no
    second model is in memory and no step pays for a reference forward. To use another reference, score with it and pass
    ``ref_logprobs``.

    Args:
        policy: Changed in place.
        config: Settings.
        train_data: ``PreferenceDataset``: groups of two branches, chosen first.
        eval_data: Held-out pairs, or None.
        ref_logprobs: [rows, 2] summed reference log-probabilities of the training pairs, or None to score them here.
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
        ref_logprobs: Tensor | None = None,
        log: RunLog | None = None,
        checkpoint_dir: Path | None = None,
    ) -> None:
        self.settings = config
        self.policy = policy
        self.train_rows = train_data
        self.ref_train = ref_logprobs
        self.ref_eval: Tensor | None = None
        held_out = _Numbered(eval_data, held_out=True) if eval_data is not None else None
        super().__init__(config, _Numbered(train_data), held_out, log, checkpoint_dir)

    def modules(self) -> Sequence[TrainedModule]:
        """The policy."""
        return [TrainedModule("policy", self.policy.model, self.config.learning_rate)]

    def collect(self, phase: int, metrics: Metrics) -> Any:
        """The next pairs; before the first, the reference's scores of all of them."""
        self._score_reference()
        return super().collect(phase, metrics)

    def pack(self, groups: Sequence[Group]) -> PackedBatch:
        """Pairs with the reference's summed log-probabilities as a column."""
        batch = pack(groups)
        if self.ref_train is None:
            return batch
        rows = []
        for group in groups:
            number = group.columns["row"]
            held_out = number < 0
            source = self.ref_eval if held_out else self.ref_train
            assert source is not None
            rows.append(source[-number - 1 if held_out else number])
        return batch.with_columns(ref_logprobs=torch.cat(rows))

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
            lengths = segment_count(batch.score_seq, batch.num_sequences).clamp(min=1)
            nll = segment_sum(nll_loss(token_logprobs), batch.score_seq, batch.num_sequences) / lengths
            chosen, _ = split_pairs(nll)
            metrics.mean("loss/sft", chosen)
            loss = loss + config.sft_coef * chosen.sum() / totals.num_groups
        return loss

    def evaluate(self) -> dict[str, float]:
        """Loss, accuracy of the implicit reward, and margin on held-out pairs."""
        metrics = Metrics()
        for batch in self.eval_batches():
            batch = batch.to(self.policy.device)
            losses = self._pair_losses(batch, self.policy.score(batch).logprobs, metrics, "eval")
            metrics.mean("eval/loss", losses)
        return metrics.result()

    def _pair_losses(self, batch: PackedBatch, token_logprobs: Tensor, metrics: Metrics, prefix: str) -> Tensor:
        """[P] losses, and what people watch."""
        config = self.settings
        logprobs = segment_sum(token_logprobs, batch.score_seq, batch.num_sequences)
        ref = batch.columns["ref_logprobs"].to(logprobs.dtype)
        chosen, rejected = split_pairs(logprobs)
        ref_chosen, ref_rejected = split_pairs(ref)
        chosen_rewards = implicit_rewards(chosen, ref_chosen, beta=config.beta)
        rejected_rewards = implicit_rewards(rejected, ref_rejected, beta=config.beta)
        metrics.mean(f"{prefix}/reward_margin", chosen_rewards - rejected_rewards)
        metrics.mean(f"{prefix}/accuracy", (chosen_rewards > rejected_rewards).float())
        metrics.mean(f"{prefix}/chosen_reward", chosen_rewards)
        metrics.mean(f"{prefix}/rejected_reward", rejected_rewards)
        if config.loss == "sigmoid":
            return dpo_loss(
                chosen, rejected, ref_chosen, ref_rejected, beta=config.beta, label_smoothing=config.label_smoothing
            )
        if config.loss == "hinge":
            return dpo_hinge_loss(chosen, rejected, ref_chosen, ref_rejected, beta=config.beta)
        if config.loss == "ipo":
            return ipo_loss(chosen, rejected, ref_chosen, ref_rejected, beta=config.beta)
        lengths = segment_count(batch.score_seq, batch.num_sequences)
        chosen_lengths, rejected_lengths = split_pairs(lengths)
        return ipo_loss(
            chosen, rejected, ref_chosen, ref_rejected,
            beta=config.beta, chosen_lengths=chosen_lengths, rejected_lengths=rejected_lengths,
        )  # fmt: skip

    def headline(self, metrics: Mapping[str, float]) -> str:
        """Loss and accuracy."""
        return describe(metrics, {"loss/train": "loss", "dpo/accuracy": "accuracy", "dpo/reward_margin": "margin"})

    def state_dict(self) -> dict[str, Any]:
        """The cursor, and the reference's scores: after the first step nobody could compute them again."""
        return {**super().state_dict(), "ref_train": self.ref_train, "ref_eval": self.ref_eval}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        super().load_state_dict(state)
        self.ref_train, self.ref_eval = state["ref_train"], state["ref_eval"]

    def _score_reference(self) -> None:
        if self.ref_eval is None and self.eval_data is not None:
            self.ref_eval = self._summed([self.eval_data[i] for i in range(len(self.eval_data))])
        if self.ref_train is None:
            self.ref_train = self._summed([self.train_rows[i] for i in range(len(self.train_rows))])

    @torch.no_grad()
    def _summed(self, groups: Sequence[Group]) -> Tensor:
        """[rows, 2] summed log-probabilities, scored in order of length and put back in order."""
        self.policy.model.eval()
        order = sorted(range(len(groups)), key=lambda i: groups[i].num_tokens)
        sums = []
        runs = split_by_tokens([groups[i] for i in order], max_tokens=self.config.tokens_per_microbatch)
        for batch in (pack(run).to(self.policy.device) for run in runs):
            logprobs = self.policy.score(batch).logprobs
            sums.append(segment_sum(logprobs, batch.score_seq, batch.num_sequences).view(-1, 2).cpu())
        inverse = torch.empty(len(order), dtype=torch.int64)
        inverse[torch.tensor(order)] = torch.arange(len(order))
        return torch.cat(sums)[inverse]


class _Numbered:
    """Gives each row its number, by which its reference scores are found: n for training rows, -n - 1 for held-out ones."""

    def __init__(self, data: MapData, *, held_out: bool = False) -> None:
        self.data = data
        self.held_out = held_out

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Group:
        group = self.data[index]
        number = -index - 1 if self.held_out else index
        return Group(group.prefix, group.branches, {**group.columns, "row": number})
