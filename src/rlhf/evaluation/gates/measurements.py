"""What a gate knows of candidate and champion: plain numbers, written with the decision, from which it can be made again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import numpy as np

from rlhf.errors import DataError, look_up
from rlhf.evaluation.decision import Decision, Ruling
from rlhf.evaluation.intervals import Array, Estimate, mean_interval
from rlhf.evaluation.suites.capability import MIN_SCORED_FRAC, REPEAT_CONFIDENCE, obstacles
from rlhf.evaluation.suites.suite_run import SuiteRun
from rlhf.formatting import percentage

Values = Mapping[str, float | None]
"""Prompt or unit -> number; None where it could not be measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Numbers of one metric or suite on the same units, or why they decide nothing."""

    candidate: Array
    """[n]."""
    champion: Array
    """[n] the same units; empty where nobody was compared."""
    obstacle: str = ""
    """Why nothing can be decided; empty where it can."""
    unbounded: bool = False
    """Whether the scorer's numbers have no bounds, wherever these lie."""

    @property
    def largest(self) -> float | None:
        """1 where all numbers lie in [0, 1], else no bound is known."""
        if self.unbounded:
            return None
        both = np.concatenate([self.candidate, self.champion])
        return 1.0 if both.size and bool(((both >= 0) & (both <= 1)).all()) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricMeasurement:
    """One metric."""

    name: str
    candidate: Values = field(default_factory=dict)
    """Prompt -> number; empty where the metric is no mean over prompts."""
    champion: Values = field(default_factory=dict)
    again: Values = field(default_factory=dict)
    """The champion, asked a second time; empty where it was not."""
    compares: bool = False
    """Whether the metric itself compares with the champion, as a win rate does."""
    neutral: float = 0.0
    """Of such a metric: its value where neither is better."""
    estimate: Mapping[str, Any] | None = None
    """Of a metric that is no mean over prompts: the candidate's number with its interval."""
    gain: Mapping[str, Any] | None = None
    """Of such a metric: the candidate's minus the champion's."""
    measured_with: Mapping[str, str] = field(default_factory=dict)
    """``candidate`` and ``champion`` -> hash of prompts, sampling and judge that each was measured with."""

    def pairs(self, *, compared: bool, in_place_of_missing: float | None = None) -> Pairs:
        """Numbers of prompts that have all that is needed.

        Args:
            compared: Whether the champion's are needed too.
            in_place_of_missing: Counts for each number that the candidate lacks; None leaves these prompts out.
        """
        champion: Values = self.champion if compared else {}
        if compared and len(set(self.measured_with.values())) > 1:
            return _nothing(f"{self.name} of the champion was measured with other prompts, sampling or another judge")
        if compared and self.candidate.keys() != champion.keys():
            return _nothing(f"{self.name} was measured on other prompts for the champion than for the candidate")
        for whose, values in (("candidate", self.candidate), ("champion", champion)):
            if (why := _too_few(self.name, whose, values)) is not None:
                return _nothing(why)
        if compared and self.again and (why := _flaky(self.name, champion, self.again)) is not None:
            return _nothing(why)
        candidate = {key: value if _known(value) else in_place_of_missing for key, value in self.candidate.items()}
        shared = [key for key, value in candidate.items() if value is not None and _known(champion.get(key, 0.0))]
        return Pairs(
            candidate=_array([candidate[key] for key in shared]),
            champion=_array([champion[key] for key in shared]) if compared else _array([]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteMeasurement:
    """One suite."""

    name: str
    fingerprint: str
    """Of the suite as it was asked, ``Suite.fingerprint``."""
    margin: float
    """The suite's own."""
    candidate: SuiteRun
    champion: SuiteRun | None = None
    again: SuiteRun | None = None
    """The champion, asked a second time."""

    def pairs(self, *, compared: bool, in_place_of_missing: float | None = None) -> Pairs:
        """Scores of units that both have; see ``MetricMeasurement.pairs``."""
        before = self.champion if compared else self.candidate
        if before is None:
            return _nothing(f"the suite {self.name} was not asked of the champion")
        if (why := obstacles(self, before, self.candidate, self.again if compared else None)) is not None:
            return _nothing(why.removesuffix("."))
        new, old = self.candidate.unit_scores(in_place_of_missing=in_place_of_missing), before.unit_scores()
        shared = [unit for unit in new if unit in old]
        return Pairs(
            candidate=_array([new[unit] for unit in shared]),
            champion=_array([old[unit] for unit in shared]) if compared else _array([]),
            unbounded=bool(self.candidate.unbounded),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageAlarms:
    """What the guards of a training stage said."""

    stage: str
    watched: Sequence[str]
    """Names of guards and detectors that were on and had a metric to look at."""
    alarms: Sequence[Mapping[str, Any]] = ()
    """Each with ``guard``, ``step`` and ``message``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """All that the requirements of a gate read."""

    has_champion: bool
    metrics: Mapping[str, MetricMeasurement] = field(default_factory=dict)
    suites: Mapping[str, SuiteMeasurement] = field(default_factory=dict)
    """By what the requirement calls the suite."""
    stages: Mapping[str, StageAlarms] = field(default_factory=dict)
    """By what the requirement calls the stage; an empty text for the candidate's."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Metric, suite or stage that could not be measured -> why."""

    def of(self, *, metric: str | None = None, suite: str | None = None) -> MetricMeasurement | SuiteMeasurement | str:
        """A measurement; or why there is none."""
        if metric is not None:
            return self.metrics.get(metric) or self.missing.get(metric, f"{metric} was not measured")
        assert suite is not None
        return self.suites.get(suite) or self.missing.get(suite, f"the suite {suite} was not asked")

    def values(self, metric: str) -> Values:
        """Prompt -> the candidate's number, for requirements of your own.

        Raises:
            UnknownNameError: It was not measured.
        """
        return look_up(self.metrics, metric, kind="measured metric").candidate

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """What ``to_dict`` gave.

        Raises:
            DataError: It is no such document.
        """
        try:
            suites = {
                key: SuiteMeasurement(
                    **{
                        **each,
                        **{who: SuiteRun(**each[who]) for who in ("candidate", "champion", "again") if each.get(who)},
                    }
                )
                for key, each in document["suites"].items()
            }
            return cls(
                has_champion=bool(document["has_champion"]),
                metrics={key: MetricMeasurement(**each) for key, each in document["metrics"].items()},
                suites=suites,
                stages={key: StageAlarms(**each) for key, each in document["stages"].items()},
                missing=document["missing"],
            )
        except (KeyError, TypeError, AttributeError) as err:
            raise DataError(
                f"These are no measurements of a gate: {err!r}. Give the gate.json that a gate wrote."
            ) from err


def minus_neutral(ruling: Ruling, measured: MetricMeasurement, *, is_share: bool) -> Ruling:
    """The same, of a metric that compares by itself: its difference is from the value where neither is better.

    Args:
        ruling: Of the differences.
        measured: The metric.
        is_share: Whether it lies in [0, 1]: then its interval ends there, too.
    """
    reason = ruling.reason.replace("The difference", f"{measured.name} minus {measured.neutral:g}", 1)
    low, high = ruling.evidence.get("low"), ruling.evidence.get("high")
    if not is_share or low is None or high is None:
        return replace(ruling, reason=reason)
    most = max(measured.neutral, 1 - measured.neutral)
    ends = (max(low, -most), min(high, most))
    reason = reason.replace(f"[{low:+.4g}, {high:+.4g}]", f"[{ends[0]:+.4g}, {ends[1]:+.4g}]", 1)
    return replace(ruling, reason=reason, evidence={**ruling.evidence, "low": ends[0], "high": ends[1]})


def undecided(why: str) -> Ruling:
    """Nothing can be said."""
    return Ruling(decision=Decision.UNDECIDED, reason=f"Not known: {why.removesuffix('.')}.")


def estimate_of(interval: Mapping[str, Any] | None) -> Estimate | None:
    """An estimate from its JSON; None where it has no interval."""
    if interval is None or any(interval.get(part) is None for part in ("value", "low", "high")):
        return None
    return Estimate(**interval)


def _nothing(why: str) -> Pairs:
    return Pairs(candidate=_array([]), champion=_array([]), obstacle=why)


def _array(values: Sequence[float | None]) -> Array:
    return np.array(values, dtype=np.float64)


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _too_few(name: str, whose: str, values: Values) -> str | None:
    known = sum(map(_known, values.values()))
    if values and known < MIN_SCORED_FRAC * len(values):
        return (
            f"only {percentage(known / len(values), 0)} of the prompts have a number of {name} of the {whose}, fewer than "
            f"{percentage(MIN_SCORED_FRAC, 0)}: "
            "what could not be measured is rarely a random part"
        )
    return None


def _flaky(name: str, champion: Values, again: Values) -> str | None:
    if champion.keys() != again.keys():
        return f"{name} of the champion was measured on other prompts when it was asked a second time"
    if (why := _too_few(name, "champion, asked a second time", again)) is not None:
        return why
    both = ((old, again[key]) for key, old in champion.items())
    differences = [
        new - old for old, new in both if old is not None and new is not None and _known(old) and _known(new)
    ]
    change = mean_interval(differences, confidence=REPEAT_CONFIDENCE)
    if change.measured and (change.low > 0 or change.high < 0):
        return (
            f"the champion differs from itself: asked twice, its {name} changed by {change.value:+.3g} "
            f"({percentage(REPEAT_CONFIDENCE, 0)} interval {change.low:+.3g} to {change.high:+.3g}); find out why before comparing others"
        )
    return None
