"""Bradley-Terry strengths from matches, with intervals over prompts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import coo_array, csr_array, diags_array, hstack

from rlhf.errors import ConfigError, DataError, look_up
from rlhf.evaluation.intervals import CONFIDENCE, Array, check_confidence
from rlhf.evaluation.ratings.fitted import Ratings, centered, newton, prior_terms, sandwich
from rlhf.evaluation.ratings.matches import Match, Matches, check_identified
from rlhf.evaluation.ratings.outcome_models import OutcomeModel, Slopes, davidson, half_ties, rao_kupper

TIES: dict[str, tuple[OutcomeModel, float]] = {
    "half": (half_ties, 0.0),
    "davidson": (davidson, 0.0),
    "rao_kupper": (rao_kupper, 0.1),
}
"""How ties are modeled -> log-likelihood, and where its parameter starts."""
PRIOR = 0.5
"""Wins and losses against an average system that are added where one won or lost everything."""


def bradley_terry_ratings(
    matches: Iterable[Match],
    *,
    ties: str = "half",
    prior: float = 0.0,
    confidence: float = CONFIDENCE,
) -> Ratings:
    """Strengths that make the matches most likely, and their covariance over prompts.

        P(a beats b) = s(th_a - th_b),  mean th = 0

    Sources: Bradley and Terry 1952; ties: ``rlhf.evaluation.ratings.outcome_models``; intervals: ``sandwich``.

    Args:
        matches: (first, second, outcome) or (first, second, outcome, prompt), outcome 1, 0.5 or 0 for the first; with ``ties="half"``
            any share between, such as that of a prompt's samples. Name the prompt where one has several matches, or the intervals are
            too narrow.
        ties: ``half`` counts a tie as half a win, ``davidson`` and ``rao_kupper`` have a parameter for how frequent ties are.
        prior: How many times every system won half and lost half a match against an average one; 0 for none. With one, systems that
            never lost or never met are rated, too, and how far apart depends on it.
        confidence: Of the intervals.

    Raises:
        DataError: The matches do not say how far systems are apart; names the groups that can't be compared.
    """
    return fit_matches(Matches.of(matches, shares=ties == "half"), ties=ties, prior=prior, confidence=confidence)


def ratings_of_any_matches(matches: Sequence[Match], *, confidence: float = CONFIDENCE) -> tuple[Ratings, str]:
    """``bradley_terry_ratings``, with a prior where one system won or lost everything, and then the words that say so.

    Raises:
        DataError: There is no match.
    """
    try:
        return bradley_terry_ratings(matches, confidence=confidence), ""
    except DataError as err:
        if not matches:
            raise
        ratings = bradley_terry_ratings(matches, confidence=confidence, prior=PRIOR)
        return ratings, (
            f"{err} Half a win and half a loss against an average model were added to each; distances depend on that."
        )


def fit_matches(
    table: Matches,
    *,
    ties: str = "half",
    prior: float = 0.0,
    confidence: float = CONFIDENCE,
    style: Mapping[str, ArrayLike] | None = None,
    penalty: tuple[float, float] = (0.0, 0.0),
) -> Ratings:
    """``bradley_terry_ratings`` with differences of style, and with quadratic penalties.

    Args:
        table: The matches.
        ties: As there.
        prior: As there.
        confidence: As there.
        style: Name -> [M] difference of the first system's completion from the second's, scaled.
        penalty: Half of this times the squares of the strengths, and of the coefficients of style, is added to the loss.
    """
    check_confidence(confidence)
    outcome_model, tie_start = look_up(TIES, ties, kind="model of ties")
    if prior < 0 or min(penalty) < 0:
        raise ConfigError(f"The prior is {prior} and the penalties {penalty}; they are 0 or more.")
    with_ties = ties != "half" and bool(table.tied.any())
    if ties != "half" and not with_ties:
        outcome_model = half_ties  # the limit of both models without ties
    if prior == 0:  # a penalty would give numbers all the same
        check_identified(table, with_tie_parameter=with_ties)
    design = _design(table, style or {})
    problem = _Problem(table, design, outcome_model, with_ties, prior, penalty)
    start = np.zeros(design.shape[1] + with_ties)
    if with_ties:
        start[-1] = tie_start
    solution = newton(problem.objective, start)
    k = len(table.names)
    covariance, free = sandwich(problem.objective(solution)[2], problem.meat(solution), table.num_units)
    to_mean = np.eye(k) - 1 / k
    tie_parameter = (
        None if ties == "half" else (math.exp(solution[-1]) if with_ties else {"davidson": 0.0}.get(ties, 1.0))
    )
    return Ratings(
        strengths=centered(table.names, solution[:k]),
        covariance=to_mean @ covariance[:k, :k] @ to_mean,
        loss=problem.loss(solution),
        num_units=table.num_units,
        degrees_of_freedom=free,
        tie_parameter=tie_parameter,
        style=dict(zip(style or {}, solution[k : design.shape[1]].tolist(), strict=True)),
        confidence=confidence,
    )


class _Problem:
    """The penalized likelihood of matches as a function of strengths, coefficients of style and the parameter for ties."""

    def __init__(
        self,
        table: Matches,
        design: csr_array,
        model: OutcomeModel,
        with_ties: bool,
        prior: float,
        penalty: tuple[float, float],
    ) -> None:
        self.table, self.design, self.model = table, design, model
        self.with_ties, self.prior = with_ties, prior
        self.k = len(table.names)
        self.quadratic = np.zeros(design.shape[1] + with_ties)
        self.quadratic[: self.k] = penalty[0]
        self.quadratic[self.k : design.shape[1]] = penalty[1]
        # Strengths are known but for a constant. This makes the Hessian invertible, and is 0 where their sum is.
        self.gauge = 0.0 if prior > 0 or penalty[0] > 0 else 1.0

    def objective(self, at: Array) -> tuple[float, Array, Array]:
        """Value, gradient and curvature at these ratings, as ``rlhf.evaluation.ratings.fitted.Objective`` has them."""
        num, k = self.design.shape[1], self.k
        slopes = self._slopes(at)
        total = at[:k].sum()
        value = -float(slopes.value.sum()) + self.gauge * total**2 / 2 + float(self.quadratic @ at**2) / 2
        gradient = self.quadratic * at
        hessian = np.diag(self.quadratic)
        gradient[:num] -= self.design.T @ slopes.lead
        hessian[:num, :num] -= (self.design.T @ diags_array(slopes.lead_lead) @ self.design).toarray()
        if self.with_ties:
            gradient[-1] -= slopes.tie.sum()
            hessian[-1, -1] -= slopes.tie_tie.sum()
            hessian[:num, -1] -= self.design.T @ slopes.lead_tie
            hessian[-1, :num] = hessian[:num, -1]
        gradient[:k] += self.gauge * total
        hessian[:k, :k] += self.gauge
        if self.prior:
            before, pull, bend = prior_terms(at[:k], self.prior)
            value += before
            gradient[:k] += pull
            hessian[np.arange(k), np.arange(k)] += bend
        return (value if math.isfinite(value) else math.inf), gradient, hessian

    def loss(self, at: Array) -> float:
        """Negative log-likelihood alone."""
        return -float(self._slopes(at).value.sum())

    def meat(self, at: Array) -> Array:
        """[P, P] of ``sandwich``."""
        slopes, m = self._slopes(at), len(self.table.outcome)
        scores = diags_array(slopes.lead) @ self.design
        if self.with_ties:
            scores = hstack([scores, coo_array(slopes.tie[:, None])])
        units = coo_array((np.ones(m), (self.table.unit, np.arange(m))), shape=(self.table.num_units, m)).tocsr()
        by_unit = units @ scores.tocsr()
        return np.asarray((by_unit.T @ by_unit).toarray(), dtype=np.float64)

    def _slopes(self, at: Array) -> Slopes:
        lead = self.design @ at[: self.design.shape[1]]
        return self.model(lead, self.table.outcome, float(at[-1]) if self.with_ties else 0.0)


def _design(table: Matches, style: Mapping[str, ArrayLike]) -> csr_array:
    """[M, K + styles]: 1 for the first system, -1 for the second, and differences of style."""
    m = len(table.outcome)
    rows = np.concatenate([np.arange(m), np.arange(m)])
    columns = np.concatenate([table.first, table.second])
    systems = coo_array((np.repeat([1.0, -1.0], m), (rows, columns)), shape=(m, len(table.names)))
    features = []
    for name, values in style.items():
        column = np.asarray(values, dtype=np.float64)
        if column.shape != (m,) or not np.isfinite(column).all():
            raise DataError(f"Style {name!r} needs one finite number for each of {m} matches; got {column.shape}.")
        features.append(coo_array(column[:, None]))
    return hstack([systems, *features]).tocsr()
