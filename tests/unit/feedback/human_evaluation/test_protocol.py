from __future__ import annotations

import json
import math
import random
import re
from collections import Counter

import pytest

from rlhf.config.guidelines import AnnotationGuideline
from rlhf.errors import ConfigError, DataError
from rlhf.evaluation.sample_size import prompts_for_win_rate
from rlhf.feedback.dry_run import simulate
from rlhf.feedback.human_evaluation.analysis import MIN_RATED
from rlhf.feedback.human_evaluation.criteria import CRITERIA, OVERALL, Judged
from rlhf.feedback.human_evaluation.protocol import HumanEvalProtocol
from rlhf.feedback.simulate import crowd
from rlhf.store import AssignmentRules, PreferenceStore, Submission

PROMPTS = [f"Question {number}?" for number in range(12)]
COMPLETIONS = {model: [f"{model[0]} says {number}" for number in range(12)] for model in ("weak", "strong", "middling")}


def judged_pair(item, value, *, who="ann", models=("new", "old"), criterion=OVERALL):
    return Judged(
        item=item, criterion=criterion, kind="pairwise", models=models, annotator=who, value={"preference": value}
    )


def rated(item, ratings, *, who="ann", models=("new", "old")):
    return Judged(item=item, criterion=OVERALL, kind="rating", models=models, annotator=who, value={"ratings": ratings})


def of(results, criterion=OVERALL):
    return next(criterion_result for criterion_result in results if criterion_result.criterion == criterion)


def test_each_model_is_first_equally_often_and_the_order_is_kept_with_the_task():
    protocol = HumanEvalProtocol(criteria=(), seed=3)
    tasks = protocol.build_tasks(PROMPTS, COMPLETIONS)
    assert len(tasks) == 36
    firsts = Counter((frozenset(r.model for r in task.responses), task.responses[0].model) for task in tasks)
    assert set(firsts.values()) == {6}
    for task in tasks:
        for response in task.responses:
            assert response.text == COMPLETIONS[response.model][PROMPTS.index(task.prompt)]
    again = {seed: HumanEvalProtocol(criteria=(), seed=seed).build_tasks(PROMPTS, COMPLETIONS) for seed in (3, 4)}
    assert again[3] == tasks, "the same seed gives the same orders"
    orders = {seed: {t.prompt + t.responses[0].text for t in actual} for seed, actual in again.items()}
    assert orders[3] != orders[4]


def test_in_a_ranking_each_model_stands_at_each_place_equally_often():
    tasks = HumanEvalProtocol(kind="ranking", criteria=()).build_tasks(PROMPTS, COMPLETIONS)
    places = Counter((place, response.model) for task in tasks for place, response in enumerate(task.responses))
    assert set(places.values()) == {4}


def test_an_annotator_can_read_the_models_from_nothing_that_is_exported(tmp_path):
    protocol = HumanEvalProtocol()
    tasks = protocol.build_tasks(PROMPTS, {"secret-one": ["x"] * 12, "secret-two": ["y"] * 12})
    protocol.export(tasks, tmp_path / "tasks.jsonl", tmp_path / "key.jsonl")
    assert "secret" not in (tmp_path / "tasks.jsonl").read_text()
    assert "secret" in (tmp_path / "key.jsonl").read_text()
    assert len(tasks) == 12 * len(CRITERIA)
    assert all("Judge by " in task.prompt for task in tasks), "each task asks one thing"


def test_a_conversation_gets_the_criterion_as_a_turn_before_it():
    protocol = HumanEvalProtocol(criteria=CRITERIA[:1])
    turns = [{"role": "user", "content": "Hello?"}]
    (task,) = protocol.build_tasks([turns], {"one": ["x"], "two": ["y"]})
    assert task.prompt[1:] == turns
    assert "helpfulness" in task.prompt[0]["content"]


def test_what_another_tool_gives_back_is_decoded_by_the_key(tmp_path):
    protocol = HumanEvalProtocol(criteria=())
    tasks = protocol.build_tasks(PROMPTS, {"weak": ["w"] * 12, "strong": ["s"] * 12})
    protocol.export(tasks, tmp_path / "tasks.jsonl", tmp_path / "key.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "tasks.jsonl").read_text().splitlines()]
    judged = [
        {"id": row["id"], "annotator": "ann", "value": {"preference": "ab"[row["completions"].index("s")]}}
        for row in rows
    ]
    (tmp_path / "judged.jsonl").write_text("".join(json.dumps(row) + "\n" for row in judged))
    assert {row["value"]["preference"] for row in judged} == {"a", "b"}, "the order differs from task to task"
    analysis = protocol.analyze(protocol.read(tmp_path / "judged.jsonl", tmp_path / "key.jsonl"), resamples=5)
    rate = of(analysis.win_rates).rate
    assert (rate.wins, rate.losses) == (12, 0)
    assert of(analysis.win_rates).first == "strong"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"id": "nobody", "annotator": "ann", "value": {"preference": "a"}}, "no task 'nobody'"),
        ({"annotator": "ann", "value": {"preference": "a"}}, "has no id"),
        ({"annotator": "ann", "value": {"preference": "c"}, "id": 0}, "wanted `a`, `b` or `tie`"),
        ({"annotator": "ann", "value": "a", "id": 0}, "wanted an object"),
        ([1], "is no object"),
    ],
)
def test_a_line_that_can_not_be_decoded_is_named(tmp_path, line, message):
    protocol = HumanEvalProtocol(criteria=())
    tasks = protocol.build_tasks(PROMPTS[:1], {"one": ["w"], "two": ["s"]})
    protocol.export(tasks, tmp_path / "tasks.jsonl", tmp_path / "key.jsonl")
    if isinstance(line, dict) and line.get("id") == 0:
        line = {**line, "id": tasks[0].id}
    (tmp_path / "judged.jsonl").write_text("\n" + json.dumps(line) + "\n")
    with pytest.raises(DataError, match=r"judged\.jsonl:2") as caught:
        protocol.read(tmp_path / "judged.jsonl", tmp_path / "key.jsonl")
    assert message in str(caught.value)


def test_a_judgment_that_comes_twice_is_refused(tmp_path):
    protocol = HumanEvalProtocol(criteria=())
    (task,) = protocol.build_tasks(PROMPTS[:1], {"one": ["w"], "two": ["s"]})
    protocol.export([task], tmp_path / "tasks.jsonl", tmp_path / "key.jsonl")
    line = json.dumps({"id": task.id, "annotator": "ann", "value": {"preference": "a"}})
    (tmp_path / "judged.jsonl").write_text(f"{line}\n{line}\n")
    with pytest.raises(DataError, match=r"judged.jsonl:2: 'ann'.*judged.jsonl:1"):
        protocol.read(tmp_path / "judged.jsonl", tmp_path / "key.jsonl")


def test_an_evaluation_runs_through_a_store_and_finds_the_better_model(tmp_path):
    protocol = HumanEvalProtocol(kind="rating", seed=1)
    tasks = protocol.build_tasks(PROMPTS, COMPLETIONS)
    level = {"s": 5, "m": 3, "w": 2}
    with PreferenceStore(tmp_path / "s.db", rules=AssignmentRules(overlap=1)) as store:
        assert protocol.open(store, tasks) == 12
        assert protocol.open(store, tasks) == 0, "opening it again adds nothing"
        store.add_annotator("ann")
        while held := store.next_task("ann"):
            ratings = {c.name: [level[r.text[0]] for r in held.task.responses] for c in CRITERIA}
            ratings["clarity"] = [3] * 3
            sent = Submission(assignment=held.number, key=f"k{held.number}", value={"ratings": ratings})
            store.submit("ann", sent)
        analysis = protocol.analyze(store, resamples=10)
    # weights 1, 1.2, 1.5, 0.8, 0.8; clarity is 3 for all: strong = (4.5 * 5 + 0.8 * 3) / 5.3
    overall = {score.model: score.mean.value for score in analysis.scores if score.criterion == OVERALL}
    assert overall["strong"] == pytest.approx((4.5 * 5 + 2.4) / 5.3)
    assert list(analysis.strengths) == ["strong", "middling", "weak"]
    assert of(analysis.scores, "clarity").mean.value == 3
    assert of(analysis.scores, "clarity").std == 0
    assert all(v.rate.ties == 12 for v in analysis.win_rates if v.criterion == "clarity")
    json.dumps(analysis.to_dict(), allow_nan=False)
    assert "strong over weak" in analysis.to_text()


def test_other_guidelines_in_the_store_are_not_overwritten(tmp_path):
    with PreferenceStore(tmp_path / "s.db") as store:
        store.set_setting("guidelines", [{"name": "wit"}])
        with pytest.raises(ConfigError, match="guidelines are wit"):
            HumanEvalProtocol(kind="rating").open(store, [])


def test_the_prompt_is_the_unit_and_not_the_judgment():
    # Three annotators who agree on 20 prompts know no more about the models than one does.
    one = [judged_pair(str(n), "a" if n % 4 else "b") for n in range(20)]
    three = [judged_pair(str(n), "a" if n % 4 else "b", who=who) for n in range(20) for who in ("ann", "bob", "cem")]
    alone, together = (of(HumanEvalProtocol(criteria=()).analyze(x, resamples=2).win_rates).rate for x in (one, three))
    assert alone.rate == together.rate == 0.75
    assert (alone.low, alone.high) == pytest.approx((together.low, together.high))
    assert (alone.n, together.n, together.num_prompts) == (20, 60, 20)


def test_models_are_compared_by_their_difference_on_the_same_prompt():
    # Prompts differ by up to 4 in how they are rated, the models by exactly 1 on each.
    given = [rated(str(n), {"accuracy": [2 + n % 4, 1 + n % 4]}) for n in range(20)]
    analysis = HumanEvalProtocol(kind="rating").analyze(given, resamples=2)
    difference = of(analysis.differences, "accuracy").mean
    assert difference.value == 1
    assert math.isnan(difference.low), "twenty times the same shows no spread"
    assert "same value" in analysis.to_text()
    scores = {score.model: score.mean for score in analysis.scores if score.criterion == "accuracy"}
    assert scores["old"].high > scores["new"].low, "side by side the intervals overlap"
    # ratings 2, 3, 4, 5, five times each: variance 25 / 19
    assert of(analysis.scores, "accuracy").std == pytest.approx(math.sqrt(25 / 19))


def test_a_mean_of_few_prompts_has_no_interval_and_says_so():
    given = [rated(str(n), {"accuracy": [5, 3 + n % 2]}) for n in range(MIN_RATED)]
    enough = of(HumanEvalProtocol(kind="rating").analyze(given, resamples=2).differences, "accuracy").mean
    assert enough.low < enough.value < enough.high
    few = HumanEvalProtocol(kind="rating").analyze(given[:2], resamples=2)
    assert math.isnan(of(few.differences, "accuracy").mean.low)
    assert f"new less old: +1.50 (no interval: 2 prompts, and it takes {MIN_RATED})" in few.to_text()
    assert all(math.isnan(strength.low) for strength in few.strengths.values())


def test_a_model_s_name_can_not_steer_the_terminal():
    given = [judged_pair(str(n), "a", models=("new\x1b[2J", "old")) for n in range(4)]
    text = HumanEvalProtocol(criteria=()).analyze(given, resamples=2).to_text()
    assert "\x1b" not in text
    assert "new\\x1b[2J over old" in text


def test_criteria_are_told_apart_and_pooled():
    given = [judged_pair(str(n), "a", criterion="clarity") for n in range(10)]
    given += [judged_pair(str(n), "b", criterion="accuracy") for n in range(10)]
    analysis = HumanEvalProtocol().analyze(given, resamples=2)
    assert of(analysis.win_rates, "clarity").rate.rate == 1
    assert of(analysis.win_rates, "accuracy").rate.rate == 0
    assert of(analysis.win_rates).rate.rate == 0.5
    assert of(analysis.win_rates).rate.num_prompts == 10


def test_reliable_annotators_weigh_more_in_strengths_and_intervals_hold_the_truth():
    rng = random.Random(0)
    given = []
    for n in range(150):
        for who, right in (("good", 0.95), ("fair", 0.85), ("spammer", 0.5)):
            first, second = rng.sample(["x", "y", "z"], 2)
            better = "a" if (first < second) == (rng.random() < right) else "b"
            given.append(judged_pair(str(n), better, who=who, models=(first, second)))
    analysis = HumanEvalProtocol(criteria=()).analyze(given, resamples=30)
    assert list(analysis.strengths) == ["x", "y", "z"]
    assert analysis.reliability["good"].value > 0.85 > 0.65 > analysis.reliability["spammer"].value
    assert all(strength.low < strength.value < strength.high for strength in analysis.strengths.values())
    assert analysis.strengths["x"].low > analysis.strengths["z"].high


def test_the_report_tells_the_careful_from_the_careless_though_both_models_are_equally_good(tmp_path):
    said = evaluation_of_equals(tmp_path, overlap=3)
    assert re.search(r"reliability of annotators \(.*\): .*sim-good-0 0\.\d\d \[0\.\d\d, [01]\.\d\d\]", said.to_text())
    known = said.reliability
    assert min(known[f"sim-good-{n}"].low for n in range(3)) > known["sim-careless-0"].value
    told = json.loads(json.dumps(said.to_dict()))["reliability"]["sim-careless-0"]
    assert told["low"] < told["value"] < told["high"]


def test_where_nobody_judged_the_same_prompt_the_report_shows_no_reliability_that_is_only_believed(tmp_path):
    said = evaluation_of_equals(tmp_path, overlap=1)
    assert not any(actual.measured for actual in said.reliability.values())
    assert re.search(
        r"what is better\): not measured of [^:]*sim-careless-0[^:]*: the judgments say too little of it; let",
        said.to_text(),
    )
    assert json.loads(json.dumps(said.to_dict()))["reliability"]["sim-good-0"]["value"] is None


def evaluation_of_equals(tmp_path, *, overlap, seed=1):
    """Of 120 prompts, whose better completion `simulate` draws by the seed."""
    protocol = HumanEvalProtocol(criteria=())
    prompts = [f"Question {n}?" for n in range(120)]
    completions = {model: [f"{model} says {n}" for n in range(120)] for model in ("new", "old")}
    with PreferenceStore(tmp_path / "s.db", rules=AssignmentRules(overlap=overlap), seed=seed) as store:
        protocol.open(store, protocol.build_tasks(prompts, completions))
        simulate(store, crowd(3, 1, 1), seed=seed)
        return protocol.analyze(store, resamples=2)


def test_a_strength_that_only_the_prior_holds_has_no_interval():
    won = [judged_pair(str(n), "a") for n in range(30)]
    analysis = HumanEvalProtocol(criteria=()).analyze(won, resamples=20)
    assert analysis.strengths["new"].value > 0 > analysis.strengths["old"].value
    assert all(math.isnan(one.low) and math.isnan(one.high) for one in analysis.strengths.values())
    assert "won every comparison" in analysis.to_text()
    # one loss in thirty: a draw of thirty prompts lacks it one time in three
    rarely = [judged_pair(str(n), "b" if n == 0 else "a") for n in range(30)]
    analysis = HumanEvalProtocol(criteria=()).analyze(rarely, resamples=100)
    assert all(math.isnan(one.low) for one in analysis.strengths.values())
    assert "% of draws" in analysis.strengths["new"].reason
    often = [judged_pair(str(n), "b" if n % 3 == 0 else "a") for n in range(30)]
    analysis = HumanEvalProtocol(criteria=()).analyze(often, resamples=20)
    assert all(one.low < one.value < one.high for one in analysis.strengths.values())


def test_strengths_without_spread_or_without_draws_say_so():
    # each prompt has one win of either: every draw of the prompts is the same
    even = [judged_pair(str(n), side, who=who) for n in range(20) for who, side in (("ann", "a"), ("bob", "b"))]
    analysis = HumanEvalProtocol(criteria=()).analyze(even, resamples=20)
    assert math.isnan(analysis.strengths["new"].low)
    assert "no spread" in analysis.strengths["new"].reason
    assert "no draws" in HumanEvalProtocol(criteria=()).analyze(even, resamples=0).strengths["new"].reason
    apart = [judged_pair(str(n), "ab"[n % 2], models=("wx", "yz")[n % 4 // 2]) for n in range(24)]
    assert "never compared" in HumanEvalProtocol(criteria=()).analyze(apart, resamples=5).strengths["w"].reason


def test_annotators_who_judged_different_models_are_not_compared():
    ann = [judged_pair(f"p{n}", "ab"[n % 2], who="ann", models=("u", "v")) for n in range(6)]
    bob = [judged_pair(f"p{n}", "ab"[n % 2], who="bob", models=("x", "y")) for n in range(6)]
    analysis = HumanEvalProtocol(criteria=()).analyze(ann + bob, resamples=2)
    assert analysis.reliability == {}
    assert analysis.reliability_reason == "not measured of ann, bob: nobody else judged the same models"
    cem = [judged_pair("p0", "a", who="cem", models=("u", "v"))]
    analysis = HumanEvalProtocol(criteria=()).analyze(ann + bob + cem, resamples=2)
    assert set(analysis.reliability) == {"ann", "cem"}
    assert analysis.reliability_reason == "not measured of bob: nobody else judged the same models"


def test_ratings_that_weigh_the_same_are_ties_between_models():
    criteria = [
        AnnotationGuideline(name=name, description="?", weight=w)
        for name, w in zip("abc", (0.1, 0.2, 0.3), strict=True)
    ]
    given = [rated(str(n), {"a": [3, 4], "b": [3, 4], "c": [3, 2]}) for n in range(40)]
    analysis = HumanEvalProtocol(kind="rating", criteria=criteria).analyze(given, resamples=2)
    rate = of(analysis.win_rates).rate  # .1 * 3 + .2 * 3 + .3 * 3 = .1 * 4 + .2 * 4 + .3 * 2
    assert (rate.wins, rate.ties, rate.losses) == (0, 40, 0)


def test_power_says_what_so_many_prompts_can_show():
    given = [judged_pair(str(n), ("a", "b", "tie", "a")[n % 4]) for n in range(100)]
    power = HumanEvalProtocol(criteria=()).analyze(given, resamples=2).power
    assert power.tie_frac == 0.25
    assert prompts_for_win_rate(power.detectable, tie_frac=0.25) == 100
    assert power.prompts_for_small == prompts_for_win_rate(0.05, tie_frac=0.25)
    all_ties = HumanEvalProtocol(criteria=()).analyze([judged_pair(str(n), "tie") for n in range(9)], resamples=2)
    assert all_ties.power.prompts_for_small is None
    assert "no win rate" in all_ties.to_text()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "rating", "criteria": ()}, "Ratings need criteria"),
        ({"criteria": [CRITERIA[0], CRITERIA[0]]}, "names of their own"),
        ({"kind": "ranking", "baseline": "x"}, "leave baseline out"),
        ({"kind": "thumbs"}, "No kind of human evaluation is called 'thumbs'"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        HumanEvalProtocol(**settings)


def test_wrong_material_is_refused():
    protocol = HumanEvalProtocol()
    with pytest.raises(DataError, match=r"'two' has 1 completions.* 2 prompts"):
        protocol.build_tasks(["a", "b"], {"one": ["x", "y"], "two": ["x"]})
    with pytest.raises(DataError, match="compares models; got one"):
        protocol.build_tasks(["a"], {"one": ["x"]})
    with pytest.raises(DataError, match="as many ids"):
        protocol.build_tasks(["a", "b"], {"one": ["x", "y"], "two": ["x", "y"]}, ids=["p", "p"])
    with pytest.raises(DataError, match="baseline 'three'"):
        HumanEvalProtocol(baseline="three").build_tasks(["a"], {"one": ["x"], "two": ["y"]})
    with pytest.raises(DataError, match="'human-eval'"):
        protocol.analyze([])
