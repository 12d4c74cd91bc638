"""Samples where they help: a first look at every prompt says how many more each is given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from rlhf.errors import ConfigError
from rlhf.search.answer_key import AnswerOf
from rlhf.search.contract import Ask, Search
from rlhf.search.strategies.votes_on_answers import tally

By = Literal["gap", "disagreement"]


class AdaptiveComputeAllocator:
    """Divides samples among prompts in proportion to their difficulty.

    ``gap`` is what the best score so far lacks of the highest possible one: 1 where all scores lie in [0, 1], else the best score of any
    prompt. ``disagreement`` is one less the share of the commonest answer. On the reasoning world the gap helps and disagreement harms
    (docs/results/search.md): samples that agree are often wrong together, and more are given to prompts that are right already.

    Args:
        by: How difficulty is estimated.
        max_samples: The most that one prompt is given.
    """

    def __init__(self, by: By = "gap", *, max_samples: int = 64) -> None:
        if by not in ("gap", "disagreement"):
            raise ConfigError(f"by is {by!r}; expected gap or disagreement.")
        if max_samples < 1:
            raise ConfigError(f"max_samples is {max_samples}; wanted 1 or more.")
        self.by, self.max_samples = by, max_samples

    def difficulties(self, looks: Sequence[Sequence[float]] | Sequence[Sequence[str | None]]) -> list[float]:
        """[P] from the first samples of each prompt: their scores for ``gap``, their answers for ``disagreement``; 0 is easiest."""
        if self.by == "gap":
            best = [
                max((float(score) for score in look if isinstance(score, int | float)), default=-math.inf)
                for look in looks
            ]
            known = [score for score in best if math.isfinite(score)]
            bounded = all(0 <= score <= 1 for score in known)
            highest = 1.0 if bounded else max(known)
            lowest = min(known, default=0.0)
            return [highest - (score if math.isfinite(score) else lowest) for score in best]
        return [_disagreement([answer for answer in look if not isinstance(answer, float)]) for look in looks]

    def allocate(self, difficulties: Sequence[float], total: int) -> list[int]:
        """[P] samples of each prompt, which sum to ``total`` unless ``max_samples`` forbids it; remainders go to the largest.

        Args:
            difficulties: [P] 0 or more; all 0 is an even division.
            total: To divide.
        """
        if any(not math.isfinite(value) or value < 0 for value in difficulties):
            raise ConfigError("A difficulty is below 0 or not finite; give numbers of 0 or more.")
        shares = [0] * len(difficulties)
        weights = list(difficulties) if sum(difficulties) > 0 else [1.0] * len(difficulties)
        total = min(total, self.max_samples * len(shares))
        open_places = [place for place, weight in enumerate(weights) if weight > 0]
        while (left := total - sum(shares)) > 0:
            open_places = [place for place in open_places if shares[place] < self.max_samples]
            if not open_places:  # the difficult ones are full: the others, in order
                open_places = [place for place in range(len(shares)) if shares[place] < self.max_samples]
                weights = [1.0] * len(shares)
            whole = sum(weights[place] for place in open_places)
            exact = {place: left * weights[place] / whole for place in open_places}
            given = {place: min(int(exact[place]), self.max_samples - shares[place]) for place in open_places}
            if not any(given.values()):
                by_rest = sorted(open_places, key=lambda place: (-exact[place], place))
                given = dict.fromkeys(by_rest[:left], 1)
            for place, count in given.items():
                shares[place] += count
        return shares


def adaptive_compute(
    ask: Ask,
    *,
    by: By = "gap",
    first: int = 2,
    average: int = 8,
    max_samples: int = 32,
    answer_of: AnswerOf | None = None,
) -> Search:
    """Best of N with another N for each prompt: ``first`` samples of all, the rest by difficulty.

    Args:
        ask: The prompt.
        by: As of ``AdaptiveComputeAllocator``.
        first: Samples of the first look.
        average: Of all samples, for each prompt.
        max_samples: The most for one prompt.
        answer_of: What two completions must have in common to be one answer; for ``disagreement``.

    Raises:
        ConfigError: ``average`` leaves nothing to divide, or there is nothing to disagree by.
    """
    if not 1 <= first <= average <= max_samples:
        raise ConfigError(
            f"first, average and max_samples are {first}, {average} and {max_samples}; wanted 1 <= first <= average <= max_samples."
        )
    if by == "disagreement" and answer_of is None:
        raise ConfigError("Disagreement needs to know what two completions have in common; give answer_of.")
    allocator = AdaptiveComputeAllocator(by, max_samples=max(max_samples - first, 1))

    def decide(looks: Sequence[Sequence[float]]) -> list[int]:
        return allocator.allocate(allocator.difficulties(looks), (average - first) * len(looks))

    candidates = yield ask.sample(first)
    scores = yield ask.score(candidates)
    look = scores if by == "gap" or answer_of is None else [answer_of(each.text) for each in candidates]
    more = yield ask.share(look, decide)
    if more:
        new = yield ask.sample(more)
        scores = [*scores, *(yield ask.score(new))]
        candidates = [*candidates, *new]
    return ask.best(candidates, scores)


adaptive_compute.shares_between_prompts = True  # type: ignore[attr-defined]


def _disagreement(answers: Sequence[str | None]) -> float:
    if not answers:
        return 1.0
    votes = tally(answers, [1.0] * len(answers))
    return 1 - max(votes.values(), default=0.0) / len(answers)
