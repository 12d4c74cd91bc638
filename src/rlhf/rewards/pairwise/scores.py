"""A judge that scores each completion by itself: the higher score is better, and the order can't matter."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError
from rlhf.rewards.functions import FunctionReward
from rlhf.rewards.pairwise.templates import HIGHEST_GRADE, LOWEST_GRADE, as_text
from rlhf.rewards.pairwise.votes import OnVote, Pair, Vote, told
from rlhf.rewards.types import Scorer, TextCompletion, ask_scorer

SCORES_AT_ONCE = 256


class ScoreJudge:
    """Compares by scores.

    Args:
        scorer: Anything that scores completions.
        identity: All that decides its scores.
        tie_band: Scores this close are a tie.
        name: What results call it.
        scores_are_grades: Whether they have a scale that means the same everywhere.
    """

    symmetric = True

    def __init__(
        self,
        scorer: Scorer,
        *,
        identity: Mapping[str, Any],
        tie_band: float = 0.0,
        name: str | None = None,
        scores_are_grades: bool = True,
    ) -> None:
        self.scores_are_grades = scores_are_grades
        self.scorer = scorer
        self.tie_band = tie_band
        self.name = name or scorer.name
        self.identity = {**identity, "tie_band": tie_band}

    def with_tie_band(self, tie_band: float) -> ScoreJudge:
        """The same with another band.

        Raises:
            ConfigError: It is below 0.
        """
        if not tie_band >= 0:
            raise ConfigError(f"The tie band is {tie_band}; give 0 or more, in units of the judge's score.")
        return ScoreJudge(
            self.scorer,
            identity=self.identity,
            tie_band=tie_band,
            name=self.name,
            scores_are_grades=self.scores_are_grades,
        )

    def grading(self) -> ScoreGrades:
        """Its scores as grades.

        Raises:
            ConfigError: Its scores have no scale, as those of a reward model.
        """
        if not self.scores_are_grades:
            raise ConfigError(
                f"The scores of the judge {self.name} have no scale and are no grades; ask a judge that grades."
            )
        return ScoreGrades(self)

    def votes(self, pairs: Sequence[Pair], on_vote: OnVote | None = None) -> list[Vote]:
        """A verdict on each pair, in the order given.

        Raises:
            RewardError: A completion has no score, where the scorer was not built to report that.
        """
        prompts = _prompts(pairs)
        first = self.scores(prompts, [TextCompletion(pair.first, not pair.ended[0]) for pair in pairs])
        second = self.scores(prompts, [TextCompletion(pair.second, not pair.ended[1]) for pair in pairs])
        return told([self._vote(*both) for both in zip(first, second, strict=True)], on_vote)

    def scores(self, prompts: Sequence[Prompt], completions: Sequence[TextCompletion]) -> list[tuple[float, str]]:
        """Score, or NaN and why."""
        scores: list[tuple[float, str]] = []
        for start in range(0, len(prompts), SCORES_AT_ONCE):
            part = slice(start, start + SCORES_AT_ONCE)
            result = ask_scorer(self.scorer, prompts[part], completions[part])
            scores += [(score, result.errors.get(place, "")) for place, score in enumerate(result.scores)]
        return scores

    def _vote(self, first: tuple[float, str], second: tuple[float, str]) -> Vote:
        difference = first[0] - second[0]
        if not math.isfinite(difference):
            return Vote(first=None, reason=first[1] or second[1] or "a score is not finite")
        if abs(difference) <= self.tie_band:
            return Vote(first=0.5, said=f"{first[0]:.6g} to {second[0]:.6g}")
        return Vote(first=1.0 if difference > 0 else 0.0, said=f"{first[0]:.6g} to {second[0]:.6g}")


class ScoreGrades:
    """Scores of first completions as grades: one out of 1 to 10 is no grade, and missing.

    Args:
        judge: Whose scores.
    """

    symmetric = True

    def __init__(self, judge: ScoreJudge) -> None:
        self.judge = judge
        self.name = judge.name
        self.identity: Mapping[str, Any] = {**judge.identity, "grades": True}

    def votes(self, pairs: Sequence[Pair], on_vote: OnVote | None = None) -> list[Vote]:
        """A grade of the first completion of each pair, as ``Vote.first``.

        Raises:
            RewardError: A completion has no score, where the scorer was not built to report that.
        """
        said = [TextCompletion(pair.first, not pair.ended[0]) for pair in pairs]
        return told(
            [self._grade(*score_and_reason) for score_and_reason in self.judge.scores(_prompts(pairs), said)], on_vote
        )

    def _grade(self, score: float, why: str) -> Vote:
        if LOWEST_GRADE <= score <= HIGHEST_GRADE:
            return Vote(first=score)
        outside = f"{score:g} is no grade from {LOWEST_GRADE:g} to {HIGHEST_GRADE:g}"
        return Vote(first=None, reason=why or ("a score is not finite" if math.isnan(score) else outside))


def _prompts(pairs: Sequence[Pair]) -> list[Prompt]:
    return [
        Prompt(
            f"number {place}", [], as_text(pair.prompt),
            messages=None if isinstance(pair.prompt, str) else list(pair.prompt), columns=dict(pair.columns),
        )
        for place, pair in enumerate(pairs)
    ]  # fmt: skip


def scorer_of(
    function: Callable[..., Any], *, name: str | None = None, arguments: Mapping[str, Any] | None = None
) -> Scorer:
    """A function of the standard signature as a scorer; of verdicts that are mappings their ``score``."""

    @functools.wraps(function)
    def scores(*args: Any, **columns: Any) -> Any:
        verdicts = function(*args, **columns)
        if isinstance(verdicts, list | tuple):
            return [verdict.get("score") if isinstance(verdict, Mapping) else verdict for verdict in verdicts]
        return verdicts

    return FunctionReward(scores, name=name, arguments=arguments, in_process=True)
