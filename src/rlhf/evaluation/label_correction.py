"""A judge's win rate corrected by labels of people on some of the same pairs, and refused where that would mislead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf.data.expand import text_key
from rlhf.data.message_text import counted
from rlhf.evaluation.intervals import Array
from rlhf.evaluation.prediction_powered import MIN_LABELS, CorrectedMean, prediction_powered_mean
from rlhf.rewards.pairwise.human_votes import HumanVotes
from rlhf.rewards.pairwise.votes import Pair

MOST_DEVIATIONS = 4.0
"""How far the judge's mean on labeled prompts may be from that on others, in standard errors: a random sample exceeds it once in 16,000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """What labels of people did to a win rate."""

    rate: CorrectedMean | None
    """The corrected rate; None where it was refused."""
    refusal: str
    """Why; empty where it was not."""
    num_labeled: int
    """Prompts with a label."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "rate": None if self.rate is None else self.rate.to_dict(), "refusal": self.refusal, "num_labeled": self.num_labeled
        }  # fmt: skip


def corrected_by(
    labels: HumanVotes, pairs: Sequence[Pair], outcomes: Array, names: Sequence[str], *, confidence: float
) -> Correction:
    """The win rate of the first system by prediction-powered inference.

    Refused where labels on these prompts are of other completions (another policy's errors of the judge are not this one's), are
    fewer than ``MIN_LABELS`` prompts, all say the same, or where the judge's verdicts on labeled prompts differ so much from those on the
    others that they are no random sample.

    Args:
        labels: Votes of people.
        pairs: [n] what was judged.
        outcomes: [n] of the judge; NaN where there is none.
        names: [n] of the pairs' prompts.
        confidence: Of the interval.
    """
    human = np.array([_label(labels, pair) for pair in pairs], dtype=np.float64)
    judged = {text_key(pair.prompt) for pair, label in zip(pairs, human, strict=True) if math.isfinite(label)}
    asked = {text_key(pair.prompt) for pair in pairs}
    of_others = len((labels.prompts() & asked) - judged)
    usable = np.isfinite(human) & np.isfinite(outcomes)
    y, f, more = _split(human, outcomes, usable, names)

    def refused(why: str) -> Correction:
        return Correction(rate=None, refusal=why, num_labeled=int(y.size))

    if of_others:
        return refused(
            f"on {counted(of_others, 'prompt')} they are of other completions than these; the judge errs in another way on another policy's"
        )
    if y.size == 0:
        return refused("none of them is of these prompts and completions")
    if y.size < MIN_LABELS:
        return refused(f"they are of {counted(int(y.size), 'prompt')}, and it takes {MIN_LABELS}")
    if np.ptp(y) == 0:
        return refused("all of them say the same, so nothing shows how far they vary")
    if (away := _deviations(f, more)) > MOST_DEVIATIONS:
        return refused(
            f"they are no random sample: the judge's mean is {f.mean():.3f} on labeled prompts and {more.mean():.3f} on the others, "
            f"{away:.1f} standard errors apart"
        )
    corrected = prediction_powered_mean(y, f, more, confidence=confidence)
    if not corrected.estimate.measured:
        return refused(corrected.estimate.reason)
    return Correction(rate=corrected, refusal="", num_labeled=int(y.size))


def _label(labels: HumanVotes, pair: Pair) -> float:
    outcome = labels.of(pair.prompt, pair.first, pair.second)
    return math.nan if outcome is None else outcome


def _split(human: Array, outcomes: Array, usable: Any, names: Sequence[str]) -> tuple[Array, Array, Array]:
    """Labels and verdicts of labeled prompts, over the same pairs; verdicts of the other prompts."""
    labeled: dict[str, list[tuple[float, float]]] = {}
    others: dict[str, list[float]] = {}
    for place, name in enumerate(names):
        if usable[place]:
            labeled.setdefault(name, []).append((float(human[place]), float(outcomes[place])))
        elif math.isfinite(outcomes[place]):
            others.setdefault(name, []).append(float(outcomes[place]))
    both = np.array([np.mean(own, axis=0) for own in labeled.values()], dtype=np.float64).reshape(-1, 2)
    more = [np.mean(own) for name, own in others.items() if name not in labeled]
    return both[:, 0], both[:, 1], np.array(more, dtype=np.float64)


def _deviations(f: Array, more: Array) -> float:
    if f.size < 2 or more.size < 2:
        return 0.0
    error = math.sqrt(float(f.var(ddof=1)) / f.size + float(more.var(ddof=1)) / more.size)
    difference = abs(float(f.mean()) - float(more.mean()))
    return difference / error if error > 0 else (math.inf if difference > 0 else 0.0)
