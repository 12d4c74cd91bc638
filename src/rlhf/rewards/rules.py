"""Formatting heuristics as a reward that needs no data: a baseline, and an example of how easily such rewards are gamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlhf.config.rule_rewards import RulesRewardConfig
from rlhf.data.contracts import Prompt
from rlhf.rewards.functions import FunctionReward
from rlhf.rewards.types import CompletionLike, RewardContext, ScoreResult

SENTENCE_ENDS = frozenset(".!?…。！？")  # noqa: RUF001
CLOSERS = "\"'”’»)]}*_"
"""Quotes, brackets and Markdown marks that may follow the end of a sentence."""


class RuleBasedReward:
    """Length near a target, capital at the start, punctuation at the end.

        score = capital + punctuation - length_weight * |words - target| / target

    It has the standard signature too, so it can be called as a reward function.
    """

    def __init__(
        self,
        *,
        target_words: int = 200,
        length_weight: float = 1.0,
        capital_weight: float = 0.5,
        punctuation_weight: float = 0.5,
        name: str = "rules",
    ) -> None:
        """Choose the weights.

        Args:
            target_words: The length, in words between white space, that costs nothing.
            length_weight: Lost at 0 words, or at twice the target, and in proportion.
            capital_weight: Given for a first letter that is a capital.
            punctuation_weight: Given for a text that ends like a sentence.
            name: What metrics and errors call it.
        """
        self.target_words = target_words
        self.length_weight = length_weight
        self.capital_weight = capital_weight
        self.punctuation_weight = punctuation_weight
        self.name = name
        self._scorer = FunctionReward(self, name=name, in_process=True)

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        """One number for each completion; the prompts do not matter."""
        return [self.judge(completion_text(completion)) for completion in completions]

    def judge(self, text: str) -> float:
        """The score of one text."""
        distance = abs(len(text.split()) - self.target_words) / self.target_words
        score = -self.length_weight * distance
        if starts_with_capital(text):
            score += self.capital_weight
        if ends_like_a_sentence(text):
            score += self.punctuation_weight
        return score

    def score(self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> ScoreResult:
        """Judge each completion."""
        return self._scorer.score(prompts, completions)


def build_rules(spec: RulesRewardConfig, at: RewardContext) -> RuleBasedReward:
    """Heuristics of form."""
    return RuleBasedReward(
        target_words=spec.target_words,
        length_weight=spec.length_weight,
        capital_weight=spec.capital_weight,
        punctuation_weight=spec.punctuation_weight,
        name=spec.name or "rules",
    )


def starts_with_capital(text: str) -> bool:
    """Whether the first letter is a capital; quotes, digits and white space before it do not count."""
    first = next((character for character in text if character.isalpha()), "")
    return first.isupper()


def ends_like_a_sentence(text: str) -> bool:
    """Whether the last character, apart from closing quotes and brackets, ends a sentence."""
    return text.rstrip().rstrip(CLOSERS)[-1:] in SENTENCE_ENDS


def completion_text(completion: Any) -> str:
    """The text of a completion, be it plain or a list of messages."""
    if isinstance(completion, str):
        return completion
    return "\n".join(message["content"] for message in completion)
