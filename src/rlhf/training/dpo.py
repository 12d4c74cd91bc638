"""Direct preference optimization and its kin: learn from pairs, measured against a reference, without a reward model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from rlhf.config.formulas import argument_values
from rlhf.config.preference import DPOConfig
from rlhf.data.pack import Group, PackedBatch
from rlhf.errors import ConfigError
from rlhf.losses import (
    divergence_scores,
    implicit_rewards,
    length_desensitized_logprobs,
    length_normalized_dpo_loss,
    segment_count,
    split_pairs,
    wpo_weights,
)
from rlhf.losses.formula import load_formula
from rlhf.models.reference import Reference, as_it_is_now
from rlhf.models.score import TokenScores
from rlhf.training.metrics import Metrics
from rlhf.training.offline import RowsOfStep
from rlhf.training.pair_trainer import PairsTrainer, check_pair
from rlhf.training.reference_logprobs import ReferenceScores, completion_sums
from rlhf.training.row_order import MapData


class WholeStep(NamedTuple):
    """All completions of a step, for losses that compare its pairs with each other. Nothing of it has a gradient."""

    place: Tensor
    """int64 [S] ascending: where in the step each completion stands."""
    logprobs: Tensor
    """[S] nats, policy."""
    ref_logprobs: Tensor
    """[S] nats, reference."""


class DPOTrainer(PairsTrainer[DPOConfig]):
    """Raises the margin between chosen and rejected completions, measured against a reference policy.

    The reference scores every pair once, before the first step, and the sums are kept: no step pays for a second
    forward, and a run whose rows were scored by an earlier one (``cache_reference``) pays for none. So the policy as it is
    given can be its own reference, and no second model is in memory; one that is given is let go once it was asked.

    Called with the fields of ``OfflineInputs``: a policy, and a ``PreferenceDataset``; a stream only where ``reference_free``.
    """

    name = "dpo"
    config_class = DPOConfig

    @override
    def prepare(self) -> None:
        """The rows get the reference's log-probabilities as a column, unless nothing asks for them."""
        config = self.config
        self.reference: Reference | None = self.inputs.reference or as_it_is_now(self.policy)
        self.scored: ReferenceScores | None = None
        if not config.reference_free:
            if not isinstance(self.train_data, MapData):
                raise ConfigError(
                    "dpo scores its reference on every pair before the first step, and was given a stream, which has no "
                    "length; give a PreferenceDataset, or set reference_free."
                )
            self.scored = ReferenceScores(self.train_data, self.eval_data, check=check_pair, sums=self._sums)
            self.train_data, self.eval_data = self.scored.train, self.scored.held_out
        super().prepare()
        formula = load_formula(config.pair_formula.function)
        self.pair_loss = length_normalized_dpo_loss if config.length_normalized else formula
        self._whole: WholeStep | None = None

    @override
    def collecting_takes_long(self, phase: int) -> bool:
        """Where the reference is still to be asked."""
        return self.scored is not None and not self.scored.are_there

    @override
    def collect(self, phase: int, metrics: Metrics) -> RowsOfStep:
        """The next pairs; before the first, the reference's scores of all of them."""
        if self.scored is not None and self.reference is not None:
            self.scored.ask(self.reference, self.config, self.policy.device, self.log)
        self.reference = None
        return super().collect(phase, metrics)

    @override
    def pack(self, groups: Sequence[Group]) -> PackedBatch:
        """Pairs with the reference's log-probabilities as a column."""
        batch = super().pack(groups)
        if self.scored is None:
            return batch
        return batch.with_columns(ref_logprobs=torch.cat([group.columns["ref_logprobs"] for group in groups]))

    @override
    def batches(self, groups: Iterable[Group]) -> list[PackedBatch]:
        """Micro-batches; for losses that compare all pairs of a step, each completion knows its place in it."""
        batches = super().batches(groups)
        if not self.config.pair_formula.compares_pairs:
            return batches
        places = torch.arange(sum(b.num_sequences for b in batches)).split([b.num_sequences for b in batches])
        return [batch.with_columns(place=place) for batch, place in zip(batches, places, strict=True)]

    @override
    def before_step(self, batches: Sequence[PackedBatch], metrics: Metrics) -> None:
        """Losses that compare all pairs of a step get what the policy says of them: one more forward."""
        if not self.config.pair_formula.compares_pairs:
            return
        parts = []
        for batch in (batch.to(self.policy.device) for batch in batches):
            sums = self._sums(self.policy.logprobs(batch), batch)
            parts.append((batch.columns["place"], sums, batch.columns["ref_logprobs"].to(sums.dtype)))
        self._whole = WholeStep(*(torch.cat(column) for column in zip(*parts, strict=True)))

    @override
    def before_evaluation(self, batches: Sequence[PackedBatch], metrics: Metrics) -> None:
        """Held-out pairs are compared as one step would be."""
        self.before_step(batches, metrics)

    @override
    def score(self, batch: PackedBatch) -> TokenScores:
        """Log-probabilities; to weigh pairs, also how likely two samples of each distribution agree."""
        return self.policy.score(batch, with_collision=self.config.weight_by_policy)

    @override
    def compare(self, batch: PackedBatch, scores: TokenScores) -> tuple[Tensor, Tensor]:
        """[P] losses of the chosen form, and [S] implicit rewards in the unit that it compares."""
        config = self.config
        logprobs = self._sums(scores.logprobs, batch)
        ref = torch.zeros_like(logprobs) if self.scored is None else batch.columns["ref_logprobs"].to(logprobs.dtype)
        if config.divergence != "reverse_kl":
            logprobs = divergence_scores(logprobs, ref, divergence=config.divergence, alpha=config.divergence_alpha)
            ref = torch.zeros_like(ref)
        rewards = implicit_rewards(logprobs.detach(), ref, beta=config.beta)
        options = {"beta": config.beta, **argument_values(config, config.pair_formula.arguments)}
        if config.ipo_per_token or config.length_normalized:
            lengths = segment_count(batch.score_seq, batch.num_sequences).clamp(min=1)
            options["chosen_lengths"], options["rejected_lengths"] = split_pairs(lengths)
            rewards = rewards / lengths
        if config.pair_formula.compares_pairs:
            losses = self._compare_all(batch, logprobs, options)
        else:
            losses = self.pair_loss(*split_pairs(logprobs), *split_pairs(ref), **options)
        if config.weight_by_policy:
            assert scores.log_collision_probs is not None, "score() asks for them"
            of_tokens = (scores.logprobs.detach(), scores.log_collision_probs, batch.score_seq)
            losses = losses * wpo_weights(*of_tokens, batch.num_sequences)
        return losses, rewards

    def _compare_all(self, batch: PackedBatch, logprobs: Tensor, options: Mapping[str, Any]) -> Tensor:
        """[P] losses of this micro-batch's pairs among all of the step.

        A completion also enters the losses of pairs in other micro-batches. So their sum has the value of these pairs'
        losses, and the gradient of the whole step's with the completions of this micro-batch alive.
        """
        assert self._whole is not None, "before_step() comes first"
        place, others, ref = self._whole
        here = torch.searchsorted(place, batch.columns["place"])
        losses = self.pair_loss(*split_pairs(others.index_copy(0, here, logprobs)), *split_pairs(ref), **options)
        own = losses.detach()[split_pairs(here)[0] // 2]
        return own + (losses.sum() - losses.sum().detach()) / len(own)

    def _sums(self, logprobs: Tensor, batch: PackedBatch) -> Tensor:
        """[S] nats of completions, under policy and reference alike: sums, or those in which excess length counts less."""
        alpha = self.config.length_alpha
        if alpha is None:
            return completion_sums(logprobs, batch)
        return length_desensitized_logprobs(logprobs, batch.score_seq, batch.num_sequences, alpha=alpha)

    @override
    def state_dict(self) -> dict[str, Any]:
        """The cursor, and what the reference said."""
        said = {} if self.scored is None else {"ref_logprobs": self.scored.state_dict()}
        return {**super().state_dict(), **said}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        super().load_state_dict(state)
        if self.scored is not None:
            self.scored.load_state_dict(state["ref_logprobs"])
