"""A reward model as a scorer: token ids go in as they were sampled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlhf.data.contracts import Prompt
from rlhf.data.datasets import SFTDataset
from rlhf.data.pack import Branch, Group, pack, split_by_tokens
from rlhf.errors import RewardError, RLHFError
from rlhf.models.reward import RewardModel
from rlhf.models.score import base_model, evaluating
from rlhf.rewards.types import CompletionLike, ScoreResult, TextCompletion, sample_name
from rlhf.rewards.verdicts import OnError, refuse, score_result
from rlhf.rewards.worker import Failure


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
        max_tokens: int = 16_384,
        on_error: OnError = "raise",
    ) -> None:
        """Wrap a reward model.

        Args:
            model: Stays on its device; put into evaluation mode for each call.
            tokenizer: The policy's. None where it is not known: then ids are used if the reward model's tokenizer reads
                the same texts from them.
            name: What metrics and errors call it.
            max_tokens: Distinct tokens in one forward pass; memory only.
            on_error: ``report`` puts samples whose score is not finite into the result's ``errors`` instead of raising.
        """
        self.model = model
        self.tokenizer = tokenizer
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
        groups = _groups_of_ids(prompts, completions) if same else self._groups_of_texts(prompts, completions)
        self._check_lengths(groups, prompts, completions)
        with evaluating(self.model):
            parts = [self._scores(run) for run in split_by_tokens(groups, max_tokens=self.max_tokens)]
        scores = torch.cat(parts).tolist() if parts else []
        failures = {
            place: Failure(
                f"it gave the score {score}; its weights hold NaN or infinity, or overflowed in half precision"
            )
            for place, score in enumerate(scores)
            if not math.isfinite(score)
        }
        if self.on_error == "raise":
            refuse(f"The reward model {self.name}", failures, prompts, completions)
        verdicts = [None if place in failures else score for place, score in enumerate(scores)]
        return score_result(self.name, verdicts, failures)

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
        groups = self._groups_of_texts(asked, said)
        self._check_lengths(groups, asked, said)
        with evaluating(self.model):
            parts = [self._scores(run) for run in split_by_tokens(groups, max_tokens=self.max_tokens)]
        scores: list[float] = torch.cat(parts).tolist() if parts else []
        return scores

    def _scores(self, groups: list[Group]) -> Tensor:
        return self.model.scores(pack(groups)).float().cpu()

    def _groups_of_texts(self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> list[Group]:
        """One group each, in order; completions with and without an end of their own are tokenised apart."""
        groups: dict[int, Group] = {}
        for add_eos in (True, False):
            # An empty completion without EOS would leave no token to read a score at.
            places = [i for i, c in enumerate(completions) if (not c.truncated or not c.text) == add_eos]
            rows = [_row(prompts[i], completions[i]) for i in places]
            if not rows:
                continue
            try:
                data = SFTDataset(rows, self.model.tokenizer, add_eos=add_eos)
            except RLHFError as err:
                raise RewardError(f"The reward model {self.name} can't read the samples as text: {err}") from err
            groups.update(zip(places, data, strict=True))
        return [groups[i] for i in range(len(completions))]

    def _check_lengths(
        self, groups: list[Group], prompts: Sequence[Prompt], completions: Sequence[CompletionLike]
    ) -> None:
        config = base_model(self.model.members[0]).config.get_text_config()  # type: ignore[arg-type]
        limit = getattr(config, "max_position_embeddings", None)
        if limit is None:
            return
        lengths = [len(group.prefix) + len(branch.tokens) for group in groups for branch in group.branches]
        for place, length in enumerate(lengths):
            if length > limit:
                raise RewardError(
                    f"Sample {sample_name(prompts[place], completions[place])} has {length} tokens, but the reward "
                    f"model {self.name} was made for {limit}; lower max_new_tokens or max_prompt_length."
                )


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
        decoded = tokenizer.decode([*prompt.ids, *completion.tokens], skip_special_tokens=True)
        if not str(decoded).endswith(completion.text):
            return False
        ended_in_text = tokenizer.decode(completion.tokens[-1:], skip_special_tokens=True) != ""
        if not completion.truncated and not ended_in_text and completion.tokens[-1] not in specials:
            return False
    return True


def _groups_of_ids(prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> list[Group]:
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
