"""Whom to trust: each annotator's agreement, gold accuracy, speed, leanings and drift, and who is qualified.

Every share comes with its interval, and "unqualified" always with its reason. Leanings (to what comes first, to what is
longer) are measured against one half, over judgments that chose a side, and are only meaningful where positions were
drawn at random.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from rlhf.data.message_text import counted
from rlhf.errors import ConfigError
from rlhf.evaluation.intervals import Estimate, share_interval, unit_means

SIDES = ("a", "b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One judgment, with what is known of how it was made."""

    item: Hashable
    annotator: Hashable
    value: Any
    """``a``, ``b`` or ``tie`` for a comparison; any value of a scale else."""
    gold: Any = None
    """The right value, for gold items."""
    seconds: float | None = None
    shown_first: str | None = None
    """Which side stood first on the screen."""
    longer: str | None = None
    """Which side is the longer text; None for equal ones."""
    at: float | None = None
    """When, seconds since 1970, for drift."""
    unit: Hashable = None
    """The judgment that this is part of: a ranking of four says six things, which are one piece of evidence. None: one by
    itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityRules:
    """What an annotator must show to be qualified."""

    min_judgments: int = 50
    min_agreement: float = 0.7
    """With the majority of the others."""
    min_gold_accuracy: float = 0.8
    too_quick_seconds: float = 2.0
    """Faster judgments count as not read."""

    def __post_init__(self) -> None:
        for name in ("min_agreement", "min_gold_accuracy"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it is a share, from 0 to 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotatorQuality:
    """What is known of one annotator."""

    annotator: Hashable
    num_judgments: int
    agreement: Estimate
    """With the majority of the others, over items that others judged too; a draw among them counts half."""
    gold_accuracy: Estimate
    seconds: float
    """Median; NaN where no times were kept."""
    too_quick_frac: float
    """Share of timed judgments under the rules' limit; NaN where no times were kept."""
    first_frac: Estimate
    """Share of decided comparisons won by what stood first; one half without a leaning."""
    longer_frac: Estimate
    """Share of decided comparisons won by the longer text. Longer texts may well be better: compare annotators."""
    drift: Estimate
    """Agreement in the later half of the time less that in the earlier half."""
    unqualified_because: tuple[str, ...] = field(default=())
    """Empty for a qualified annotator."""

    @property
    def qualified(self) -> bool:
        """Whether every rule is met."""
        return not self.unqualified_because

    @property
    def leans_to_position(self) -> bool:
        """Whether the interval of ``first_frac`` leaves one half out."""
        return self.first_frac.measured and not self.first_frac.low <= 0.5 <= self.first_frac.high


class AnnotatorQualityControl:
    """Judges the judges.

    Args:
        rules: What qualifies.
    """

    def __init__(self, rules: QualityRules | None = None) -> None:
        self.rules = rules or QualityRules()

    def review(self, verdicts: Iterable[Verdict]) -> list[AnnotatorQuality]:
        """Everybody who judged anything, in order of appearance.

        Args:
            verdicts: The judgments that count: one for each item and annotator.
        """
        verdicts = list(verdicts)
        by_item: dict[Hashable, list[Verdict]] = defaultdict(list)
        for verdict in verdicts:
            by_item[verdict.item].append(verdict)
        by_annotator: dict[Hashable, list[Verdict]] = defaultdict(list)
        for verdict in verdicts:
            by_annotator[verdict.annotator].append(verdict)
        return [self._review_one(name, mine, by_item) for name, mine in by_annotator.items()]

    def _review_one(
        self, name: Hashable, mine: Sequence[Verdict], by_item: dict[Hashable, list[Verdict]]
    ) -> AnnotatorQuality:
        compared = [
            (verdict, share) for verdict in mine if (share := _agreed(verdict, by_item[verdict.item])) is not None
        ]
        agreement = (
            share_interval(unit_means([share for _, share in compared], _units([v for v, _ in compared])))
            if compared
            else Estimate.missing("nobody else judged the same items")
        )
        golds = [verdict for verdict in mine if verdict.gold is not None]
        gold = (
            _share([v.value == v.gold for v in golds], golds) if golds else Estimate.missing("no gold item was judged")
        )
        whole = dict(zip(_units(mine), mine, strict=True))
        times = [verdict.seconds for verdict in whole.values() if verdict.seconds is not None]
        quick = [seconds < self.rules.too_quick_seconds for seconds in times]
        quality = AnnotatorQuality(
            annotator=name,
            num_judgments=len(whole),
            agreement=agreement,
            gold_accuracy=gold,
            seconds=median(times) if times else math.nan,
            too_quick_frac=sum(quick) / len(quick) if quick else math.nan,
            first_frac=_share_of_side(mine, "shown_first"),
            longer_frac=_share_of_side(mine, "longer"),
            drift=_drift(compared),
        )
        return _with_reasons(quality, self.rules)


def _agreed(verdict: Verdict, judgments: Sequence[Verdict]) -> float | None:
    """1 where the others' majority says the same, a share for a draw among them, None where there are no others."""
    counts: dict[Any, int] = defaultdict(int)
    for other in judgments:
        if other.annotator != verdict.annotator:
            counts[other.value] += 1
    if not counts:
        return None
    winners = [value for value, count in counts.items() if count == max(counts.values())]
    return (verdict.value in winners) / len(winners)


def _units(verdicts: Sequence[Verdict]) -> list[Hashable]:
    """Of each verdict, the judgment it is part of; its own number where it is one by itself."""
    return [(number,) if verdict.unit is None else verdict.unit for number, verdict in enumerate(verdicts)]


def _share(right: Sequence[bool], verdicts: Sequence[Verdict]) -> Estimate:
    return share_interval(unit_means([float(is_right) for is_right in right], _units(verdicts)))


def _share_of_side(verdicts: Sequence[Verdict], side: str) -> Estimate:
    decided = [v for v in verdicts if v.value in SIDES and getattr(v, side) in SIDES]
    if not decided:
        what = (
            "no position was kept"
            if side == "shown_first"
            else "no comparison of texts of different length was decided"
        )
        return Estimate.missing(what)
    return _share([v.value == getattr(v, side) for v in decided], decided)


def _drift(compared: Sequence[tuple[Verdict, float]]) -> Estimate:
    """Difference of the two halves' means.

        low = d - sqrt((late - late_low)^2 + (early_high - early)^2),    high = d + sqrt((late_high - late)^2 + (early - early_low)^2)

    which is not a point where everybody agrees, unlike Welch's. Source: Newcombe 1998, "Interval estimation for the difference
    between independent proportions", method 10, Statistics in Medicine 17; with ``share_interval`` of each half.
    """
    dated = [(v, share) for v, share in compared if v.at is not None]
    units = _units([v for v, _ in dated])
    shares = unit_means([share for _, share in dated], units)
    began = unit_means([v.at or 0.0 for v, _ in dated], units)
    timed = sorted(zip(began, shares, strict=True), key=lambda pair: pair[0])
    if timed and timed[0][0] == timed[-1][0]:
        return Estimate.missing("all judgments have the same time, as those of a file without times do", n=len(timed))
    half = len(timed) // 2
    if half < 10:
        return Estimate.missing("fewer than 20 judgments with a time and others' verdicts", n=len(timed))
    early, late = (share_interval([share for _, share in part]) for part in (timed[:half], timed[-half:]))
    difference = late.value - early.value
    below = math.hypot(late.value - late.low, early.high - early.value)
    above = math.hypot(late.high - late.value, early.value - early.low)
    return Estimate(value=difference, low=difference - below, high=difference + above, n=len(timed))


def _with_reasons(annotator_quality: AnnotatorQuality, rules: QualityRules) -> AnnotatorQuality:
    reasons = []
    if annotator_quality.num_judgments < rules.min_judgments:
        reasons.append(f"{counted(annotator_quality.num_judgments, 'judgment')} of at least {rules.min_judgments}")
    for what, estimate, least in (
        ("agreement", annotator_quality.agreement, rules.min_agreement),
        ("gold accuracy", annotator_quality.gold_accuracy, rules.min_gold_accuracy),
    ):
        if not estimate.measured:
            reasons.append(f"{what} not measured: {estimate.reason}")
        elif estimate.value < least:
            reasons.append(f"{what} {estimate.value:.2f} of at least {least:g}")
    values = {name: getattr(annotator_quality, name) for name in AnnotatorQuality.__dataclass_fields__}
    return AnnotatorQuality(**{**values, "unqualified_because": tuple(reasons)})
