"""What a loss declares that recipes choose by name: the function that computes it, and which settings belong to it.

A formula is named by text, ``module:function`` below ``rlhf``, so that reading settings loads no torch. The code of the formula that a
stage uses is part of the stage's key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Formula:
    """A loss: the choice of a setting such as ``loss``."""

    function: str
    """``module:function`` below ``rlhf``; what it takes and gives is said by the kind of formula."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Further keywords of the function -> the setting that each has the value of; ``name.0`` is the first of several values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFormula(Formula):
    """A loss on pairs against a reference: a choice of ``loss`` of ``kind: dpo``.

    The function takes the summed log-probabilities of chosen and rejected completions under the policy, then those under the
    reference, ``[P]`` each, and ``beta`` by keyword; gives ``[P]`` losses.
    """

    options: tuple[str, ...] = ()
    """Further settings that belong to this loss: they change what the trainer hands to the function."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """Settings that must be above 0 -> why, in words that follow the loss's name."""
    sees_margin_only: bool = False
    """Whether a pair is seen only by its margin; then another divergence than reverse KL, or no reference, may be used."""
    compares_pairs: bool = False
    """Whether the pairs of a step are compared with each other, so that all of them are needed at once."""

    @property
    def settings(self) -> tuple[str, ...]:
        """Settings that belong to this loss, or to it and a few others."""
        return (*self.arguments.values(), *self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFormula(Formula):
    """A loss on sampled tokens: a choice of ``policy_loss``.

    The function takes those of ``logprobs``, ``old_logprobs``, ``advantages`` [M] and ``score_seq`` (int64 [M], the completion of each
    token) that its parameters are called; gives ``[M]`` losses.
    """

    clips: Literal["gradient", "weight"] | None = None
    """What is held at the bounds ``clip_low`` and ``clip_high``: whether a token has a gradient, or its weight; None without bounds."""
    has_ratio: bool = True
    """Whether a token counts by how much likelier the policy has become to write it; without, only one step a rollout is right."""
    sequence_ratio: Literal["mean", "token"] | None = None
    """For one ratio for a whole completion: its kind (``how`` of ``rlhf.losses.sequence_log_ratios``, which the function gets, too);
    None where each token has its own."""

    @property
    def settings(self) -> frozenset[str]:
        """Settings that belong to this loss, or to it and a few others."""
        return frozenset(name.partition(".")[0] for name in self.arguments.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFormula(Formula):
    """A loss on the tokens of demonstrations: a choice of ``loss`` of ``kind: sft``.

    The function takes those of ``logprobs`` and ``mean_logprobs`` ([M], the mean over the vocabulary) that its parameters are called;
    gives ``[M]`` losses.
    """

    smoothed: Formula | None = None
    """Computed in its place where ``label_smoothing`` is above 0; None for a loss that has no such form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictFormula(Formula):
    """A loss on single completions that are good or bad: a choice of ``loss`` of ``kind: kto``.

    The function takes the summed log-probabilities of completions under policy and reference and whether each is good, ``[S]`` each;
    ``beta`` and what ``compares_with`` says by keyword; gives ``[S]`` losses.
    """

    compares_with: Literal["reference_point", "shift"]
    """Where good and bad are divided: KTO's reference point in nats, found as the setting ``reference_point`` says; or a shift in units
    of the implicit reward, a running average over both kinds of completions."""


JudgedRows = Literal["preference", "comparison", "ranking", "rating", "kto"]
"""Rows that a reward model learns from; keys of ``rlhf.data.plans.PLANS``."""
Learned = Literal["margins", "threshold", "tie_weight", "offset"]
"""Numbers that a loss of a reward model learns in addition to the scores, see ``rlhf.models.learned_scalars``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgmentFormula(Formula):
    """A loss on scores: a choice of ``loss`` of ``kind: reward``. What the function takes depends on ``rows``; it gives a loss for each:

    preference  chosen and rejected scores ``[P]``; by keyword ``label_smoothing``, and ``margin`` where there is one
    comparison  the same; ``grades`` (0 for a tie, else 1, or 2 for strong preferences) or ``tied``, by its parameters' names
    ranking     scores and ranks ``[S]``, which ranking each belongs to, how many rankings
    rating      scores and ratings ``[S]``
    kto         scores and labels (1 for good, 0 for bad) ``[S]``; ``label_smoothing`` by keyword

    What it learns itself is given by keyword; an offset is added to the scores.
    """

    rows: JudgedRows
    options: tuple[str, ...] = ()
    """Settings that belong to it."""
    learns: Learned | None = None
    start: tuple[float, ...] = ()
    """Where what it learns begins."""
    default_margin: float | None = None
    """The margin where the setting says none."""
    keeps_margin: bool = False
    """Whether its margin is a part of the loss on held-out pairs, too."""
    needs_strength: bool = False
    """Whether every preference needs a strength."""
    outcome_logprobs: str = ""
    """Of losses with ties: ``module:function`` that gives ``[P, 3]`` log-probabilities of win, tie and loss."""
    measures: tuple[str, ...] = ("eval/accuracy", "eval/margin")
    """Metrics of held-out rows in addition to the loss."""

    @property
    def settings(self) -> frozenset[str]:
        """Settings that belong to this loss, or to it and a few others."""
        return frozenset((*self.options, *(("scalar_learning_rate",) if self.learns else ())))


def argument_values(config: Any, arguments: Mapping[str, str]) -> dict[str, Any]:
    """Keywords of a formula with the values that they have in the settings; a method without such a setting leaves its default.

    Args:
        config: The settings.
        arguments: Keyword -> setting, of a formula.
    """
    values = {}
    for keyword, setting in arguments.items():
        name, _, place = setting.partition(".")
        if hasattr(config, name):
            value = getattr(config, name)
            values[keyword] = value[int(place)] if place else value
    return values
