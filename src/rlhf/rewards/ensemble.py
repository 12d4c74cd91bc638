"""Ensembles: several judges of the same quality combined to one score."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rlhf.config.learned_rewards import Combine
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError, RewardError, check_type, look_up
from rlhf.rewards.composite import Component, ask_components, distinct_names, standardized
from rlhf.rewards.types import CompletionLike, OnError, Scorer, ScoreResult, sample_name

COMBINATIONS: dict[str, str] = {
    "mean": "the mean over the judges",
    "min": "the lowest score of the judges",
    "median": "the median over the judges",
    "mean_minus_std": "the mean, minus the deviation between the judges",
}


def combine_scores(each: Tensor, *, how: Combine, std_coef: float = 1.0) -> Tensor:
    """One score of each completion from those of K judges, on one scale.

        mean             sum / K
        min              the smallest                      ("worst-case optimization")
        median           the middle one, or between the two middle ones
        mean_minus_std   mean - std_coef * deviation over the judges, divided by K and not K - 1

    A policy finds what one judge overrates; all but the mean take back what the judges do not agree on.

    Sources: Coste et al. 2023, section 3, arXiv:2310.02743 (there with the variance in place of the deviation);
    Eisenstein et al. 2023, section 4, arXiv:2312.09244 (mean, median, min, mean minus deviation).

    Args:
        each: [K, S].
        how: One of ``COMBINATIONS``.
        std_coef: For ``mean_minus_std`` only.

    Returns:
        [S].

    Raises:
        UnknownNameError: No combination has this name.
    """
    look_up(COMBINATIONS, how, kind="combination of scores")
    match how:
        case "min":
            return each.amin(0)
        case "median":
            return each.quantile(0.5, dim=0)  # torch's own median is the lower of two
        case "mean_minus_std":
            return each.mean(0) - std_coef * each.std(0, correction=0)
    return each.mean(0)


class EnsembleReward:
    """Judges of the same thing, combined for each sample; the deviation between them is in the metrics.

    A judge that returns None for a sample is left out there; a sample that none judges is an error, as is one on which
    any of them fails. Reward models come with scores of deviation 1; others are brought to one scale by ``normalize``.
    """

    def __init__(
        self,
        scorers: Sequence[Scorer],
        *,
        combine: Combine = "mean_minus_std",
        std_coef: float = 1.0,
        normalize: bool = False,
        name: str = "ensemble",
        on_error: OnError = "raise",
    ) -> None:
        """Combine judges.

        Args:
            scorers: At least two; equal names are distinguished by a number.
            combine: One of ``COMBINATIONS``.
            std_coef: For ``mean_minus_std``: weight of the deviation.
            normalize: Shift and scale each judge's scores to mean 0 and deviation 1 over each call, before.
            name: What metrics and errors call the result; the deviation is ``<name>_std``.
            on_error: ``report`` puts a sample that none judges into the result's ``errors`` instead of raising; the
                judges each have their own setting.

        Raises:
            ConfigError: There are fewer than two, or these are no scorers.
        """
        check_type(scorers, (list, tuple), name="scorers", expected="a list of scorers, such as LearnedReward(folder)")
        if len(scorers) < 2:
            raise ConfigError(
                f"An ensemble of {len(scorers)} has no disagreement to measure; give at least two rewards."
            )
        look_up(COMBINATIONS, combine, kind="combination of scores")
        self.components = [Component(scorer=scorer, normalize=normalize) for scorer in scorers]
        self.names = distinct_names([scorer.name for scorer in scorers])
        self.combine: Combine = combine
        self.std_coef = std_coef
        self.on_error = on_error
        self._name = name

    @property
    def name(self) -> str:
        """What metrics and errors call it."""
        return self._name

    def score(self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> ScoreResult:
        """Judge each completion.

        Raises:
            RewardError: From a judge, or because none applies to a sample.
        """
        asked = ask_components(self.names, self.components, prompts, completions)
        errors = dict(asked.errors)
        sound = [
            [None if place in errors else verdict for place, verdict in enumerate(verdicts)]
            for verdicts in asked.verdicts.values()
        ]
        if self.components[0].normalize:
            sound = [standardized(verdicts) for verdicts in sound]
        scores: list[float] = []
        spread: list[float | None] = []
        for place, of_row in enumerate(zip(*sound, strict=True)):
            said = [verdict for verdict in of_row if verdict is not None]
            if not said and place not in errors:
                errors[place] = f"no reward applies to it: {', '.join(self.names)} all returned None"
                if self.on_error == "raise":
                    name = sample_name(prompts[place], completions[place])
                    raise RewardError(f"Sample {name} has no reward: {errors[place]}.")
            if not said:
                scores.append(math.nan)
                spread.append(None)
                continue
            each = torch.tensor(said, dtype=torch.float64)[:, None]
            scores.append(float(combine_scores(each, how=self.combine, std_coef=self.std_coef)))
            spread.append(float(each.std(correction=0)))
        parts = {**asked.parts, f"{self.name}_std": spread}
        return ScoreResult(scores, parts, errors)

    def close(self) -> None:
        """End the processes of the judges."""
        for component in self.components:
            close = getattr(component.scorer, "close", None)
            if close is not None:
                close()
