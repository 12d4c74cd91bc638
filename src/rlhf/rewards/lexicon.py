"""Sentiment of a text by a lexicon of human-rated words.

Written for VADER's: 7,520 words and emoticons, each rated from -4 to 4 by ten people. Source: Hutto and Gilbert 2014,
"VADER: a parsimonious rule-based model for sentiment analysis of social media text", ICWSM. Of its rules, negation and
the final normalization are here; its boosters ("very"), capitals, "but" and punctuation are not.
"""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rlhf.config.rule_rewards import LexiconRewardConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import DataError
from rlhf.rewards.functions import FunctionReward
from rlhf.rewards.rules import completion_text
from rlhf.rewards.types import CompletionLike, RewardContext, ScoreResult

COMPOUND_ALPHA = 15.0
"""VADER's: about the largest sum that a sentence was expected to have."""
NEGATION_FACTOR = -0.74
"""How a negated word counts, from the ratings in Hutto and Gilbert's experiment."""
NEGATION_REACH = 3
"""Words before the rated one in which a negation is looked for."""
NEGATIONS = frozenset(
    "no not never none nobody nothing nowhere neither nor cannot without hardly barely scarcely rarely seldom".split()
)
"""And every word that ends in n't."""
SHORT = 2
"""Words of at most so many characters without their punctuation keep it: they may be emoticons."""


class LexiconReward:
    """The valence of the rated words of a completion; 0 where it has none.

    It has the standard signature too, so it can be called as a reward function.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        scale: Literal["mean", "compound"] = "mean",
        negation: bool = True,
        name: str = "lexicon",
    ) -> None:
        """Read a lexicon.

        Args:
            path: Lines of ``word<tab>valence``, further columns ignored: ``vader_lexicon.txt``.
            scale: ``mean`` of the valences, -4 to 4; ``compound``: their sum s as s / sqrt(s^2 + 15), -1 to 1, which
                grows with every further positive word.
            negation: A negation up to three words before turns a valence round, times 0.74.
            name: What metrics and errors call it.

        Raises:
            DataError: The file is absent or a line of it is wrong.
        """
        self.lexicon = read_lexicon(path)
        self.scale = scale
        self.negation = negation
        self.name = name
        self._scorer = FunctionReward(self, name=name, in_process=True)

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        """One number for each completion; the prompts do not matter."""
        return [self.judge(completion_text(completion)) for completion in completions]

    def judge(self, text: str) -> float:
        """The score of one text."""
        valences = self.valences(text)
        if not valences:
            return 0.0
        total = math.fsum(valences)
        if self.scale == "mean":
            return total / len(valences)
        return total / math.sqrt(total * total + COMPOUND_ALPHA)

    def valences(self, text: str) -> list[float]:
        """The valence of each rated word, negation applied, in order."""
        words = [bare_word(word) for word in text.lower().split()]
        valences = []
        for place, word in enumerate(words):
            valence = self.lexicon.get(word)
            if valence is None:
                continue
            before = words[max(0, place - NEGATION_REACH) : place]
            if self.negation and any(map(is_negation, before)):
                valence *= NEGATION_FACTOR
            valences.append(valence)
        return valences

    def score(self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> ScoreResult:
        """Judge each completion."""
        return self._scorer.score(prompts, completions)


def build_lexicon(spec: LexiconRewardConfig, at: RewardContext) -> LexiconReward:
    """A lexicon of rated words."""
    return LexiconReward(spec.path, scale=spec.scale, negation=spec.negation, name=spec.name or "lexicon")


def read_lexicon(path: Path | str) -> Mapping[str, float]:
    """Word -> valence.

    Raises:
        DataError: The file is absent, is not text, is empty, or has a line without a number.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as err:
        raise DataError(f"The lexicon {path} can't be read: {err}.") from None
    words: dict[str, float] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        word, _, rest = line.partition("\t")
        try:
            valence = float(rest.partition("\t")[0])
        except ValueError:
            valence = math.nan
        if not word or not math.isfinite(valence):
            raise DataError(f"{path}:{number} is {line[:60]!r}; wanted a word, a tab and a number.")
        words[word] = valence
    if not words:
        raise DataError(f"The lexicon {path} is empty.")
    return words


def bare_word(word: str) -> str:
    """Without punctuation around it, unless so little is left that it may be an emoticon."""
    bare = word.strip(string.punctuation)
    return bare if len(bare) > SHORT else word


def is_negation(word: str) -> bool:
    """Whether a lower-case word negates what follows; it may carry punctuation if it is short."""
    bare = word.strip(string.punctuation).replace("’", "'")
    return bare in NEGATIONS or bare.endswith("n't")
