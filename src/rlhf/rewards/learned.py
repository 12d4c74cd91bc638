"""A reward model as a scorer: token ids go in as they were sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlhf.config.rewards import Combine, EnsembleRewardConfig, LearnedRewardConfig
from rlhf.data.contracts import Prompt
from rlhf.data.datasets import SFTDataset
from rlhf.data.pack import Branch, Group, pack, split_by_tokens
from rlhf.errors import ConfigError, RewardError, RLHFError, look_up
from rlhf.models.reward import RewardModel
from rlhf.models.score import base_model, context_length, evaluating
from rlhf.rewards.ensemble import COMBINATIONS, EnsembleReward, combine_scores
from rlhf.rewards.lengths import LengthRule
from rlhf.rewards.types import CompletionLike, OnError, RewardContext, ScoreResult, TextCompletion
from rlhf.rewards.verdicts import result_of_model


class LearnedReward:
    """Scores completions with a reward model.

    Ids are used as they are where policy and reward model share a tokenizer; a prompt that several completions share
    is computed once. Otherwise the texts are tokenized anew, as the reward model's training pairs were. A completion
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
        self.model = model
        self.tokenizer = tokenizer
        self.combine: Combine = combine
        self.std_coef = std_coef
        self.max_tokens = max_tokens
        self.on_error = on_error
        self.lengths = LengthRule(context_length(base_model(model.members[0])))  # type: ignore[arg-type]
        self._name = name
        self._same_ids = same_ids(tokenizer, model.tokenizer) if tokenizer is not None else None

    @property
    def name(self) -> str:
        """What metrics and errors call it."""
        return self._name

    @torch.no_grad()
    def score(self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> ScoreResult:
        """See ``Scorer``.

        Raises:
            RewardError: A sample is too long for the model and none is cut (``lengths``), or gets a score that is not finite.
        """
        who = f"The reward model {self.name}"
        tokenizer = self.model.tokenizer
        as_ids = usable_ids(tokenizer, prompts, completions, same=self._same_ids)
        groups = groups_of_samples(tokenizer, prompts, completions, as_ids=as_ids, who=who)
        groups = self.lengths.applied(groups, prompts, completions, who=who, bos=tokenizer.bos_token_id)
        each = self._each_score(groups)
        scores = combine_scores(each, how=self.combine, std_coef=self.std_coef).tolist()
        result = result_of_model(who, self.name, scores, prompts, completions, on_error=self.on_error)
        if self.model.num_scores == 1:
            return result
        spread = each.std(0, correction=0).tolist()
        parts = {f"{self.name}_std": [None if place in result.errors else std for place, std in enumerate(spread)]}
        return replace(result, per_component={**result.per_component, **parts})

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
        scores: list[float] = combine_scores(
            self._each_score(groups), how=self.combine, std_coef=self.std_coef
        ).tolist()
        return scores

    def _each_score(self, groups: list[Group]) -> Tensor:
        """[K, S] normalized scores of every member and head."""
        with evaluating(self.model):
            parts = [
                self.model.member_scores(pack(run)).float().cpu()
                for run in split_by_tokens(groups, max_tokens=self.max_tokens)
            ]
        return torch.cat(parts, dim=1) if parts else torch.zeros(self.model.num_scores, 0)


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


def model_folder(source: str) -> str:
    """A reward model's folder or hub name, for anyone who has no recipe.

    Raises:
        ConfigError: It names a stage.
    """
    if source.startswith("stage:"):
        raise ConfigError(f"The reward {source!r} names a stage; outside a recipe give the folder of its model.")
    return source


def same_ids(one: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> bool:
    """Whether an id means the same to both, the ids that begin and end a text included."""
    if one is other:
        return True
    specials = [(t.bos_token_id, t.eos_token_id) for t in (one, other)]
    return specials[0] == specials[1] and one.get_vocab() == other.get_vocab()


def usable_ids(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    completions: Sequence[CompletionLike],
    *,
    same: bool | None = None,
) -> list[bool]:
    """[S] whether a model can take the ids that were sampled as they are.

    Args:
        tokenizer: The model's.
        prompts: [S].
        completions: [S].
        same: Whether the policy's tokenizer has the same ids. None where it is not known: then those samples whose ids this tokenizer
            reads as the texts they stand for, and none where it reads most of them otherwise.
    """
    known = [bool(completion.tokens) for completion in completions]  # of some only the text is known
    if same is not None:
        return [same and there for there in known]
    asked = zip(known, prompts, completions, strict=True)
    read = [there and _reads_the_same(tokenizer, prompt, completion) for there, prompt, completion in asked]
    return read if 2 * sum(read) > sum(known) else [False] * len(read)


def _reads_the_same(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, completion: CompletionLike) -> bool:
    """Whether a tokenizer reads from the ids the text they stand for, and a special token where they end."""
    decoded = str(tokenizer.decode([*prompt.ids, *completion.tokens], skip_special_tokens=True))
    if not decoded.endswith(completion.text):
        return False
    if not completion.text and str(tokenizer.decode(completion.tokens, skip_special_tokens=True)).strip():
        return False
    ended_in_text = tokenizer.decode(completion.tokens[-1:], skip_special_tokens=True) != ""
    return completion.truncated or ended_in_text or completion.tokens[-1] in tokenizer.all_special_ids


def groups_of_texts(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    completions: Sequence[CompletionLike],
    *,
    who: str,
) -> list[Group]:
    """One group each, in order; completions with and without an end of their own are tokenized apart.

    Raises:
        RewardError: A sample can't be read as text by ``who``.
    """
    groups: dict[int, Group] = {}
    for add_eos in (True, False):
        # An empty completion without EOS would leave no token to read a score at.
        places = [i for i, c in enumerate(completions) if (not c.truncated or not c.text) == add_eos]
        rows = [_row(prompts[i], completions[i]) for i in places]
        if not rows:
            continue
        try:
            data = SFTDataset(rows, tokenizer, add_eos=add_eos)
        except RLHFError as err:
            raise RewardError(f"{who} can't read the samples as text: {err}") from err
        groups.update(zip(places, data, strict=True))
    return [groups[i] for i in range(len(completions))]


def groups_of_samples(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    completions: Sequence[CompletionLike],
    *,
    as_ids: Sequence[bool],
    who: str,
) -> list[Group]:
    """Samples in order, each as the ids that were sampled or (``as_ids`` [S] says) as a text that is tokenized by ``tokenizer``."""
    groups: list[Group] = []
    for by_ids, run in groupby(range(len(completions)), key=as_ids.__getitem__):
        places = list(run)
        asked, said = [prompts[i] for i in places], [completions[i] for i in places]
        groups += groups_of_ids(asked, said) if by_ids else groups_of_texts(tokenizer, asked, said, who=who)
    return groups


def groups_of_ids(prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> list[Group]:
    """Neighbors with the same prompt share it; the order of completions stays."""
    groups: list[Group] = []
    for prompt, completion in zip(prompts, completions, strict=True):
        branch = Branch(completion.tokens)
        if groups and groups[-1].prefix == prompt.ids:
            groups[-1] = Group(prompt.ids, [*groups[-1].branches, branch], groups[-1].columns)
        else:
            groups.append(Group(prompt.ids, [branch], {"id": prompt.id}))
    return groups


def _row(prompt: Prompt, completion: CompletionLike) -> dict[str, object]:
    if prompt.messages is None:
        return {"prompt": prompt.text, "completion": completion.text}
    return {"prompt": prompt.messages, "completion": [{"role": "assistant", "content": completion.text}]}
