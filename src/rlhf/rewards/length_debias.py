"""A reward less what length alone explains of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError, RewardError, require
from rlhf.rewards.composite import Component
from rlhf.rewards.types import CompletionLike, Scorer, ScoreResult, ask_scorer

MIN_COMPLETIONS = 16
"""Fewer than this have no regression on their lengths."""
FRAC = 2 / 3
"""Share of the completions that each local line is fitted to; that of Cleveland 1979."""


def length_debiased(scores: ArrayLike, lengths: ArrayLike, *, frac: float = FRAC) -> NDArray[np.float64]:
    """Scores less a local regression (LOWESS) of them on log length, with their mean as it was.

        debiased_i = score_i - fit(log length_i) + mean(fit)

    A reward model that likes length likes every long completion; what it says of completions of one length stays. Where longer ones are
    really better, that is taken out, too. Where a share ``frac`` of the lengths is one length, the fit is one line for all.

    Source: Huang et al. 2024, arXiv:2409.17407; LOWESS: Cleveland 1979, by statsmodels.

    Args:
        scores: [n] finite.
        lengths: [n] above 0, in any unit.
        frac: Share of the completions that each local line is fitted to.

    Returns:
        [n].

    Raises:
        ConfigError: There are fewer than ``MIN_COMPLETIONS``, or a length is not above 0.
    """
    y, x = np.asarray(scores, dtype=np.float64), np.asarray(lengths, dtype=np.float64)
    if len(y) != len(x) or len(y) < MIN_COMPLETIONS or not (x > 0).all():
        raise ConfigError(
            f"A regression of scores on length needs at least {MIN_COMPLETIONS} completions with lengths above 0; got {len(y)} scores and "
            f"{len(x)} lengths from {x.min() if len(x) else 'none'} on."
        )
    if np.ptp(x) == 0:
        return y.copy()
    logs = np.log(x)
    line = np.polyval(np.polyfit(logs, y, 1), logs)
    if np.unique(logs, return_counts=True)[1].max() >= int(frac * len(y)):
        return (
            y - line + line.mean()
        )  # a window of one length has no line: statsmodels gives it the score of its first completion
    lowess = require("statsmodels.nonparametric.smoothers_lowess", extra="eval", needed_for="A length-debiased reward")
    with np.errstate(divide="ignore", invalid="ignore"):
        smooth: NDArray[Any] = lowess.lowess(y, logs, frac=frac, return_sorted=False)
    fit = smooth if np.isfinite(smooth).all() else line
    return y - fit + fit.mean()


class LengthDebiasedReward:
    """A scorer whose scores lose what length explains, over the completions of each call (in training: of each rollout).

    The raw scores stay a metric.

    Args:
        scorer: Whose scores.
        name: What metrics and errors call the result.
    """

    def __init__(self, scorer: Scorer, *, name: str | None = None) -> None:
        require("statsmodels", extra="eval", needed_for="A length-debiased reward")
        self.components = [Component(scorer=scorer)]
        self._name = name or f"{scorer.name}_debiased"

    @property
    def scorer(self) -> Scorer:
        """Whose scores."""
        return self.components[0].scorer

    @property
    def name(self) -> str:
        """What metrics and errors call it."""
        return self._name

    def score(self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> ScoreResult:
        """Judge each completion.

        Raises:
            RewardError: From the scorer, or there are too few completions.
        """
        result = ask_scorer(self.scorer, prompts, completions)
        kept = [place for place in range(len(completions)) if place not in result.errors]
        if len(kept) < MIN_COMPLETIONS:
            raise RewardError(
                f"The reward {self.name} was asked about {len(kept)} completions, and a regression on length needs at least "
                f"{MIN_COMPLETIONS} at a time: ask more prompts in a rollout, or leave length_debias out."
            )
        lengths = [max(1, len(completions[place].text)) for place in kept]
        debiased = length_debiased([result.scores[place] for place in kept], lengths)
        scores = [math.nan] * len(completions)
        for place, score in zip(kept, debiased.tolist(), strict=True):
            scores[place] = score
        raw = [None if place in result.errors else score for place, score in enumerate(result.scores)]
        return replace(
            result,
            scores=scores,
            per_component={**result.per_component, self.scorer.name: raw, self.name: _said(scores)},
        )

    def close(self) -> None:
        """End the scorer's processes."""
        close = getattr(self.scorer, "close", None)
        if close is not None:
            close()


def _said(scores: Sequence[float]) -> list[float | None]:
    return [None if math.isnan(score) else score for score in scores]
