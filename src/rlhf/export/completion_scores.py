"""Whose completions a reward model prefers: the original's, or those of what was written."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from typing_extensions import override

from rlhf.data.contracts import Prompt
from rlhf.data.datasets import GRPODataset
from rlhf.data.sources import Source
from rlhf.errors import DataError
from rlhf.evaluation.winrate import win_rate
from rlhf.export.format_writer import OpenedModel
from rlhf.export.source_model import SourceModel
from rlhf.formatting import percentage, signed_number
from rlhf.models.score import context_length
from rlhf.rewards.learned import LearnedReward
from rlhf.rewards.types import TextCompletion
from rlhf.rollout.stopping import eos_ids

COMPLETION_TOKENS = 48
"""Of a greedy completion, at most; where a format has no cache, each is read again for each token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionScores:
    """Greedy completions of the same prompts."""

    reward: str
    prompts: int
    same: int
    """Completions that are the same; they are ties."""
    before: float
    """Mean score of the original's."""
    after: float
    win_rate: float
    """Share of prompts on which the written model's completion scores higher, ties as a half."""
    low: float
    high: float
    """Of its 95 % interval over prompts."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For the console."""
        return [
            f"reward     {signed_number(self.before)} before, {signed_number(self.after)} after: mean of {self.prompts} greedy completions by "
            f"{self.reward}",
            f"win rate   {percentage(self.win_rate)} of the written model over the original ({percentage(self.low)} to "
            f"{percentage(self.high)}); {self.same} of {self.prompts} completions are the same",
        ]


def compare_completions(
    source: SourceModel, opened: OpenedModel, texts: Source, reward: str | Path, *, num_rows: int
) -> CompletionScores:
    """Let both complete prompts, and a reward model score what they say.

    Args:
        source: The original, a language model.
        opened: What was written, read back.
        texts: Rows with prompts.
        reward: Folder or hub name of a reward model.
        num_rows: Most prompts.

    Raises:
        DataError: No row has a prompt.
    """
    longest = (context_length(source.network) or COMPLETION_TOKENS * 4) - COMPLETION_TOKENS
    dataset = GRPODataset(texts, source.tokenizer)
    prompts = [prompt for prompt in itertools.islice(dataset, num_rows) if len(prompt.ids) <= longest]
    if not prompts:
        raise DataError(f"No prompt of the texts leaves room for {COMPLETION_TOKENS} tokens of completion.")
    scorer = LearnedReward(reward)
    before, after = (_completions(model, source, prompts) for model in (_Original(source), opened))
    scores = [np.asarray(scorer.score(prompts, said).scores) for said in (before, after)]
    rate = win_rate(scores[1], scores[0])
    return CompletionScores(
        reward=str(reward), prompts=len(prompts), same=sum(a == b for a, b in zip(before, after, strict=True)),
        before=float(scores[0].mean()), after=float(scores[1].mean()), win_rate=rate.rate, low=rate.low, high=rate.high,
    )  # fmt: skip


class _Original(OpenedModel):
    def __init__(self, source: SourceModel) -> None:
        self._source = source

    @override
    def outputs(self, row: Sequence[int]) -> Tensor:
        return self._source.outputs(row)


def _completions(model: OpenedModel, source: SourceModel, prompts: Sequence[Prompt]) -> list[TextCompletion]:
    tokenizer: Any = source.tokenizer
    ends = set(eos_ids(source.network, source.tokenizer))
    completions = []
    for tokens in model.greedy([prompt.ids for prompt in prompts], COMPLETION_TOKENS):
        own = list(itertools.takewhile(lambda token: token not in ends, tokens))
        text = tokenizer.decode(own, skip_special_tokens=True)
        completions.append(TextCompletion(text, truncated=len(own) == len(tokens)))
    return completions
