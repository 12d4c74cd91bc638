"""Win rate: how often one policy's completion is judged better than another's for the same prompt."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rlhf.errors import ConfigError
from rlhf.evaluation.comparison import Comparison, compare_completions
from rlhf.evaluation.intervals import CONFIDENCE, Array, finite_or_none, share_interval, unit_means
from rlhf.evaluation.sample_size import more_prompts_for_win_rate
from rlhf.rewards.pairwise.building import build_judge
from rlhf.rewards.pairwise.human_votes import HumanVotes
from rlhf.rewards.pairwise.scores import ScoreJudge


@dataclass(frozen=True, slots=True, kw_only=True)
class WinRate:
    """Share of comparisons that the first system wins, a tie counting half."""

    rate: float
    low: float
    high: float
    wins: int
    losses: int
    ties: int
    n: int
    """Comparisons: wins + losses + ties."""
    num_prompts: int
    """Independent units, on which the interval rests."""
    tie_band: float = 0.0
    """Score differences up to this are ties."""
    confidence: float = CONFIDENCE
    reason: str = ""
    """Why the rate is NaN."""
    more_prompts: int | None = None
    """Beyond ``num_prompts``, to tell the rate from 1/2 if it is the true one; None where the interval does, or nothing could."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON: NaN becomes null, and then there is a reason."""
        fields: dict[str, Any] = {
            "rate": finite_or_none(self.rate),
            "low": finite_or_none(self.low),
            "high": finite_or_none(self.high),
            "wins": self.wins,
            "losses": self.losses,
            "ties": self.ties,
            "n": self.n,
            "num_prompts": self.num_prompts,
            "tie_band": self.tie_band,
            "confidence": self.confidence,
            "more_prompts": self.more_prompts,
        }
        return fields | ({"reason": self.reason} if self.reason else {})

    def __str__(self) -> str:
        if not math.isfinite(self.rate):
            return f"not measured: {self.reason}"
        return (
            f"{self.rate:.3f} [{self.low:.3f}, {self.high:.3f}], {self.wins} won, {self.ties} tied, {self.losses} lost"
        )


def win_rate(
    scores_a: ArrayLike,
    scores_b: ArrayLike,
    clusters: Sequence[Hashable] | None = None,
    tie_band: float = 0.0,
    *,
    confidence: float = CONFIDENCE,
) -> WinRate:
    """Win rate of a over b.

        y_i  = 1 if a_i - b_i > band, 0 if a_i - b_i < -band, else 1/2
        rate = mean over prompts of the mean of y over the prompt's samples

    The prompt is the unit of the interval (``share_interval``), because samples of one prompt are alike and ties carry
    less noise than wins and losses. Ties as half a win: the mean of y is then P(a > b) + P(a = b) / 2, the area under
    the ROC curve of the two score distributions.

    Sources: Miller 2024, "Adding Error Bars to Evals", section 2.2 (clusters), arXiv:2411.00640; Wilson 1927.

    Args:
        scores_a: [n] judge's score of each completion of the first system.
        scores_b: [n] of the second, for the same prompts in the same order.
        clusters: [n] the prompt each comparison belongs to; None where each is its own.
        tie_band: Differences up to this are ties, in units of the score. A band on a learned reward changes its meaning
            with the reward's scale.
        confidence: Share of such intervals that hold the truth.

    Returns:
        The rate with its interval; NaN with a reason where nothing was compared or a score is not finite.
    """
    a, b = np.asarray(scores_a, dtype=np.float64), np.asarray(scores_b, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1:
        raise ConfigError(f"A win rate needs one score of each system for each comparison; got {a.size} and {b.size}.")
    if not tie_band >= 0:
        raise ConfigError(f"The tie band is {tie_band}; give 0 or more, in units of the judge's score.")
    y = outcomes(a, b, tie_band)
    per_prompt = unit_means(y, clusters)
    estimate = share_interval(per_prompt, confidence=confidence)
    return WinRate(
        rate=estimate.value,
        low=estimate.low,
        high=estimate.high,
        wins=int((y == 1).sum()),
        losses=int((y == 0).sum()),
        ties=int((y == 0.5).sum()),
        n=len(y),
        num_prompts=len(per_prompt),
        tie_band=float(tie_band),
        confidence=confidence,
        reason=estimate.reason,
        more_prompts=more_prompts_for_win_rate(estimate.value, per_prompt, confidence=confidence)
        if estimate.low <= 0.5 <= estimate.high
        else None,
    )


def outcomes(scores_a: Array, scores_b: Array, tie_band: float = 0.0) -> Array:
    """[n] 1 where a wins, 0 where b does, 1/2 for a tie; NaN where a score is not finite."""
    difference = scores_a - scores_b
    y = np.where(np.abs(difference) <= tie_band, 0.5, (difference > 0).astype(np.float64))
    return np.where(np.isfinite(difference), y, np.nan)


class WinRateEvaluator:
    """Judges two sets of completions of the same prompts and compares them.

        found = WinRateEvaluator("judge.yaml").evaluate(prompts, new, old)
        found.verdict, found.win_rate.low, found.more_prompts

    Args:
        judge: Settings of a judge (``rlhf.config.judges.JudgeConfig``), a file or text that stands for them, a function, a scorer, or a
            judge of pairs.
        tie_band: Scores this close are a tie; only for a judge that scores each completion. None for the judge's own.
        confidence: Share of such intervals that hold the truth.
        cache: File in which verdicts of language models are kept.

    Raises:
        ConfigError: The judge's settings are wrong, or it gives no scores that a tie band could be of.
    """

    def __init__(
        self,
        judge: Any,
        *,
        tie_band: float | None = None,
        confidence: float = CONFIDENCE,
        cache: Path | str | None = None,
    ) -> None:
        self.judge = build_judge(judge, cache=cache)
        if tie_band is not None:
            if not isinstance(self.judge, ScoreJudge):
                raise ConfigError(f"tie_band: the judge {self.judge.name} compares and gives no scores; leave it out.")
            self.judge = self.judge.with_tie_band(tie_band)
        self.confidence = confidence

    def evaluate(
        self,
        prompts: Sequence[Any],
        completions_a: Sequence[str],
        completions_b: Sequence[str],
        *,
        ended_a: Sequence[bool] | None = None,
        ended_b: Sequence[bool] | None = None,
        clusters: Sequence[Hashable] | None = None,
        columns: Mapping[str, Sequence[Any]] | None = None,
        labels: HumanVotes | None = None,
    ) -> Comparison:
        """Which of the two is better; see ``compare_completions``.

        Args:
            prompts: [n] the prompts, one for each comparison.
            completions_a: [n] of the first system.
            completions_b: [n] of the second.
            ended_a: [n] whether each completion came to its own end; by default all did.
            ended_b: [n].
            clusters: [n] the prompt each comparison belongs to; by default equal prompts belong together.
            columns: Further columns for the judge, [n] each.
            labels: Votes of people on some of the pairs.
        """
        return compare_completions(
            prompts, completions_a, completions_b, self.judge, confidence=self.confidence, ended_a=ended_a, ended_b=ended_b,
            columns=columns, clusters=clusters, labels=labels,
        )  # fmt: skip
