"""Sample until the answer is sure enough: easy prompts take few samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from scipy.special import betainc

from rlhf.config.search_strategies import DEFAULT_THRESHOLDS
from rlhf.errors import ConfigError
from rlhf.rollout.types import Completion
from rlhf.search.answer_key import AnswerOf
from rlhf.search.contract import Ask, Search
from rlhf.search.strategies.votes_on_answers import elected, tally

Rule = Literal["vote", "score"]


class ConfidenceBasedStopping:
    """Whether what was sampled so far is enough.

    ``vote`` looks at the two commonest answers, of v1 and v2 samples. With a uniform prior on the share p of the first among the two, its
    posterior is Beta(v1 + 1, v2 + 1), and the search stops at

        P(p > 1/2) = 1 - I_{1/2}(v1 + 1, v2 + 1) >= threshold

    Source: Aggarwal et al. 2023 ("Adaptive-Consistency"), section 3, arXiv:2305.11860. That the vote will not change says nothing about
    whether it is right. ``score`` stops at a completion whose score reaches the threshold.

    Args:
        rule: See above.
        threshold: From 0.5 to 1 for ``vote``; any number for ``score``.
        min_samples: Never stop before.
    """

    def __init__(self, rule: Rule = "vote", *, threshold: float = 0.95, min_samples: int = 2) -> None:
        if rule not in ("vote", "score"):
            raise ConfigError(f"rule is {rule!r}; expected vote or score.")
        if rule == "vote" and not 0.5 <= threshold < 1:
            raise ConfigError(f"threshold is {threshold}; a vote is sure with a probability from 0.5 to below 1.")
        if not math.isfinite(threshold):
            raise ConfigError(f"threshold is {threshold}; wanted a finite number.")
        if min_samples < 1:
            raise ConfigError(f"min_samples is {min_samples}; wanted 1 or more.")
        self.rule, self.threshold, self.min_samples = rule, threshold, min_samples

    def should_stop(self, *, answers: Sequence[str | None] = (), scores: Sequence[float] = ()) -> bool:
        """Decide.

        Args:
            answers: Of the samples so far, for ``vote``; None for one without an answer.
            scores: Of the samples so far, for ``score``.
        """
        seen = answers if self.rule == "vote" else scores
        if len(seen) < self.min_samples:
            return False
        if self.rule == "score":
            return max(scores) >= self.threshold
        return vote_confidence(answers) >= self.threshold


def vote_confidence(answers: Sequence[str | None]) -> float:
    """P(p > 1/2) of ``ConfidenceBasedStopping``; 0.5 where nothing has a vote."""
    counts = sorted(tally(answers, [1.0] * len(answers)).values(), reverse=True)
    first, second = [*counts, 0.0, 0.0][:2]
    return float(1 - betainc(first + 1, second + 1, 0.5))


def confidence_stopping(
    ask: Ask,
    *,
    rule: Rule = "score",
    threshold: float | None = None,
    max_samples: int = 16,
    min_samples: int = 1,
    samples_at_once: int = 1,
    answer_of: AnswerOf | None = None,
) -> Search:
    """Sample until ``ConfidenceBasedStopping`` says so; then best of N (``score``) or majority vote (``vote``).

    Args:
        ask: The prompt.
        rule: As of ``ConfidenceBasedStopping``.
        threshold: Likewise; by default that of the rule, 0.5 for ``score`` and 0.95 for ``vote``.
        max_samples: The cap.
        min_samples: Never stop before.
        samples_at_once: Sampled between two looks.
        answer_of: What two completions must have in common to be one answer; for ``vote``.

    Raises:
        ConfigError: There is nothing to vote by.
    """
    if rule == "vote" and answer_of is None:
        raise ConfigError("A vote needs to know what two completions have in common; give answer_of.")
    limit = DEFAULT_THRESHOLDS[rule] if threshold is None else threshold
    stopping = ConfidenceBasedStopping(rule, threshold=limit, min_samples=min_samples)
    candidates: list[Completion] = []
    scores: list[float] = []
    answers: list[str | None] = []
    while len(candidates) < max_samples:
        new = yield ask.sample(min(samples_at_once, max_samples - len(candidates)))
        candidates += new
        if answer_of is not None:
            answers += [answer_of(each.text) for each in new]
        if rule == "score":
            scores += yield ask.score(new)
        if stopping.should_stop(answers=answers, scores=scores):
            break
    if rule == "vote":
        assert answer_of is not None
        return elected(candidates, [1.0] * len(candidates), answer_of)
    return ask.best(candidates, scores)
