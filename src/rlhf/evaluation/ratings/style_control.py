"""How much of a win is length and formatting: Bradley-Terry with differences of style, and a length-controlled win rate.

Both answer "what if the two completions looked alike", and both extrapolate where they never did. Report them next to the
raw numbers, not in their place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from rlhf.data.message_text import counted
from rlhf.errors import ConfigError, DataError, require
from rlhf.evaluation.intervals import CONFIDENCE, Array, Estimate, check_confidence, finite_or_none, share_interval
from rlhf.evaluation.ratings.bradley_terry import fit_matches
from rlhf.evaluation.ratings.fitted import Ratings
from rlhf.evaluation.ratings.matches import Match, Matches
from rlhf.formatting import percentage

REGULARIZATION = 0.5
"""Of Arena's fit, on strengths in factors of ten of the odds and on coefficients."""
MIN_OVERLAP = 0.05
"""Share of prompts on which each of two systems must be the longer one, or their win rate at equal length is a guess."""
STRENGTHS_TRIED = np.logspace(-4, 4, 10)
"""Inverse L1 penalties, those of scikit-learn's ``LogisticRegressionCV``."""
NUM_FOLDS = 5
RESAMPLES = 200
Rows = NDArray[np.signedinteger[Any]]
FENCE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
ELEMENTS = {
    "headers": re.compile(r"^#{1,6}\s", re.MULTILINE),
    "lists": re.compile(r"^\s*(?:[-*+]|\d+\.)\s", re.MULTILINE),
    "bold": re.compile(r"\*\*[^*\n]+\*\*|__[^_\n]+__"),
}


def style_of(text: str) -> dict[str, int]:
    """Words, and headers, list items and bold phrases of Markdown outside of code blocks."""
    prose = FENCE.sub("", text)
    return {"words": len(text.split()), **{name: len(pattern.findall(prose)) for name, pattern in ELEMENTS.items()}}


def style_differences(first: Sequence[Mapping[str, float]], second: Sequence[Mapping[str, float]]) -> dict[str, Array]:
    """Differences of style as Arena takes them: (a - b) / (a + b + 1), centered, in units of their standard deviation.

    Source: lm-sys/FastChat, ``fastchat/serve/monitor/rating_systems.py``, ``preprocess_for_style``.

    Args:
        first: [M] ``style_of`` the first system's completions, or other counts by the same names.
        second: [M] of the second's.

    Returns:
        Name -> [M]; a style in which no two completions differ is left out, since nothing can be learned of it.
    """
    differences = {}
    for name in first[0] if first else ():
        a, b = (np.array([style[name] for style in styles], dtype=np.float64) for styles in (first, second))
        difference = (a - b) / (a + b + 1)
        if np.ptp(difference) > 0:
            differences[name] = (difference - difference.mean()) / difference.std()
    return differences


def style_controlled_ratings(
    matches: Iterable[Match],
    first_style: Sequence[Mapping[str, float]],
    second_style: Sequence[Mapping[str, float]],
    *,
    regularization: float = REGULARIZATION,
    confidence: float = CONFIDENCE,
) -> Ratings:
    """Bradley-Terry strengths at equal style: the logit of a win is th_a - th_b + x . beta.

    The squares of beta and of the strengths in factors of ten (th / ln 10) are penalized by half of ``regularization``. Unlike
    Arena's code, matches that do not say how far systems are apart are refused first: the penalty would hide it.

    Sources: Li et al. 2024, "Does style matter?" (LMSYS blog); FastChat, ``fit_contextual_bt``.

    Args:
        matches: As in ``bradley_terry_ratings``; ties are half.
        first_style: [M] ``style_of`` the first system's completions.
        second_style: [M] of the second's.
        regularization: 0.5 is Arena's.
        confidence: Of the intervals, which leave out the bias of the penalty.
    """
    table = Matches.of(matches)
    if not len(first_style) == len(second_style) == len(table.outcome):
        raise DataError(
            f"Give the style of both completions of each of {len(table.outcome)} matches; got {len(first_style)} and {len(second_style)}."
        )
    differences = style_differences(first_style, second_style)
    penalty = (regularization / math.log(10) ** 2, regularization)
    return fit_matches(table, style=differences, penalty=penalty, confidence=confidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthControlled:
    """A win rate at equal length, next to the raw one."""

    rate: Estimate
    raw: Estimate
    length_effect: float
    """Coefficient of tanh of the standardized length difference, log-odds for the longer one; NaN where there is no rate."""
    longer_frac: float
    """Share of prompts on which the system's completion is the longer one; NaN without prompts."""
    moved_far: bool
    """Whether the rate moved by more than 10 points and by more than a quarter of the way to 0 or 1: a sign that the fit failed."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "rate": self.rate.to_dict(), "raw": self.raw.to_dict(),
            "length_effect": finite_or_none(self.length_effect), "longer_frac": finite_or_none(self.longer_frac),
            "moved_far": self.moved_far,
        }  # fmt: skip


def length_controlled_win_rate(
    outcomes: ArrayLike,
    lengths: ArrayLike,
    baseline_lengths: ArrayLike,
    *,
    seed: int,
    difficulty: ArrayLike | None = None,
    confidence: float = CONFIDENCE,
    num_resamples: int = RESAMPLES,
) -> LengthControlled:
    """AlpacaEval's win rate at equal length.

        logit P(win) = theta + phi tanh((length - baseline length) / sd) + psi difficulty
        rate = mean s(theta + psi difficulty)

    L1-penalized logistic regression without a further intercept, its penalty chosen by 5-fold cross-validation; outcomes
    between 0 and 1 count as a win and a loss with those weights. The two "gamed" baselines that AlpacaEval adds to its
    data are not added here. The interval is a percentile bootstrap over prompts at the penalty that was chosen, and a little
    narrow: 92 % of those at 95 % hold the truth with 500 prompts.

    Source: Dubois et al. 2024, "Length-Controlled AlpacaEval", arXiv:2404.04475; tatsu-lab/alpaca_eval ``metrics/glm_winrate.py``.

    Args:
        outcomes: [n] 1 where the system wins, 0 where the baseline does, or between; one for each prompt.
        lengths: [n] characters of the system's completions.
        baseline_lengths: [n] of the baseline's.
        seed: A named seed, of the bootstrap.
        difficulty: [n] of each prompt, fitted on other systems; None for one's own prompts.
        confidence: Of the intervals.
        num_resamples: Of the bootstrap.

    Returns:
        The rate is missing where one of the two is the longer one on fewer than 5 % of prompts, all outcomes are equal, or there are too few
        prompts.
    """
    check_confidence(confidence)
    y, mine, theirs = (np.asarray(values, dtype=np.float64) for values in (outcomes, lengths, baseline_lengths))
    if not (y.ndim == 1 and y.shape == mine.shape == theirs.shape):
        raise ConfigError(
            f"Give an outcome and two lengths for each prompt; got {y.shape}, {mine.shape} and {theirs.shape}."
        )
    raw = share_interval(y, confidence=confidence)
    difference = mine - theirs
    longer, shorter = (float(np.mean(side)) if y.size else math.nan for side in (difference > 0, difference < 0))
    reason = raw.reason
    if not reason and (unknown := int((~np.isfinite(difference)).sum())):
        reason = f"{counted(unknown, 'prompt')} of {y.size} without a length; leave them out, and report how many"
    elif not reason and y.size < 10 * NUM_FOLDS:
        reason = f"{counted(y.size, 'prompt')}; it takes {10 * NUM_FOLDS}"
    elif not reason and np.ptp(y) == 0:
        reason = "every prompt has the same outcome, and an interval of resampled prompts would have no width"
    elif not reason and min(longer, shorter) < MIN_OVERLAP:
        reason = (
            f"the system's completion is longer on {percentage(longer)} and shorter on {percentage(shorter)} of prompts; at equal length "
            "nothing was seen"
        )
    if reason:
        return LengthControlled(
            rate=Estimate.missing(reason, n=y.size),
            raw=raw,
            length_effect=math.nan,
            longer_frac=longer,
            moved_far=False,
        )
    hard = None if difficulty is None else np.asarray(difficulty, dtype=np.float64)
    fit = _LengthFit.of(y, difference, hard)
    rate, effect = fit.rate(np.arange(y.size))
    rng = np.random.default_rng(seed)
    draws = [fit.rate(rng.integers(0, y.size, y.size))[0] for _ in range(num_resamples)]
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    room = (1 - raw.value if rate > raw.value else raw.value) / 4
    return LengthControlled(
        rate=Estimate(value=rate, low=float(low), high=float(high), n=y.size, confidence=confidence),
        raw=raw,
        length_effect=effect,
        longer_frac=longer,
        moved_far=abs(rate - raw.value) > max(0.1, room),
    )


@dataclass(frozen=True, slots=True)
class _LengthFit:
    """Features of each prompt, and the penalty that cross-validation chose."""

    y: Array
    features: Array
    """[n, 2 or 3] tanh of the length difference, 1, and the difficulty."""
    strength: float

    @classmethod
    def of(cls, y: Array, difference: Array, difficulty: Array | None) -> _LengthFit:
        columns = [np.tanh(difference / difference.std(ddof=1)), np.ones_like(y)]
        if difficulty is not None:
            columns.append(difficulty)
        features = np.stack(columns, axis=1)
        fold = np.arange(y.size) % NUM_FOLDS
        losses = []
        for strength in STRENGTHS_TRIED:
            trial = cls(y, features, float(strength))
            loss = 0.0
            for held_out in range(NUM_FOLDS):
                inside, outside = np.flatnonzero(fold != held_out), fold == held_out
                p = np.clip(expit(features[outside] @ trial.coefficients(inside)), 1e-15, 1 - 1e-15)
                loss -= float((y[outside] * np.log(p) + (1 - y[outside]) * np.log(1 - p)).mean())
            losses.append(loss)
        return cls(y, features, float(STRENGTHS_TRIED[int(np.argmin(losses))]))

    def coefficients(self, rows: Rows) -> Array:
        """[2 or 3] of a fit to some prompts; each is a win and a loss with weights y and 1 - y."""
        require("sklearn", extra="eval", needed_for="The length-controlled win rate")
        linear = import_module("sklearn.linear_model")
        y, x = self.y[rows], self.features[rows]
        label = np.concatenate([np.ones(len(y)), np.zeros(len(y))])
        weight = np.concatenate([y, 1 - y])
        used = weight > 0
        if len(set(label[used].tolist())) < 2:  # all won, or all lost: no finite fit without the penalty
            return np.array([0.0, math.inf if label[used][0] else -math.inf, *[0.0] * (x.shape[1] - 2)])
        model = linear.LogisticRegression(
            l1_ratio=1, solver="liblinear", C=self.strength, fit_intercept=False, random_state=0, tol=1e-6, max_iter=1000
        )  # fmt: skip
        model.fit(np.concatenate([x, x])[used], label[used], sample_weight=weight[used])
        return np.asarray(model.coef_[0], dtype=np.float64)

    def rate(self, rows: Rows) -> tuple[float, float]:
        """At equal length, over the drawn prompts; and the effect of length."""
        coefficients = self.coefficients(rows)
        return float(expit(self.features[rows][:, 1:] @ coefficients[1:]).mean()), float(coefficients[0])
