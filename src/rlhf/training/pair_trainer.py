"""What the trainers that learn from pairs share: the policy, a likelihood term where asked, and what people watch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeVar

from torch import Tensor
from typing_extensions import override

from rlhf.config.preference import PairsConfig
from rlhf.data.message_text import counted
from rlhf.data.pack import Group, PackedBatch, pack
from rlhf.errors import DataError
from rlhf.losses import chosen_nll, split_pairs
from rlhf.models.score import TokenScores
from rlhf.training.algorithm import Totals
from rlhf.training.metrics import Metrics, describe, share_above
from rlhf.training.offline import OfflinePolicyTrainer

ConfigT = TypeVar("ConfigT", bound=PairsConfig)


class PairsTrainer(OfflinePolicyTrainer[ConfigT]):
    """Learns from groups of two branches, chosen first; a method says how the two are compared, in ``compare``.

    Called with the fields of ``OfflineInputs``: a policy, and a ``PreferenceDataset`` or a stream of the same groups.
    """

    config_class = PairsConfig

    @abstractmethod
    def compare(self, batch: PackedBatch, scores: TokenScores) -> tuple[Tensor, Tensor]:
        """The method itself.

        Args:
            batch: Pairs, on the policy's device.
            scores: What the policy says about their tokens.

        Returns:
            [P] losses without a likelihood term, and [S] implicit rewards: what the losses compare.
        """

    @override
    def pack(self, groups: Sequence[Group]) -> PackedBatch:
        """Pairs; methods that need columns add them."""
        for group in groups:
            check_pair(group)
        return pack(groups)

    def score(self, batch: PackedBatch) -> TokenScores:
        """What the policy says; methods that need more than log-probabilities ask for it here."""
        return self.policy.score(batch)

    @override
    def loss(self, batch: PackedBatch, totals: Totals, metrics: Metrics) -> Tensor:
        """Mean over the step's pairs."""
        losses = self._losses(batch, metrics, of=self.name, sft="loss/sft")
        metrics.mean("loss/train", losses)
        return losses.sum() / totals.num_groups

    @override
    def measure(self, batch: PackedBatch, metrics: Metrics) -> None:
        """Loss, accuracy of the implicit reward (a tie counts half) and margin."""
        metrics.mean("eval/loss", self._losses(batch, metrics, of="eval", sft="eval/sft_loss"))

    @override
    def headline(self, metrics: Mapping[str, float]) -> str:
        """Loss, accuracy and margin."""
        named = {f"{self.name}/accuracy": "accuracy", f"{self.name}/reward_margin": "margin"}
        return describe(metrics, {"loss/train": "loss", **named})

    def _losses(self, batch: PackedBatch, metrics: Metrics, *, of: str, sft: str) -> Tensor:
        """[P] losses with the likelihood term, if there is one; what people watch goes to the metrics."""
        batch = batch.to(self.policy.device)
        scores = self.score(batch)
        losses, rewards = self.compare(batch, scores)
        chosen, rejected = split_pairs(rewards.detach())
        metrics.mean(f"{of}/reward_margin", chosen - rejected)
        metrics.mean(f"{of}/accuracy", share_above(chosen, rejected))
        metrics.mean(f"{of}/chosen_reward", chosen)
        metrics.mean(f"{of}/rejected_reward", rejected)
        if not self.config.sft_coef:
            return losses
        # Each chosen completion's own token mean, as RPO and ORPO have it. CPO's paper sums over tokens; its authors' code, and
        # TRL, take a mean, and so does this, so that one weight means the same for short and long completions.
        nll = chosen_nll(scores.logprobs, batch.score_seq, batch.num_sequences)
        metrics.mean(sft, nll)
        return losses + self.config.sft_coef * nll


def check_pair(group: Group) -> None:
    """Refuse what is not a pair: with another number of branches, completions of different prompts would be compared.

    Raises:
        DataError: The group has not two branches.
    """
    if len(group.branches) != 2:
        raise DataError(
            f"Row {group.columns.get('id')!r} has {counted(len(group.branches), 'completion')}; wanted two, the chosen one "
            "first. A PreferenceDataset makes such rows."
        )
