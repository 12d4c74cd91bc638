"""Is the new system as good as the old one, but for a margin? Better? Fixed numbers of prompts, or looked at any time.

"Not significantly worse" is no evidence that nothing was lost: on few prompts it is true of nearly every regression. A gate
turns the burden around: it passes a system only if a loss of more than the margin is excluded, fails it only if a loss of less is
excluded, and says UNDECIDED otherwise, with the number of prompts that would probably decide.

Adding prompts until a fixed-n gate passes is peeking: looked at every 500 prompts up to 5,000, a loss of exactly the margin
passes in 17 % of runs and not in 5 %. ``SequentialNoninferiority`` and ``SequentialBetter`` may be looked at after every prompt.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from rlhf.errors import ConfigError
from rlhf.evaluation.decision import Decision, Ruling
from rlhf.evaluation.intervals import CONFIDENCE, Array, check_confidence, finite_or_none, unit_means
from rlhf.evaluation.paired_tests import holm
from rlhf.evaluation.sample_size import prompts_for_difference, prompts_for_noninferiority
from rlhf.evaluation.sequential import BettingProcess, check_same

ROUNDING = 1e-12
"""Of means and probabilities that are compared with a limit."""


def noninferiority(
    differences: ArrayLike,
    margin: float,
    *,
    confidence: float = CONFIDENCE,
    units: Sequence[Hashable] | None = None,
    largest: float | None = 1.0,
) -> Ruling:
    """Whether a new system loses no more than a margin against the old one, on a number of prompts fixed before.

        PASS if mean - z se + k > -margin,   FAIL if mean + z se + k < -margin,   else UNDECIDED     (z one-sided: 1.645)
        se^2 = (sum (d - mean)^2 + c largest^2) / n^2,   c = (log(1/alpha) / z)^2
        k    = m3 (1 + 2 z^2) / (6 n s^2),   m3: third moment of d about the mean, s^2 = n se^2 (c included)

    c keeps prompts that all agree from being certain: with no change at all in n prompts, what can be excluded is a loss of
    3.0 / n ("rule of three"). k corrects for skewed differences, such as a few losses and no wins. Without both, a loss of
    exactly the margin that consists of rare failures passes in 9 to 20 % of runs of 50 to 500 prompts, with them in about 5 %, at small
    margins up to 5.3 % (exactly 5.24 % at 3 points and 300 prompts; docs/results/evaluation-statistics.md).

    Sources: non-inferiority: Wellek 2010, "Testing Statistical Hypotheses of Equivalence and Noninferiority", section 2.2;
    k: Johnson 1978, "Modified t tests and confidence intervals for asymmetrical populations", JASA 73; Hanley and
    Lippman-Hand 1983, "If nothing goes wrong, is everything all right?", JAMA 249 (rule of three).

    Args:
        differences: [n] new - old on the same prompts (and samples), larger is better.
        margin: Loss that is tolerated, above 0, in units of the differences. Chosen before the data.
        confidence: One-sided: a loss of the margin passes in about 1 - confidence of runs.
        units: [n] prompt of each difference; those of a prompt are averaged first. None where each is its own.
        largest: Largest possible size of a difference: 1 for outcomes in [0, 1]. None where there is no bound, as for
            raw rewards: then c is 0, z is Student's, and prompts that all differ by the same decide nothing.

    Returns:
        The decision with ``difference``, ``low`` and ``high`` (each bound one-sided), ``p_within`` (small: the loss is within
        the margin), ``p_beyond`` (small: it is beyond), and ``num_more`` prompts where it is UNDECIDED.
    """
    if not 0 < margin < math.inf:
        raise ConfigError(
            f"The margin is {margin}; give the loss that is tolerated, above 0 and finite. For a margin of 0 use better()."
        )
    paired = _paired(differences, confidence, units, largest)
    if isinstance(paired, Ruling):
        return paired
    return _ruling(
        paired, -margin, f"a loss of more than {margin:g}", paired.more_for_margin(margin, confidence), confidence
    )


def no_room_to_lose(champion: ArrayLike, margin: float, *, lower_is_better: bool = False) -> Ruling | None:
    """UNDECIDED where scores from 0 to 1 leave no room for a loss of more than the margin; None where there is room.

    A system that scores 4 % can lose 4 points at most, so with a margin of 10 points a total collapse would pass. The condition is

        mean <= margin,    or mean >= 1 - margin where lower is better

    Args:
        champion: [n] scores of the old one, from 0 to 1.
        margin: Loss that is tolerated.
        lower_is_better: Whether a rise is the loss.
    """
    scores = np.asarray(champion, dtype=np.float64)
    if scores.size == 0 or not np.isfinite(scores).all():
        return None
    mean = float(scores.mean())
    room = 1 - mean if lower_is_better else mean
    if room > margin + ROUNDING:
        return None
    where = f"scores {mean:.4g}, so it can lose {room:.4g} at most"
    return Ruling(
        decision=Decision.UNDECIDED,
        reason=f"A loss can't show: the champion {where}, and a loss of {margin:g} is tolerated. Give a smaller margin, or ask what it can do.",
        evidence={"champion": mean, "bound": -margin, "n": int(scores.size)},
    )


def better(
    differences: ArrayLike,
    *,
    confidence: float = CONFIDENCE,
    units: Sequence[Hashable] | None = None,
    largest: float | None = 1.0,
) -> Ruling:
    """Whether a new system is better: PASS if the two-sided interval of its mean difference lies above 0, FAIL if below.

    The interval is that of ``noninferiority`` with (1 - confidence) / 2 on each side, so a system that is no better passes in about
    2.5 % of runs at 95 %. Where all of n prompts change, one of two equals wins them all in 2^-n of runs, so fewer than
    log2(2 / (1 - confidence)) prompts with bounds (at 95 % fewer than 6) decide nothing.

    Args:
        differences: [n] new - old; of outcomes 1, 1/2, 0 of a comparison 2 y - 1.
        confidence: Two-sided.
        units: [n] prompt of each difference.
        largest: As in ``noninferiority``.
    """
    paired = _paired(differences, (1 + confidence) / 2, units, largest, by_chance=True)
    if isinstance(paired, Ruling):
        return paired
    return _ruling(paired, 0.0, "a difference of 0 or less", paired.more_for_gain(confidence), confidence)


def mean_above(
    values: ArrayLike,
    bound: float,
    *,
    confidence: float = CONFIDENCE,
    units: Sequence[Hashable] | None = None,
    largest: float | None = 1.0,
) -> Ruling:
    """Whether a mean lies above a bound: PASS if the one-sided interval of ``noninferiority`` lies above it, FAIL if below.

    Args:
        values: [n] one number for each prompt, or differences of two systems.
        bound: In units of the values. Chosen before the data.
        confidence: One-sided: a true mean at the bound passes in about 1 - confidence of runs, and fails in as many. Fewer than
            log2(1 / (1 - confidence)) prompts with bounds decide nothing, as in ``better``.
        units: As in ``noninferiority``.
        largest: Largest possible size of a value: 1 for shares; None where there is no bound.
    """
    paired = _paired(values, confidence, units, largest, by_chance=True)
    if isinstance(paired, Ruling):
        return paired
    return _ruling(paired, bound, f"{bound:g} or less", paired.more_for_bound(bound, confidence), confidence)


def noninferiority_of_tasks(
    differences: Mapping[str, ArrayLike],
    margins: Mapping[str, float] | float,
    *,
    confidence: float = CONFIDENCE,
    units: Mapping[str, Sequence[Hashable]] | None = None,
    largest: Mapping[str, float | None] | float | None = 1.0,
) -> dict[str, Ruling]:
    """``noninferiority`` of each task of a suite, where a failure must survive Holm's correction for their number.

    A pass needs none: all tasks must pass, so each is tested at the full level (intersection-union test, Berger 1982). A task
    that fails by itself but not after the correction is UNDECIDED. ``rlhf.evaluation.decision.combined`` gives the suite's decision.

    Args:
        differences: Task -> [n] new - old.
        margins: Task -> margin, or one for all.
        confidence: As in ``noninferiority``; failures anywhere in a suite without regressions are at most 1 - confidence.
        units: Task -> [n] prompt of each difference.
        largest: As in ``noninferiority``, for all tasks or task -> value. Tasks of both kinds belong into one call: Holm counts them together.
    """
    rulings = {
        task: noninferiority(
            values,
            margins if isinstance(margins, int | float) else margins[task],
            confidence=confidence,
            units=None if units is None else units[task],
            largest=largest[task] if isinstance(largest, Mapping) else largest,
        )
        for task, values in differences.items()
    }
    tested = [task for task, ruling in rulings.items() if ruling.evidence.get("p_beyond") is not None]
    adjusted = dict(zip(tested, holm([rulings[task].evidence["p_beyond"] for task in tested]).tolist(), strict=True))
    for task, p in adjusted.items():
        ruling = rulings[task]
        evidence = {**ruling.evidence, "p_beyond_holm": p}
        decision, reason = ruling.decision, ruling.reason
        if decision is Decision.FAIL and p >= 1 - confidence:
            decision = Decision.UNDECIDED
            reason += f" Among {len(tested)} tasks that happens by chance (Holm: p = {p:.3g}), so it fails none."
        rulings[task] = Ruling(decision=decision, reason=reason, evidence=evidence)
    return rulings


@dataclass(frozen=True, slots=True)
class _Paired:
    """Differences of units as the numbers that decide."""

    mean: float
    low: float
    high: float
    error: float
    shift: float
    variance: float
    n: int
    is_student: bool

    def p_above(self, bound: float) -> float:
        """One-sided p-value against a mean of at most the bound."""
        t = (bound - self.mean - self.shift) / self.error
        return float(stdtr(self.n - 1, t) if self.is_student else ndtr(t))

    def more_for_margin(self, margin: float, confidence: float) -> int | None:
        """Prompts to add so that an unchanged system would pass in four of five runs; or, where these are that many already,
        so that the difference that was seen would be decided as often."""
        wanted = prompts_for_noninferiority(margin, variance=self.variance, confidence=confidence)
        if wanted <= self.n:
            if abs(self.mean + margin) <= ROUNDING:
                return None
            wanted = prompts_for_noninferiority(abs(self.mean + margin), variance=self.variance, confidence=confidence)
        return max(1, wanted - self.n)

    def more_for_bound(self, bound: float, confidence: float) -> int | None:
        """Prompts to add so that a true mean as far from the bound as the one seen would be told from it in four of five runs."""
        if self.mean == bound:
            return None
        two_sided = 2 * confidence - 1
        return max(1, prompts_for_difference(self.mean - bound, variance=self.variance, confidence=two_sided) - self.n)

    def more_for_gain(self, confidence: float) -> int | None:
        """Prompts to add so that a true difference as large as the one seen would be found in four of five runs."""
        if self.mean == 0:
            return None
        return max(1, prompts_for_difference(self.mean, variance=self.variance, confidence=confidence) - self.n)


def _paired(
    differences: ArrayLike,
    level: float,
    units: Sequence[Hashable] | None,
    largest: float | None,
    *,
    by_chance: bool = False,
) -> _Paired | Ruling:
    """The numbers that decide, or why there are none; ``by_chance``: whether equals win all of few prompts too often."""
    if not 0.5 < level < 1:
        raise ConfigError(f"The one-sided confidence is {level}; a gate needs one above 0.5 and below 1, such as 0.95.")
    if largest is not None and not largest > 0:
        raise ConfigError(f"The largest difference is {largest}; it is above 0, or None where there is no bound.")
    d = unit_means(differences, units)
    if (problem := _undecidable(d, largest)) is not None:
        return Ruling(decision=Decision.UNDECIDED, reason=problem, evidence={"n": int(d.size)})
    n, mean = d.size, float(d.mean())
    if by_chance and largest is not None and 0.5**n > (1 - level) * (1 + ROUNDING):
        least = math.ceil(-math.log2(1 - level) - ROUNDING)
        return Ruling(
            decision=Decision.UNDECIDED,
            reason=f"There are {n} prompts; equals may win all of them by chance, so a decision takes {least}.",
            evidence={"n": n, "num_more": least - n},
        )
    deviations = d - mean
    squares = float(np.square(deviations).sum())
    z = float(ndtri(level))
    if largest is None:
        z, variance = float(stdtrit(n - 1, level)), squares / (n - 1)
    else:
        variance = (squares + (math.log(1 / (1 - level)) / z * largest) ** 2) / n
    error = math.sqrt(variance / n)
    shift = float((deviations**3).mean()) * (1 + 2 * z * z) / (6 * n * variance)
    return _Paired(mean, mean - z * error + shift, mean + z * error + shift, error, shift, variance, n, largest is None)


def _undecidable(d: Array, largest: float | None) -> str | None:
    missing = int((~np.isfinite(d)).sum())
    if missing:
        return f"{missing} of {d.size} prompts have no difference; measure them, or leave them out of both systems."
    if d.size < 2:
        return f"There {'is 1 prompt' if d.size else 'are no prompts'}; a comparison needs at least 2."
    if largest is None:
        return "All prompts differ by the same, which shows no spread." if np.ptp(d) == 0 else None
    if np.abs(d).max() > largest:
        raise ConfigError(
            f"A difference is {d[np.abs(d).argmax()]:g}, and the largest possible is said to be {largest:g}; give largest=None "
            "for numbers without bounds, such as raw rewards."
        )
    return None


def _ruling(paired: _Paired, bound: float, excluded: str, num_more: int | None, confidence: float) -> Ruling:
    decision = Decision.UNDECIDED
    if paired.low > bound:
        decision = Decision.PASS
    elif paired.high < bound:
        decision = Decision.FAIL
    evidence: dict[str, Any] = {
        "difference": paired.mean, "low": paired.low, "high": paired.high, "bound": bound, "n": paired.n, "confidence": confidence,
        "p_within": paired.p_above(bound), "p_beyond": 1 - paired.p_above(bound),
    }  # fmt: skip
    measured = f"{paired.mean:+.4g} [{paired.low:+.4g}, {paired.high:+.4g}] over {paired.n:,} prompts"
    if decision is Decision.PASS:
        reason = f"The difference is {measured}, which excludes {excluded}."
    elif decision is Decision.FAIL:
        reason = f"The difference is {measured}, all of it below {bound:g}."
    else:
        evidence["num_more"] = num_more
        more = (
            ""
            if num_more is None
            else f" About {num_more:,} more prompts would probably decide; looking again needs a sequential gate."
        )
        reason = f"The difference is {measured}, which neither reaches nor excludes {bound:g}.{more}"
    return Ruling(decision=decision, reason=reason, evidence=evidence)


class SequentialNoninferiority:
    """``noninferiority`` that may be looked at after every batch of prompts: two betting processes, one for each decision.

        y = (d / largest + 1) / 2,  m = (1 - margin / largest) / 2;   PASS at E(y above m) >= 1/alpha, FAIL at E(y below m) >= 1/alpha

    The first decision stays. Each of the two mistakes happens in at most alpha of runs, however often one looks: a true loss of
    exactly the margin (2 points, 15 % discordant) passes in 3 % by
    5,000 prompts. The price is power: an unchanged system passes in 42 %
    by 2,000 prompts where a fixed number gives 75 %.

    Source: ``rlhf.evaluation.sequential.BettingProcess``.

    Args:
        margin: Loss that is tolerated, 0 or more and below ``largest``; chosen before the data.
        confidence: 1 - alpha.
        largest: Largest possible size of a difference; there must be one.
    """

    def __init__(self, margin: float, *, confidence: float = CONFIDENCE, largest: float = 1.0) -> None:
        check_confidence(confidence)
        if not 0 <= margin < largest:
            raise ConfigError(
                f"The margin is {margin}; it is 0 or more, and below the largest difference, {largest:g}."
            )
        self.margin, self.largest, self.confidence = float(margin), float(largest), float(confidence)
        m = (1 - margin / largest) / 2
        self._within = BettingProcess(m, side="above")
        self._beyond = BettingProcess(m, side="below")
        self._sum = 0.0
        self.decided_at: int | None = None
        self.decision = Decision.UNDECIDED

    def update(self, differences: ArrayLike, *, units: Sequence[Hashable] | None = None) -> Ruling:
        """Take the differences of further prompts.

        Args:
            differences: [n] new - old of prompts that were not seen before.
            units: [n] prompt of each difference; all those of a prompt belong into one call.

        Returns:
            The decision so far. Missing differences are refused, because leaving them out would bias what follows.
        """
        d = unit_means(np.atleast_1d(np.asarray(differences, dtype=np.float64)), units)
        if d.size and not np.abs(d).max() <= self.largest:  # NaN fails too
            raise ConfigError(
                f"Differences lie between -{self.largest:g} and {self.largest:g}; got {d[~(np.abs(d) <= self.largest)][0]}."
            )
        before, limit = self._within.n, -math.log1p(-self.confidence)
        outcomes = (d / self.largest + 1) / 2
        passes, fails = self._within.update(outcomes) >= limit, self._beyond.update(outcomes) >= limit
        self._sum += float(d.sum())
        if self.decided_at is None and (reached := passes | fails).any():
            first = int(reached.argmax())
            self.decision = Decision.PASS if passes[first] else Decision.FAIL
            self.decided_at = before + first + 1
        return self.ruling()

    def ruling(self) -> Ruling:
        """The decision so far with its evidence."""
        n = self._within.n
        mean = self._sum / n if n else math.nan
        evidence = {
            "difference": finite_or_none(mean), "bound": -self.margin, "n": n, "confidence": self.confidence, "decided_at": self.decided_at,
            "p_within": self._within.p_value, "p_beyond": self._beyond.p_value,
        }  # fmt: skip
        seen = f"Mean difference {mean:+.4g} over {n:,} prompts, looked at as often as you like"
        if self.decision is Decision.UNDECIDED:
            best = max(self._within.max_log_e, self._beyond.max_log_e)
            reason = f"{seen}: evidence of {math.exp(best):.3g} to 1 of {1 / (1 - self.confidence):.3g} to 1 wanted."
        else:
            side = "within" if self.decision is Decision.PASS else "beyond"
            reason = f"{seen}: decided after {self.decided_at:,} that it is {side} the bound of {-self.margin:g}."
        return Ruling(decision=self.decision, reason=reason, evidence=evidence)

    def state_dict(self) -> dict[str, Any]:
        """JSON."""
        return {
            "margin": self.margin, "largest": self.largest, "confidence": self.confidence, "sum": self._sum,
            "decided_at": self.decided_at, "decision": str(self.decision),
            "within": self._within.state_dict(), "beyond": self._beyond.state_dict(),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of a gate with the same margin and confidence."""
        for name in ("margin", "largest", "confidence"):
            check_same(name, getattr(self, name), state[name])
        self._within.load_state_dict(state["within"])
        self._beyond.load_state_dict(state["beyond"])
        self._sum, self.decision = float(state["sum"]), Decision(state["decision"])
        self.decided_at = None if state["decided_at"] is None else int(state["decided_at"])


class SequentialBetter(SequentialNoninferiority):
    """``better`` that may be looked at any time: PASS is better, FAIL is worse, each at (1 - confidence) / 2."""

    def __init__(self, *, confidence: float = CONFIDENCE, largest: float = 1.0) -> None:
        super().__init__(0.0, confidence=(1 + confidence) / 2, largest=largest)
