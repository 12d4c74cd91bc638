"""A reward model as a scorer: token ids go in as they were sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlhf.config.rewards import Combine
from rlhf.data.contracts import Prompt
from rlhf.data.datasets import SFTDataset
from rlhf.data.pack import Branch, Group, pack, split_by_tokens
from rlhf.errors import RewardError, RLHFError, look_up
from rlhf.models.reward import RewardModel
from rlhf.models.score import base_model, context_length, evaluating
from rlhf.rewards.ensemble import COMBINATIONS, combine_scores
from rlhf.rewards.types import CompletionLike, ScoreResult, TextCompletion, sample_name
from rlhf.rewards.verdicts import OnError, result_of_model


class LearnedReward:
    """Scores completions with a reward model.

    Ids are used as they are where policy and reward model share a tokenizer; a prompt that several completions share
    is computed once. Otherwise the texts are tokenised anew, as the reward model's training pairs were. A completion
    that was cut by the length limit is scored as it is, without EOS.
    """

    def __init__(
        self,
        model: RewardModel,
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
            model: Stays on its device; put into evaluation mode for each call.
            tokenizer: The policy's. None where it is not known: then ids are used if the reward model's tokenizer reads
                the same texts from them.
            name: What metrics and errors call it.
            combine: Of an ensemble: how the normalised scores of its members and heads become one, see
                ``combine_scores``. The deviation between them is the component ``<name>_std``.
            std_coef: For ``mean_minus_std``: weight of the deviation.
            max_tokens: Distinct tokens in one forward pass; memory only.
            on_error: ``report`` puts samples whose score is not finite into the result's ``errors`` instead of raising.
        """
        look_up(COMBINATIONS, combine, kind="combination of scores")
        self.model = model
        self.tokenizer = tokenizer
        self.combine: Combine = combine
        self.std_coef = std_coef
        self.max_tokens = max_tokens
        self.on_error = on_error
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
            RewardError: A sample is too long for the model, or gets a score that is not finite.
        """
        same = self._same_ids
        if same is None:
            same = reads_the_same(self.model.tokenizer, prompts, completions)
        who = f"The reward model {self.name}"
        tokenizer = self.model.tokenizer
        groups = (
            groups_of_ids(prompts, completions) if same else groups_of_texts(tokenizer, prompts, completions, who=who)
        )
        check_lengths(self._context, groups, prompts, completions, who=who)
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
        check_lengths(self._context, groups, asked, said, who=who)
        scores: list[float] = combine_scores(
            self._each_score(groups), how=self.combine, std_coef=self.std_coef
        ).tolist()
        return scores

    @property
    def _context(self) -> int | None:
        return context_length(base_model(self.model.members[0]))  # type: ignore[arg-type]

    def _each_score(self, groups: list[Group]) -> Tensor:
        """[K, S] normalised scores of every member and head."""
        with evaluating(self.model):
            parts = [
                self.model.member_scores(pack(run)).float().cpu()
                for run in split_by_tokens(groups, max_tokens=self.max_tokens)
            ]
        return torch.cat(parts, dim=1) if parts else torch.zeros(self.model.num_scores, 0)


def same_ids(one: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> bool:
    """Whether an id means the same to both, the ids that begin and end a text included."""
    if one is other:
        return True
    specials = [(t.bos_token_id, t.eos_token_id) for t in (one, other)]
    return specials[0] == specials[1] and one.get_vocab() == other.get_vocab()


def reads_the_same(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]
) -> bool:
    """Whether a tokenizer reads from these ids the texts they stand for, and a special token where they end."""
    specials = set(tokenizer.all_special_ids)
    for prompt, completion in zip(prompts, completions, strict=True):
        if not completion.tokens:  # only its text is known
            return False
        decoded = tokenizer.decode([*prompt.ids, *completion.tokens], skip_special_tokens=True)
        if not str(decoded).endswith(completion.text):
            return False
        ended_in_text = tokenizer.decode(completion.tokens[-1:], skip_special_tokens=True) != ""
        if not completion.truncated and not ended_in_text and completion.tokens[-1] not in specials:
            return False
    return True


def groups_of_texts(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    completions: Sequence[CompletionLike],
    *,
    who: str,
) -> list[Group]:
    """One group each, in order; completions with and without an end of their own are tokenised apart.

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


def check_lengths(
    limit: int | None,
    groups: Sequence[Group],
    prompts: Sequence[Prompt],
    completions: Sequence[CompletionLike],
    *,
    who: str,
) -> None:
    """Refuse a sample that is longer than a model was made for, by its name."""
    if limit is None:
        return
    lengths = [len(group.prefix) + len(branch.tokens) for group in groups for branch in group.branches]
    for place, length in enumerate(lengths):
        if length > limit:
            raise RewardError(
                f"Sample {sample_name(prompts[place], completions[place])} has {length} tokens, but "
                f"{who[0].lower()}{who[1:]} was made for {limit}; lower max_new_tokens or max_prompt_length."
            )


def groups_of_ids(prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> list[Group]:
    """Neighbours with the same prompt share it; the order of completions stays."""
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
