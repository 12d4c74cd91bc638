"""Log-likelihood of a win, a tie or a loss given how far the first system is ahead. M is the number of matches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, log_expit, logsumexp

from rlhf.evaluation.intervals import Array


@dataclass(frozen=True, slots=True)
class Slopes:
    """[M] log-likelihoods with their first and second derivatives in the lead and in the parameter for ties."""

    value: Array
    lead: Array
    tie: Array
    lead_lead: Array
    lead_tie: Array
    tie_tie: Array


OutcomeModel = Callable[[Array, Array, float], Slopes]
"""Leads [M] in log-odds, outcomes [M] (1, 1/2, 0), parameter for ties -> ``Slopes``."""


def half_ties(lead: Array, outcome: Array, _: float) -> Slopes:
    """Bradley-Terry with a tie as half a win and half a loss: y log s(d) + (1 - y) log s(-d).

    A quasi-likelihood: no model gives ties that probability. It shrinks strengths where there are many ties.

    Source: Bradley and Terry 1952, "Rank analysis of incomplete block designs", Biometrika 39.
    """
    p, none = expit(lead), np.zeros_like(lead)
    value = outcome * log_expit(lead) + (1 - outcome) * log_expit(-lead)
    return Slopes(value, outcome - p, none, -p * (1 - p), none, none)


def davidson(lead: Array, outcome: Array, log_nu: float) -> Slopes:
    """win : tie : loss = e^{d/2} : nu : e^{-d/2}.

    Source: Davidson 1970, "On extending the Bradley-Terry model to accommodate ties in paired comparison experiments", JASA 65.
    """
    logits = np.stack([lead / 2, np.full_like(lead, log_nu), -lead / 2])
    win, tie, loss = np.exp(logits - logsumexp(logits, axis=0))
    is_tie = (outcome == 0.5).astype(np.float64)
    ahead = (win - loss) / 2
    value = (outcome - 0.5) * lead + is_tie * log_nu - logsumexp(logits, axis=0)
    return Slopes(value, outcome - 0.5 - ahead, is_tie - tie, ahead**2 - (win + loss) / 4, ahead * tie, tie * (tie - 1))


def rao_kupper(lead: Array, outcome: Array, threshold: float) -> Slopes:
    """P(win) = s(d - t), P(loss) = s(-d - t), P(tie) = (e^{2t} - 1) P(win) P(loss); eta = e^t.

    Source: Rao and Kupper 1967, "Ties in paired-comparison experiments: a generalization of the Bradley-Terry model", JASA 62.
    """
    if threshold <= 0:
        outside = np.full_like(lead, -np.inf)
        return Slopes(outside, outside, outside, outside, outside, outside)
    win, loss = expit(lead - threshold), expit(-lead - threshold)
    not_lost, not_won = (outcome > 0).astype(np.float64), (outcome < 1).astype(np.float64)
    is_tie = (outcome == 0.5).astype(np.float64)
    fades = np.exp(-2 * threshold)
    value = (
        not_lost * log_expit(lead - threshold)
        + not_won * log_expit(-lead - threshold)
        + is_tie * np.log(np.expm1(2 * threshold))
    )
    up, down = not_lost * (1 - win), not_won * (1 - loss)
    bend_up, bend_down = up * win, down * loss
    return Slopes(
        value,
        up - down,
        2 * is_tie / (1 - fades) - up - down,
        -bend_up - bend_down,
        bend_up - bend_down,
        -bend_up - bend_down - 4 * is_tie * fades / (1 - fades) ** 2,
    )
