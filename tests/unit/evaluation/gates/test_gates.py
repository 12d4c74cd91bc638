"""Requirements one by one and together: what passes, what fails, and what is never taken for a pass."""

from __future__ import annotations

import json
import math

import pytest

from rlhf.errors import ConfigError, DataError
from rlhf.evaluation.decision import Decision, Ruling
from rlhf.evaluation.gates.gate import NOT_COMPARED, decide
from rlhf.evaluation.gates.gate_file import SCHEMA, SEAL, read_evidence, replay, sealed
from rlhf.evaluation.gates.measurements import Measurements, MetricMeasurement, StageAlarms
from tests.fixtures.gate_records import measured, metric, required, suite, suite_run, values

PASS, FAIL, UNDECIDED = Decision.PASS, Decision.FAIL, Decision.UNDECIDED


def ruling_of(requirement, measurements, **options):
    (ruling,) = decide([requirement], measurements, **options).rulings.values()
    return ruling


def shares(right, n=400):
    return [1.0] * right + [0.0] * (n - right)


@pytest.mark.parametrize(
    ("right", "expected"), [(240, PASS), (200, UNDECIDED), (160, FAIL)], ids=["above", "at the value", "below"]
)
def test_at_least_needs_the_whole_interval_above_the_value(right, expected):
    ruling = ruling_of(required("at_least", metric="judge_score", value=0.5), measured(metric(shares(right))))
    assert ruling.decision is expected
    assert ruling.evidence["value"] == pytest.approx(right / 400)
    assert ruling.evidence["low"] < right / 400 < ruling.evidence["high"]


def test_at_least_by_hand():
    """mean .6 of 400 shares: variance .24 and the rule of three's (ln 20 / 1.645)^2 / 400, half-width 1.645 sqrt(. / 400);
    skewness shifts both ends by m3 (1 + 2 z^2) / (6 n s^2), m3 = p (1 - p) (1 - 2 p)."""
    ruling = ruling_of(required("at_least", metric="judge_score", value=0.5), measured(metric(shares(240))))
    z, n = 1.6448536, 400
    variance = 0.24 + (math.log(20) / z) ** 2 / n
    shift = 0.24 * (1 - 1.2) * (1 + 2 * z * z) / (6 * n * variance)
    assert ruling.evidence["low"] == pytest.approx(0.6 - z * math.sqrt(variance / n) + shift, abs=1e-6)


def test_at_most_is_the_mirror_image_and_speaks_of_the_metric():
    ruling = ruling_of(required("at_most", metric="judge_score", value=0.5), measured(metric(shares(160))))
    assert ruling.decision is PASS
    assert ruling.evidence["value"] == pytest.approx(0.4)
    assert ruling.evidence["low"] < 0.4 < ruling.evidence["high"] < ruling.evidence["bound"] == 0.5
    raised = ruling_of(required("at_most", metric="judge_score", value=0.5), measured(metric(shares(240))))
    assert raised.decision is FAIL


@pytest.mark.parametrize(
    ("lost", "expected"), [(0, PASS), (20, UNDECIDED), (80, FAIL)], ids=["unchanged", "the margin", "far more"]
)
def test_non_inferior_pairs_prompts(lost, expected):
    measurement = measured(metric(shares(300 - lost), shares(300)))
    ruling = ruling_of(required("non_inferior", metric="judge_score", margin=0.05), measurement)
    assert ruling.decision is expected
    assert ruling.evidence["difference"] == pytest.approx(-lost / 400)


@pytest.mark.parametrize(
    ("old", "new"), [(20, 0), (0, 0), (40, 0)], ids=["all lost", "nothing to lose", "as much as the margin"]
)
def test_where_all_that_the_champion_scores_may_be_lost_nothing_is_decided(old, new):
    """5 % solved and a margin of 10 points: a collapse to 0 would pass."""
    of_metric = required("non_inferior", metric="judge_score", margin=0.1)
    assert ruling_of(of_metric, measured(metric(shares(new), shares(old)))).decision is UNDECIDED
    of_suite = required("non_inferior", suite="sums", margin=0.1)
    asked = measured(suites={"sums": suite(suite_run(shares(new)), suite_run(shares(old)))})
    assert ruling_of(of_suite, asked).decision is UNDECIDED
    mirrored = required("non_inferior", metric="judge_score", margin=0.1, lower_is_better=True)
    risen = metric([1 - share for share in shares(new)], [1 - share for share in shares(old)])
    assert ruling_of(mirrored, measured(risen)).decision is UNDECIDED
    assert ruling_of(of_metric, measured(risen)).decision is PASS, "90 to 100 % can be lost there, and none was"


def test_where_lower_is_better_a_rise_is_the_loss():
    measurement = measured(metric(shares(180), shares(100)))
    settings = {"metric": "judge_score", "lower_is_better": True}
    assert ruling_of(required("non_inferior", margin=0.05, **settings), measurement).decision is FAIL
    assert ruling_of(required("better", **settings), measurement).decision is FAIL
    fallen = measured(metric(shares(100), shares(180)))
    assert ruling_of(required("better", **settings), fallen).decision is PASS


def test_a_win_rate_is_compared_with_one_half():
    def wins(share):
        return measured(metric(shares(int(400 * share)), name="win_rate", compares=True, neutral=0.5))

    assert ruling_of(required("better", metric="win_rate"), wins(0.6)).decision is PASS
    assert ruling_of(required("better", metric="win_rate"), wins(0.52)).decision is UNDECIDED
    assert ruling_of(required("better", metric="win_rate"), wins(0.4)).decision is FAIL
    assert ruling_of(required("better", metric="win_rate", by=0.08), wins(0.6)).decision is UNDECIDED
    assert ruling_of(required("non_inferior", metric="win_rate", margin=0.05), wins(0.5)).decision is PASS


def test_raw_scores_have_no_bound():
    old = [float(place % 9) for place in range(200)]
    new = [value + (0.5 if place % 2 else 0.9) for place, value in enumerate(old)]
    assert ruling_of(required("better", metric="judge_score"), measured(metric(new, old))).decision is PASS
    same = ruling_of(required("better", metric="judge_score"), measured(metric(old, old)))
    assert same.decision is UNDECIDED  # no spread at all, in units that nobody knows


def test_a_suite_has_its_own_margin_and_obstacles():
    before, after = suite_run(shares(300)), suite_run(shares(296))
    requirement = required("non_inferior", suite="sums")
    assert ruling_of(requirement, measured(suites={"sums": suite(after, before)})).decision is PASS
    wide = required("non_inferior", suite="sums", margin=0.001)
    assert ruling_of(wide, measured(suites={"sums": suite(after, before)})).decision is UNDECIDED
    flaky = suite(after, before, again=suite_run(shares(200)))
    assert "differs from itself" in ruling_of(requirement, measured(suites={"sums": flaky})).reason
    high = required("at_least", suite="sums", value=0.7)
    assert ruling_of(high, measured(suites={"sums": suite(after)}, has_champion=False)).decision is PASS


def test_trap_16_not_significantly_worse_is_no_pass():
    """Twelve prompts, one lost: no test finds a loss, and the naive gate lets it pass."""
    measurement = measured(metric(shares(8, 12), shares(9, 12)))
    ruling = ruling_of(required("non_inferior", metric="judge_score", margin=0.05), measurement)
    assert ruling.decision is UNDECIDED
    assert ruling.evidence["num_more"] > 100
    assert decide([required("non_inferior", metric="judge_score", margin=0.05)], measurement).decision is UNDECIDED


def test_trap_17_failures_are_corrected_for_the_number_of_requirements():
    """A loss that fails by itself at p = .03 fails no more among twenty; a pass needs all twenty at the full level."""
    lost = metric(shares(300 - 32), shares(300), name="judge_score/x0")
    others = [metric(shares(300), shares(300), name=f"judge_score/x{place}") for place in range(1, 20)]
    requirements = [required("non_inferior", metric=f"judge_score/x{place}", margin=0.05) for place in range(20)]
    assert decide(requirements[:1], measured(lost)).decision is FAIL
    together = decide(requirements, measured(lost, *others))
    assert together.decision is UNDECIDED
    first = together.rulings["non_inferior judge_score/x0"]
    assert first.evidence["p_beyond"] < 0.05 < first.evidence["p_beyond_holm"]
    assert {ruling.decision for name, ruling in together.rulings.items() if name != "non_inferior judge_score/x0"} == {
        PASS
    }


def test_an_alarm_is_no_chance_and_needs_no_correction():
    alarms = StageAlarms(stage="ppo", watched=["kl"], alarms=[{"guard": "kl", "step": 3, "message": "far"}])
    measurement = measured(
        *[metric(shares(300), shares(300), name=f"judge_score/x{n}") for n in range(5)], stages={"": alarms}
    )
    requirements = [required("non_inferior", metric=f"judge_score/x{n}", margin=0.05) for n in range(5)]
    assert decide([*requirements, required("no_alarm")], measurement).decision is FAIL


def test_trap_24_a_champion_that_was_measured_otherwise_is_compared_with_nothing():
    settings = {"candidate": "judge of May", "champion": "judge of March"}
    measurement = measured(metric(shares(400), shares(100), measured_with=settings))
    ruling = ruling_of(required("better", metric="judge_score"), measurement)
    assert ruling.decision is UNDECIDED
    assert "another judge" in ruling.reason
    same = measured(metric(shares(400), shares(100), measured_with=dict.fromkeys(settings, "one")))
    assert ruling_of(required("better", metric="judge_score"), same).decision is PASS
    other_suite = suite(suite_run(shares(400)), suite_run(shares(100), fingerprint="older"))
    changed = ruling_of(required("better", suite="sums"), measured(suites={"sums": other_suite}))
    assert changed.decision is UNDECIDED
    other_prompts = MetricMeasurement(name="judge_score", candidate=values(shares(400)), champion={"q": 0.0})
    assert ruling_of(required("better", metric="judge_score"), measured(other_prompts)).decision is UNDECIDED


@pytest.mark.parametrize("whose", ["candidate", "champion"])
def test_with_fewer_than_95_percent_measured_nothing_is_decided(whose):
    full, holed = shares(400), [None] * 21 + shares(379, 379)
    actual = metric(holed, full) if whose == "candidate" else metric(full, holed)
    ruling = ruling_of(required("non_inferior", metric="judge_score", margin=0.5), measured(actual))
    assert ruling.decision is UNDECIDED
    assert whose in ruling.reason
    few = metric([None] * 8 + shares(392, 392), full)
    assert ruling_of(required("non_inferior", metric="judge_score", margin=0.5), measured(few)).evidence["n"] == 392


@pytest.mark.parametrize("number", [math.nan, math.inf, None])
def test_numbers_that_are_none_never_pass(number):
    measurement = measured(metric([number] * 400, shares(100)))
    for requirement in (
        required("at_least", metric="judge_score", value=-1e9),
        required("non_inferior", metric="judge_score", margin=1e9),
        required("better", metric="judge_score"),
    ):
        assert ruling_of(requirement, measurement).decision is UNDECIDED


def test_what_was_not_measured_is_undecided_with_the_reason():
    measurement = measured(missing={"judge_score": "the judge hung"})
    assert "hung" in ruling_of(required("at_least", metric="judge_score", value=0), measurement).reason
    assert ruling_of(required("better", suite="sums"), measured()).decision is UNDECIDED
    assert ruling_of(required("no_alarm"), measured()).decision is UNDECIDED


def test_a_champion_that_differs_from_itself_decides_nothing():
    measurement = measured(metric(shares(400), shares(300), again=values(shares(200))))
    ruling = ruling_of(required("better", metric="judge_score"), measurement)
    assert ruling.decision is UNDECIDED
    assert "differs from itself" in ruling.reason


@pytest.mark.parametrize(
    "again",
    [
        values([None] * 400),
        values([math.nan] * 21 + shares(300, 379)),
        values(shares(300, 399)),
        {f"other{place}": number for place, number in enumerate(shares(300))},
    ],
    ids=["nothing scored", "94.75 % scored", "a prompt fewer", "other prompts"],
)
def test_a_repeat_without_the_same_evidence_vouches_for_nothing(again):
    requirement = required("better", metric="judge_score")
    assert ruling_of(requirement, measured(metric(shares(400), shares(300), again=again))).decision is UNDECIDED
    nearly = values([None] * 20 + shares(300)[20:])
    assert ruling_of(requirement, measured(metric(shares(400), shares(300), again=nearly))).decision is PASS


@pytest.mark.parametrize(("n", "expected"), [(4, UNDECIDED), (5, UNDECIDED), (6, PASS)])
def test_few_prompts_that_all_agree_come_by_chance(n, expected):
    """All of n prompts are won in 2^-n of runs: 3.1 % at 5, above the 2.5 % that `better` promises."""
    assert (
        ruling_of(required("better", metric="judge_score"), measured(metric([1.0] * n, [0.0] * n))).decision is expected
    )
    rate = metric([1.0] * n, name="win_rate", compares=True, neutral=0.5)
    assert ruling_of(required("better", metric="win_rate"), measured(rate)).decision is not FAIL
    if expected is UNDECIDED:
        assert ruling_of(required("better", metric="win_rate"), measured(rate)).decision is UNDECIDED


def test_the_interval_of_a_win_rate_ends_where_shares_end():
    rate = metric([1.0] * 6 + [0.0] * 2, name="win_rate", compares=True, neutral=0.5)
    for requirement in (required("better", metric="win_rate"), required("non_inferior", metric="win_rate", margin=0.1)):
        ruling = ruling_of(requirement, measured(rate))
        assert -0.5 <= ruling.evidence["low"] < ruling.evidence["high"] == 0.5
        assert "+0.5]" in ruling.reason
    raw = metric([3.0, 1.0, 2.0, 4.0, 9.0, 5.0], name="win_rate", compares=True, neutral=0.5)
    assert ruling_of(required("better", metric="win_rate"), measured(raw)).evidence["high"] > 0.5, "no share"


def estimate(low, high, confidence=0.95):
    return {"value": (low + high) / 2, "low": low, "high": high, "n": 100, "confidence": confidence}


def test_an_interval_of_less_confidence_than_the_gate_asks_decides_nothing():
    length = MetricMeasurement(name="length", estimate=estimate(20, 30), gain=estimate(2, 6))
    below = required("at_most", metric="length", value=40)
    gain = required("better", metric="length")
    kept = required("non_inferior", metric="length", margin=1)
    for requirement, most in ((below, 0.975), (kept, 0.975), (gain, 0.95)):  # two-sided .95 is .975 at each end
        assert ruling_of(requirement, measured(length), confidence=most).decision is PASS
        assert ruling_of(requirement, measured(length), confidence=most + 0.01).decision is UNDECIDED
    wide = MetricMeasurement(name="length", gain=estimate(2, 6, confidence=0.99))
    assert ruling_of(gain, measured(wide), confidence=0.99).decision is PASS


def test_a_gain_of_a_metric_that_is_no_mean_must_exceed_by():
    length = measured(MetricMeasurement(name="length", gain=estimate(2, 6)))
    for by, expected in ((1, PASS), (3, UNDECIDED), (7, FAIL)):
        assert ruling_of(required("better", metric="length", by=by), length).decision is expected
    fallen = measured(MetricMeasurement(name="length", gain=estimate(-6, -2)))
    for by, expected in ((1, PASS), (3, UNDECIDED), (7, FAIL)):
        assert ruling_of(required("better", metric="length", by=by, lower_is_better=True), fallen).decision is expected


def test_an_interval_without_width_decides_nothing():
    point = measured(MetricMeasurement(name="length", estimate=estimate(5, 5), gain=estimate(5, 5)))
    for requirement in (
        required("at_least", metric="length", value=1),
        required("at_least", metric="length", value=9),
        required("better", metric="length"),
    ):
        assert ruling_of(requirement, point).decision is UNDECIDED


def test_metrics_that_are_no_mean_are_decided_by_their_interval():
    def median(low, high):
        return {"value": (low + high) / 2, "low": low, "high": high, "n": 100, "confidence": 0.95}

    length = MetricMeasurement(name="length", estimate=median(20, 30), gain=median(-6, -2))
    assert ruling_of(required("at_most", metric="length", value=40), measured(length)).decision is PASS
    assert ruling_of(required("at_least", metric="length", value=40), measured(length)).decision is FAIL
    assert ruling_of(required("better", metric="length", lower_is_better=True), measured(length)).decision is PASS
    loss = ruling_of(required("non_inferior", metric="length", margin=1), measured(length))
    assert loss.decision is FAIL
    assert loss.evidence["p_beyond"] == pytest.approx(0.00164, abs=1e-4)  # (4 - 1) / (2 / 1.96) = 2.94 standard errors
    point = MetricMeasurement(
        name="length", estimate={"value": 5, "low": None, "high": None, "n": 1, "reason": "one text"}
    )
    assert "one text" in ruling_of(required("at_most", metric="length", value=40), measured(point)).reason


def test_silence_of_a_guard_that_was_off_says_nothing():
    stage = StageAlarms(stage="ppo", watched=["kl"], alarms=[])
    assert ruling_of(required("no_alarm"), measured(stages={"": stage})).decision is PASS
    assert ruling_of(required("no_alarm", alarms=["kl"]), measured(stages={"": stage})).decision is PASS
    assert ruling_of(required("no_alarm", alarms=["length"]), measured(stages={"": stage})).decision is UNDECIDED
    nobody = StageAlarms(stage="ppo", watched=[], alarms=[])
    assert ruling_of(required("no_alarm"), measured(stages={"": nobody})).decision is UNDECIDED
    other = StageAlarms(
        stage="ppo", watched=["kl", "length"], alarms=[{"guard": "length", "step": 1, "message": "long"}]
    )
    assert ruling_of(required("no_alarm", alarms=["kl"]), measured(stages={"": other})).decision is PASS


@pytest.mark.parametrize("watched", [["kl"], []])
def test_an_alarm_counts_whatever_is_known_of_who_watched(watched):
    alarms = [{"guard": "judge_slope", "step": 4, "message": "falls"}]
    stage = measured(stages={"": StageAlarms(stage="ppo", watched=watched, alarms=alarms)})
    ruling = ruling_of(required("no_alarm"), stage)
    assert ruling.decision is FAIL
    assert ruling.evidence["asked"] == [*watched, "judge_slope"]
    assert ruling_of(required("no_alarm", alarms=["judge_slope"]), stage).decision is FAIL
    assert ruling_of(required("no_alarm", alarms=["kl"]), stage).decision is (PASS if watched else UNDECIDED)


def test_the_first_champion_has_nobody_to_be_compared_with_and_the_rest_decides():
    comparison = required("better", metric="win_rate")
    good = measured(metric(shares(300)), has_champion=False)
    decision = decide([comparison, required("at_least", metric="judge_score", value=0.5)], good)
    assert decision.decision is PASS
    assert decision.rulings["better win_rate"].decision is UNDECIDED
    assert decision.rulings["better win_rate"].evidence[NOT_COMPARED]
    bad = measured(metric(shares(100)), has_champion=False)
    assert decide([comparison, required("at_least", metric="judge_score", value=0.5)], bad).decision is FAIL
    alone = decide([comparison], measured(has_champion=False))
    assert alone.decision is UNDECIDED, "nothing is known of it"
    assert "rlhf registry promote" in alone.reason
    rate = required("at_least", metric="win_rate", value=0.5)
    assert decide([rate], measured(has_champion=False)).rulings[rate.label].evidence[NOT_COMPARED]


def own_rule(measurements, least=0):
    enough = len(measurements.values("judge_score")) >= least
    return Ruling(decision=PASS if enough else FAIL, reason="counted")


def no_ruling(measurements):
    return True


def test_a_requirement_of_the_user_s_own():
    measurement, name = measured(metric(shares(3, 9))), f"{__name__}:own_rule"
    assert ruling_of(required("function", function=name), measurement).decision is PASS
    assert ruling_of(required("function", function=name, arguments={"least": 10}), measurement).decision is FAIL
    with pytest.raises(ConfigError, match="no_ruling"):
        ruling_of(required("function", function=f"{__name__}:no_ruling"), measurement)
    with pytest.raises(ConfigError, match="without requirements"):
        decide([], measurement)


def document_of(requirements, measurements):
    return {
        "schema": SCHEMA, "confidence": 0.95, "requirements": [each.model_dump(mode="json") for each in requirements],
        "measurements": measurements.to_dict(), **decide(requirements, measurements).to_dict(),
    }  # fmt: skip


@pytest.fixture
def document():
    requirements = [
        required("non_inferior", suite="sums"), required("better", metric="judge_score"),
        required("no_alarm"), required("at_most", metric="judge_score", value=0.99),
    ]  # fmt: skip
    measurement = measured(
        metric(shares(350), shares(250), measured_with={"candidate": "x", "champion": "x"}),
        suites={"sums": suite(suite_run(shares(300)), suite_run(shares(300)), again=suite_run(shares(300)))},
        stages={"": StageAlarms(stage="ppo", watched=["kl"])},
    )
    return json.loads(json.dumps(document_of(requirements, measurement)))


def test_a_decision_is_made_again_from_its_file(document, tmp_path):
    path = tmp_path / "gate.json"
    path.write_text(json.dumps(sealed(document)))
    again = replay(read_evidence(path))
    assert again.decision is PASS
    assert json.loads(json.dumps(again.to_dict())) == {key: document[key] for key in ("decision", "reason", "rulings")}
    assert Measurements.from_dict(document["measurements"]).to_dict() == document["measurements"]


def test_a_file_that_was_changed_is_found_out(document, tmp_path):
    measured_scores = document["measurements"]["metrics"]["judge_score"]["candidate"]
    measured_scores.update(dict.fromkeys(list(measured_scores)[:40], 0.0))
    with pytest.raises(DataError, match="judge_score"):
        replay(document)
    with pytest.raises(DataError, match="requirements"):
        replay({**document, "requirements": [{"kind": "at_leest"}]})
    with pytest.raises(DataError, match="measurements"):
        replay({**document, "measurements": {"metrics": {}}})
    path = tmp_path / "gate.json"
    path.write_text(json.dumps({"decision": "pass"}))
    with pytest.raises(DataError, match=r"gate\.json"):
        read_evidence(path)
    for edited in ({**sealed(document), "run": "another"}, {**sealed(document), SEAL: None}, document):
        path.write_text(json.dumps(edited))
        with pytest.raises(DataError, match="changed"):
            read_evidence(path)
    path.write_text(json.dumps({**document, "schema": 99}))
    with pytest.raises(DataError, match="99"):
        read_evidence(path)


@pytest.mark.parametrize("kind", ["metric", "suite"])
def test_a_pass_holds_with_the_worst_in_place_of_what_the_candidate_lacks(kind):
    """8 of 200 missing is 4 %: with them left out nothing was lost, and with them lost twice the margin."""
    champion, complete = [1.0] * 100 + [0.0] * 100, [1.0] * 100 + [0.0] * 100
    lacking = [None] * 8 + complete[8:]
    decisions = {}
    for name, candidate in (("complete", complete), ("lacking", lacking)):
        if kind == "metric":
            measurement = measured(metric(candidate, champion))
            requirement = required("non_inferior", metric="judge_score", margin=0.02)
        else:
            measurement = measured(suites={"sums": suite(suite_run(candidate), suite_run(champion), margin=0.02)})
            requirement = required("non_inferior", suite="sums")
        decisions[name] = decide([requirement], measurement).decision
    assert decisions == {"complete": Decision.PASS, "lacking": Decision.UNDECIDED}


@pytest.mark.parametrize(("unbounded", "decision"), [(False, Decision.UNDECIDED), (True, Decision.PASS)])
def test_raw_rewards_that_happen_to_lie_between_0_and_1_are_no_shares(unbounded, decision):
    """All below the margin: a share could lose no more than it tolerates, a raw reward could fall to -10."""
    before = [0.01 * (place % 4) for place in range(100)]
    after = [score + 0.001 * (place % 3) for place, score in enumerate(before)]
    both = suite(suite_run(after, unbounded=unbounded), suite_run(before, unbounded=unbounded), margin=0.05)
    assert (both.pairs(compared=True).largest is None) == unbounded
    assert decide([required("non_inferior", suite="sums")], measured(suites={"sums": both})).decision == decision
