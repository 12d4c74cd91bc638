"""A reward model as a scorer: it receives token ids as they were sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from typing_extensions import override

from rlhf.config.learned_rewards import Combine, EnsembleRewardConfig, LearnedRewardConfig
from rlhf.data.contracts import Prompt
from rlhf.data.pack import Group, pack
from rlhf.errors import check_type, look_up
from rlhf.models.reward import RewardModel
from rlhf.rewards.checked_values import result_of_model
from rlhf.rewards.ensemble import COMBINATIONS, EnsembleReward, combine_scores
from rlhf.rewards.model_reward import ModelReward, groups_of_samples, groups_of_texts, model_folder, usable_ids
from rlhf.rewards.types import CompletionLike, OnError, RewardContext, ScoreResult, TextCompletion


class LearnedReward(ModelReward[RewardModel]):
    """Scores completions with a reward model.

    Ids are used as they are where policy and reward model share a tokenizer; a prompt that several completions share
    is computed once. Otherwise the texts are tokenized again, as the reward model's training pairs were. A completion
    that was cut by the length limit is scored as it is, without EOS.
    """

    def __init__(
        self,
        model: RewardModel | str | Path,
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
        name: str = "learned",
        combine: Combine = "mean",
        std_coef: float = 1.0,
        max_tokens: int = 16_384,
        on_error: OnError = "raise",
    ) -> None:
        """Wrap a reward model.

        Args:
            model: Stays on its device; put into evaluation mode for each call. A folder or hub name is loaded.
            tokenizer: The policy's. None where it is not known: then ids are used if the reward model's tokenizer reads
                the same texts from them.
            name: What metrics and errors call it.
            combine: Of an ensemble: how the normalized scores of its members and heads become one, see
                ``combine_scores``. The deviation between them is the component ``<name>_std``.
            std_coef: For ``mean_minus_std``: weight of the deviation.
            max_tokens: Distinct tokens in one forward pass; memory only.
            on_error: ``report`` puts samples whose score is not finite into the result's ``errors`` instead of raising.
        """
        look_up(COMBINATIONS, combine, kind="combination of scores")
        if isinstance(model, str | Path):
            model = RewardModel.from_pretrained(str(model))
        check_type(model, RewardModel, name="model", expected="a RewardModel, or the folder or hub name of one")
        super().__init__(model, tokenizer=tokenizer, name=name, max_tokens=max_tokens, on_error=on_error)
        self.combine: Combine = combine
        self.std_coef = std_coef

    @torch.no_grad()
    def score(self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> ScoreResult:
        """Judge each completion.

        Raises:
            RewardError: A sample is too long for the model and none is cut (``lengths``), or gets a score that is not finite.
        """
        groups = self.groups(prompts, completions)
        each = self.outputs(groups)
        scores = self.scores(groups, each)
        who = f"The reward model {self.name}"
        result = result_of_model(who, self.name, scores, prompts, completions, on_error=self.on_error)
        if self.model.num_scores == 1:
            return result
        spread = each.std(0, correction=0).tolist()
        parts = {f"{self.name}_std": [None if place in result.errors else std for place, std in enumerate(spread)]}
        return replace(result, per_component={**result.per_component, **parts})

    @override
    def groups(self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> list[Group]:
        who, tokenizer = f"The reward model {self.name}", self.model.tokenizer
        as_ids = usable_ids(tokenizer, prompts, completions, same=self._same_ids)
        groups = groups_of_samples(tokenizer, prompts, completions, as_ids=as_ids, who=who)
        return self.lengths.applied(groups, prompts, completions, who=who, bos=tokenizer.bos_token_id)

    def num_outputs(self, group: Group) -> int:
        """One for each completion."""
        return len(group.branches)

    def outputs(self, groups: Sequence[Group]) -> Tensor:
        """[K, S] normalized scores of every member and head."""
        parts = self.passes(groups, lambda run: self.model.member_scores(pack(run)).float())
        return torch.cat(parts, dim=1) if parts else torch.zeros(self.model.num_scores, 0)

    @override
    def scores(self, groups: Sequence[Group], outputs: Tensor) -> list[float]:
        scores: list[float] = combine_scores(outputs, how=self.combine, std_coef=self.std_coef).tolist()
        return scores

    @torch.no_grad()
    def __call__(
        self, prompts: Sequence[str], completions: Sequence[str], *, ended: Sequence[bool] | None = None, **columns: Any
    ) -> list[float]:
        """The standard signature, on texts: a reward model as a judge.

        Args:
            prompts: [n].
            completions: [n].
            ended: [n] whether each came to its own end, so that EOS belongs behind it; all by default.
            columns: Ignored.
        """
        asked = [Prompt(f"number {i}", [], text) for i, text in enumerate(prompts)]
        said = [
            TextCompletion(text, truncated=ended is not None and not ended[i]) for i, text in enumerate(completions)
        ]
        who = f"The reward model {self.name}"
        groups = groups_of_texts(self.model.tokenizer, asked, said, who=who)
        groups = self.lengths.applied(groups, asked, said, who=who, bos=self.model.tokenizer.bos_token_id)
        return self.scores(groups, self.outputs(groups))


def build_learned(spec: LearnedRewardConfig, at: RewardContext) -> LearnedReward:
    """One reward model."""
    return LearnedReward(
        RewardModel.from_pretrained(model_folder(spec.source)),
        tokenizer=at.tokenizer,
        name=spec.name or "learned",
        combine=spec.combine,
        std_coef=spec.std_coef,
        on_error=at.on_error,
    )


def build_ensemble(spec: EnsembleRewardConfig, at: RewardContext) -> EnsembleReward:
    """Several reward models, each of which may have several members itself."""
    models = [RewardModel.from_pretrained(model_folder(source)) for source in spec.sources]
    return EnsembleReward(
        [LearnedReward(model, tokenizer=at.tokenizer, on_error=at.on_error) for model in models],
        combine=spec.combine,
        std_coef=spec.std_coef,
        name=spec.name or "ensemble",
        on_error=at.on_error,
    )
