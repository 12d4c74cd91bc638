from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from rlhf.errors import ConfigError
from rlhf.feedback.quality import AnnotatorQualityControl, QualityRules, Verdict
from rlhf.feedback.simulate import SimulatedAnnotator


def judged(people, *, num_items=200, seed=0):
    """Items of known truth, shown in random order; every tenth is gold."""
    rng = random.Random(seed)
    for item in range(num_items):
        truth = rng.choice((-1.0, 1.0))
        longer = rng.choice((-1, 1))
        for who in people:
            first = rng.random() < 0.5
            value, seconds = who.judge(item, truth, first_is_a=first, longer=longer, seed=seed)
            yield Verdict(
                item=item, annotator=who.name, value=value, seconds=seconds, shown_first="a" if first else "b",
                longer="a" if longer > 0 else "b", at=float(item),
                gold=("a" if truth > 0 else "b") if item % 10 == 0 else None,
            )  # fmt: skip


def review(people, **how):
    return {quality.annotator: quality for quality in AnnotatorQualityControl().review(judged(people, **how))}


PEOPLE = [
    SimulatedAnnotator(name="careful"),
    SimulatedAnnotator(name="fair", error_rate=0.1),
    SimulatedAnnotator(name="good", error_rate=0.05),
]


def test_who_is_right_is_qualified_and_who_guesses_is_not():
    problems = review([*PEOPLE, SimulatedAnnotator(name="spammer", is_spammer=True)])
    assert problems["careful"].qualified
    assert problems["fair"].qualified
    assert problems["spammer"].unqualified_because[0].startswith("agreement 0.")
    assert any(reason.startswith("gold accuracy") for reason in problems["spammer"].unqualified_because)
    assert problems["spammer"].too_quick_frac > 0.4 > 0.1 > problems["careful"].too_quick_frac
    assert problems["careful"].seconds == pytest.approx(20, rel=0.2)


def test_a_leaning_to_the_first_is_seen_and_a_careful_annotator_has_none():
    problems = review([*PEOPLE, SimulatedAnnotator(name="lazy", laziness=0.6)])
    assert problems["lazy"].leans_to_position
    assert problems["lazy"].first_frac.value > 0.7
    assert not problems["careful"].leans_to_position


def test_a_leaning_to_length_is_seen():
    problems = review([*PEOPLE, SimulatedAnnotator(name="long", length_bias=2.0)])
    assert problems["long"].longer_frac.value == 1.0
    assert problems["careful"].longer_frac.value == pytest.approx(0.5, abs=0.1)


def test_somebody_who_tires_drifts_downwards():
    verdicts = list(judged(PEOPLE))
    tired = [
        replace(v, annotator="tired", value="a" if v.item > 100 else v.value)
        for v in verdicts
        if v.annotator == "careful"
    ]
    actual = {q.annotator: q for q in AnnotatorQualityControl().review([*verdicts, *tired])}
    assert actual["tired"].drift.high < 0
    assert actual["careful"].drift.low < 0 < actual["careful"].drift.high


def test_the_drift_of_somebody_who_always_agrees_is_not_known_to_the_last_digit():
    one = review([replace(PEOPLE[0], name=name) for name in ("one", "two")], num_items=40)["one"]
    assert one.drift.value == 0
    assert one.drift.low < -0.1 < 0.1 < one.drift.high, "twenty each: a share of 1 may be 0.84"


def test_agreement_is_with_the_others_and_a_draw_counts_half():
    verdicts = [
        Verdict(item=0, annotator="x", value="a"), Verdict(item=0, annotator="y", value="a"),
        Verdict(item=0, annotator="z", value="b"), Verdict(item=1, annotator="x", value="b"),
    ]  # fmt: skip
    actual = {q.annotator: q for q in AnnotatorQualityControl(QualityRules(min_judgments=1)).review(verdicts)}
    assert actual["z"].agreement.value == 0
    assert actual["x"].agreement.value == 0.5, "y says a, z says b"
    assert actual["x"].agreement.n == 1, "nobody else judged item 1"


def test_what_was_not_measured_is_said_and_does_not_qualify():
    (alone,) = AnnotatorQualityControl().review([Verdict(item=n, annotator="x", value="a") for n in range(60)])
    assert not alone.qualified
    assert alone.unqualified_because == (
        "agreement not measured: nobody else judged the same items",
        "gold accuracy not measured: no gold item was judged",
    )
    assert math.isnan(alone.seconds)
    assert "no position was kept" in alone.first_frac.reason


def test_rules_are_shares():
    with pytest.raises(ConfigError, match="min_agreement is 70"):
        QualityRules(min_agreement=70)
