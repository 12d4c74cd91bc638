from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from rlhf.evaluation.intervals import Estimate
from rlhf.feedback import statistics
from rlhf.feedback.quality import QualityRules
from rlhf.feedback.readings import answers_of, question_of, values_of, verdicts_of
from rlhf.feedback.report import alpha_words, in_words, report_json, report_text
from rlhf.feedback.simulate import SimulatedAnnotator
from rlhf.feedback.statistics import findings_of, question_agreement
from rlhf.store import AssignmentRules, PreferenceStore, Response, Submission, Task, TaskKind
from tests.fixtures.judged import judge_all, pair_task, pair_tasks

PEOPLE = [
    SimulatedAnnotator(name="careful"),
    SimulatedAnnotator(name="good", error_rate=0.05),
    SimulatedAnnotator(name="lazy", laziness=0.7),
]
RULES = QualityRules(min_judgments=30)


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """60 comparisons, a sixth of them gold, judged by three, one of whom takes what stands first."""
    place = tmp_path_factory.mktemp("judged") / "store.db"
    with PreferenceStore(place, rules=AssignmentRules(overlap=3, gold_frac=0.3), seed=4) as store:
        store.add_tasks(pair_tasks(60, every_gold=6))
        judge_all(store, PEOPLE)
        yield store


def small_store(tmp_path, tasks, answers, *, overlap=2):
    """Answers: annotator -> task -> value."""
    store = PreferenceStore(tmp_path / "small.db", rules=AssignmentRules(overlap=overlap))
    store.add_tasks(tasks)
    for who, given in answers.items():
        store.add_annotator(who)
        for number in range(len(given)):
            held = store.next_task(who)
            store.submit(who, Submission(assignment=held.number, key=f"{who}-{number}", value=given[held.task.id]))
    return store


def test_a_careful_annotator_is_qualified_and_a_lazy_one_is_found_out(judged):
    actual = {quality.annotator: quality for quality in findings_of(judged, rules=RULES).annotators}
    assert actual["careful"].qualified
    assert actual["careful"].gold_accuracy.value == 1.0
    assert not actual["lazy"].qualified
    assert actual["lazy"].leans_to_position
    assert actual["lazy"].too_quick_frac > 0.2 > actual["good"].too_quick_frac


def test_coverage_counts_tasks_by_how_often_they_were_judged(tmp_path):
    answers = {"ann": {"x": {"preference": "a"}, "y": {"preference": "a"}}, "bob": {"x": {"preference": "b"}}}
    with small_store(tmp_path, [pair_task("x"), pair_task("y"), pair_task("z")], answers) as store:
        held = store.next_task("bob")
        sent = Submission(assignment=held.number, key="k", value={"preference": "tie"}, flags=["unsafe"], comment="hm")
        store.submit("bob", sent)
        store.undo("bob")  # a judgment that was taken back counts nowhere
        coverage = findings_of(store).coverage
        assert (coverage.num_complete, coverage.num_started, coverage.num_untouched) == (1, 1, 1)
        assert (coverage.num_judgments, coverage.num_annotators) == (3, 2)
        assert coverage.flags == {}
        store.submit("bob", Submission(assignment=held.number, key="k2", value={"preference": "a"}, flags=["unsafe"]))
        assert findings_of(store).coverage.flags == {"unsafe": 1}


def test_gold_items_do_not_flatter_the_agreement(judged):
    (agreement,) = findings_of(judged).agreement
    assert agreement.num_items == 50, "ten of sixty are gold"
    assert agreement.num_compared == 50
    assert agreement.alpha.n == agreement.fleiss.n == 50


def test_fleiss_is_not_given_where_items_have_different_numbers_of_judgments(tmp_path):
    same = {"preference": "a"}
    answers = {
        "ann": dict.fromkeys("xyz", same),
        "bob": {"x": same, "y": {"preference": "b"}, "z": {"preference": "b"}},
        "cem": {"x": same},
    }
    with small_store(tmp_path, [pair_task(name) for name in "xyz"], answers, overlap=3) as store:
        (agreement,) = findings_of(store).agreement
        assert not agreement.fleiss.measured
        assert agreement.fleiss.reason == "items have 2 to 3 judgments; alpha allows for that"
        # coincidences: x gives aa = 3 (three judgments), y and z each ab = ba = 1; n_a = 5, n_b = 2
        # alpha = 1 - (7 - 1) * (2 + 2) / (2 * 5 * 2) = -0.2
        assert agreement.alpha.value == pytest.approx(-0.2)
        assert agreement.same.value == pytest.approx(3 / 7)
        assert not agreement.pairs, "nobody shares ten tasks"


def test_grades_are_compared_in_their_order_and_annotators_by_the_side_they_take(tmp_path):
    responses = [Response(text="first"), Response(text="second")]
    tasks = [Task(id=name, kind=TaskKind.GRADED5, prompt="?", responses=responses) for name in "wxyz"]
    grades = {"ann": (2, 2, -1, -2), "bob": (1, 1, -2, -2)}
    answers = {who: {t.id: {"grade": g} for t, g in zip(tasks, given, strict=True)} for who, given in grades.items()}
    with small_store(tmp_path, tasks, answers) as store:
        findings = findings_of(store)
        (agreement,) = findings.agreement
        assert agreement.question.is_ordered
        assert "order" in agreement.fleiss.reason
        assert agreement.same.value == 0.25
        assert agreement.alpha.value > 0.7, "one step apart, with the sides in common"
        assert [quality.agreement.value for quality in findings.annotators] == [1.0, 1.0]


def test_a_ranking_is_taken_apart_into_pairs_and_stays_one_piece_of_evidence(tmp_path):
    responses = [Response(text=text) for text in ("one", "three", "fifteen")]
    tasks = [Task(id=f"r{n}", kind=TaskKind.RANKING, prompt="?", responses=responses) for n in range(3)]
    answers = {
        who: {task.id: {"ranks": ranks} for task in tasks}
        for who, ranks in {"ann": [1, 2, 3], "bob": [2, 1, 2]}.items()
    }
    with small_store(tmp_path, tasks, answers) as store:
        assert values_of("ranking", {"ranks": [2, 1, 2]}) == {(0, 1): "b", (0, 2): "tie", (1, 2): "a"}
        findings = findings_of(store)
        (agreement,) = findings.agreement
        assert agreement.num_items == 9
        assert agreement.same.n == 3, "intervals rest on tasks"
        assert agreement.same.value == pytest.approx(1 / 3)
        ann = findings.annotators[0]
        assert ann.num_judgments == 3
        assert ann.agreement.n == 3
        kept = {j.annotator: j for j in store.judgments() if j.task.id == "r0"}["ann"]
        sides = {v.item[1:]: (v.shown_first, v.longer) for v in verdicts_of([kept])}
        order = list(kept.order)
        for (i, j), (first, longer) in sides.items():
            assert first == ("a" if order.index(i) < order.index(j) else "b")
            assert longer == "b", "later completions are longer"


def test_each_dimension_of_a_rating_has_an_agreement_of_its_own(tmp_path):
    tasks = [
        Task(id=f"x{n}", kind=TaskKind.RATING, prompt="?", responses=[Response(text="1"), Response(text="2")])
        for n in range(4)
    ]
    given = {
        "ann": {"helpfulness": [5, 1], "accuracy": [5, 1]},
        "bob": {"helpfulness": [4, 2], "accuracy": [1, 5]},
    }
    answers = {who: {task.id: {"ratings": value} for task in tasks} for who, value in given.items()}
    with small_store(tmp_path, tasks, answers) as store:
        actual = {a.question.name: a for a in findings_of(store).agreement}
        assert actual.keys() == {"rating: helpfulness", "rating: accuracy"}
        assert actual["rating: helpfulness"].alpha.value > 0.5 > 0 > actual["rating: accuracy"].alpha.value
        worst = actual["rating: accuracy"].divided[0]
        assert worst.answers == {"ann": 5, "bob": 1} or worst.answers == {"ann": 1, "bob": 5}
        assert worst.disagreement == 1.0
        quality = findings_of(store).annotators[0]
        assert quality.agreement.value == 0.5, "4 and 5 are both good; 1 and 5 are not alike"


def test_two_annotators_are_compared_by_what_they_share(judged):
    (agreement,) = findings_of(judged).agreement
    kappas = {(pair.first, pair.second): pair.kappa for pair in agreement.pairs}
    assert len(kappas) == 3
    best = next(kappa for pair, kappa in kappas.items() if set(pair) == {"careful", "good"})
    assert best.n == 50
    assert best.value > 0.7 > max(kappa.value for kappa in kappas.values() if kappa is not best)
    assert best.low < best.value < best.high


def test_what_could_not_be_measured_is_said_and_never_zero(tmp_path):
    with small_store(tmp_path, [pair_task("x")], {"ann": {"x": {"preference": "a"}}}) as store:
        document = report_json(store)
        (agreement,) = document["agreement"]
        assert agreement["krippendorff_alpha"]["value"] is None
        assert agreement["krippendorff_alpha"]["reason"] == "no item was judged by two annotators"
        assert document["annotators"][0]["median_seconds"] is None
        text = report_text(store)
        assert "No task was judged by two people" in text
        assert "No gold item was judged, so nobody can be qualified; mix in items whose right answer is known." in text
        assert "No times were kept" in text
        assert "0.00" not in text.replace("0.00,", "")


def test_gold_items_that_nobody_has_judged_yet_are_not_asked_for_again(tmp_path):
    plain, *golds = [pair_task("x"), *pair_tasks(2, every_gold=1)]
    with small_store(tmp_path, [plain], {"ann": {"x": {"preference": "a"}}}) as store:
        store.add_tasks(golds)
        assert "nobody can be qualified: there are 2 gold items, but none is handed out" in report_text(store)
        assert "--gold-frac 0.1" in report_text(store)
        store.rules = AssignmentRules(gold_frac=0.1)
        text = report_text(store)
        assert "Of 2 gold items none was judged yet, so nobody can be qualified yet" in text
        assert "at a share of 0.1 (--gold-frac)" in text
        assert "mix in items" not in text
        store.rules = AssignmentRules(gold_frac=0.999)
        held = store.next_task("ann")
        store.submit("ann", Submission(assignment=held.number, key="gold", value=held.task.gold))
        assert "gold item" not in report_text(store).partition("!")[2], (
            "one was judged, and how right it was stands above"
        )


@pytest.mark.parametrize(
    ("overlap", "answers", "why"),
    [
        (1, {"ann": "x"}, "ask for an overlap of 2 or more"),
        (3, {"ann": "x"}, "3 judgments of each are wanted, and one person has judged so far"),
        (3, {"ann": "x", "bob": "y"}, "and those who judged had different tasks so far"),
    ],
)
def test_why_nobody_can_be_compared_is_what_is_the_case(overlap, answers, why, tmp_path):
    with PreferenceStore(tmp_path / "s.db", rules=AssignmentRules(overlap=overlap)) as store:
        store.add_tasks([pair_task("x"), pair_task("y")])
        for who, wanted in answers.items():
            store.add_annotator(who)
            while (held := store.next_task(who)).task.id != wanted:
                store.skip(who, held.number)
            store.submit(who, Submission(assignment=held.number, key=who, value={"preference": "a"}))
        (note,) = (note for note in findings_of(store).notes if "by two people" in note)
        assert why in note
        assert ("ask for an overlap" in note) == (overlap == 1)


def test_an_empty_store_has_a_report(tmp_path):
    with PreferenceStore(tmp_path / "empty.db") as store:
        assert "Nothing was judged yet." in report_text(store)
        assert report_json(store)["agreement"] == []


def test_json_holds_no_nan_and_says_what_the_text_says(judged):
    document = json.loads(json.dumps(report_json(judged), allow_nan=False))
    text = report_text(judged)
    alpha = document["agreement"][0]["krippendorff_alpha"]
    assert f"{alpha['value']:.2f} [{alpha['low']:.2f}, {alpha['high']:.2f}]" in text
    lazy = next(row for row in document["annotators"] if row["annotator"] == "lazy")
    assert not lazy["qualified"]
    for reason in lazy["unqualified_because"]:
        assert reason in text
    assert "lean" in text
    assert report_json(judged) == report_json(judged), "the same store and seed give the same intervals"


def test_all_alike_has_no_alpha_but_a_share(tmp_path):
    answers = {who: {"x": {"preference": "a"}, "y": {"preference": "a"}} for who in ("ann", "bob")}
    with small_store(tmp_path, [pair_task("x"), pair_task("y")], answers) as store:
        (agreement,) = findings_of(store).agreement
        assert math.isnan(agreement.alpha.value)
        assert "same value" in agreement.alpha.reason
        assert agreement.same.value == 1.0


@pytest.mark.parametrize(
    ("low", "value", "high", "words"),
    [
        (0.82, 0.9, 0.95, "reliable"),
        (0.7, 0.9, 0.95, "enough for tentative conclusions"),
        (0.5, 0.9, 0.95, "not shown to be enough: it may lie under 0.667"),
        (0.2, 0.4, 0.6, "too low to build on one judgment"),
    ],
)
def test_alpha_is_called_what_its_lower_end_can_be_relied_on_for(judged, low, value, high, words):
    (agreement,) = findings_of(judged, resamples=20).agreement
    assert alpha_words(replace(agreement, alpha=Estimate(value=value, low=low, high=high, n=50))) == words


def test_two_items_on_which_all_agree_are_not_called_reliable(tmp_path):
    given = {"x": {"preference": "a"}, "y": {"preference": "b"}}
    with small_store(tmp_path, [pair_task("x"), pair_task("y")], {"ann": given, "bob": given}) as store:
        text = report_text(store)
    assert "alpha (nominal)  1.00  not judged: no interval: 2 items, and it takes 20" in text
    assert "reliable" not in text


def test_what_everybody_skipped_is_reported(tmp_path):
    with small_store(tmp_path, [pair_task("x"), pair_task("y")], {"ann": {}, "bob": {}}) as store:
        for who in ("ann", "bob"):
            held = store.next_task(who)
            store.skip(who, held.number)
            held = store.next_task(who)
            store.submit(who, Submission(assignment=held.number, key=who, value={"preference": "a"}))
        coverage, text = findings_of(store).coverage, report_text(store)
        assert store.next_task("ann") is store.next_task("bob") is None
    assert (coverage.num_skipped, coverage.num_left_to_nobody) == (1, 1)
    assert "Skipped and still wanting judgments: 1, of which 1 by everybody here." in text
    assert "! 1 task will not be finished" in text


def test_names_can_not_steer_the_terminal(judged):
    findings = findings_of(judged, resamples=20)
    nasty = replace(findings.annotators[0], annotator="ann\x1b[2J\u202e")
    text = in_words(replace(findings, annotators=[nasty]))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "ann\\x1b[2J\\u202e" in text


def test_a_question_has_the_whole_scale_though_nobody_used_it_all(judged):
    answers = [answer for answer in answers_of(judged.judgments()) if answer.judgment.task.gold is None]
    assert {answer.value for answer in answers} == {"a", "b"}
    agreement = question_agreement(question_of("pairwise", ()), answers, seed=0, resamples=50)
    assert agreement.question.scale == ("a", "tie", "b")


def test_the_number_of_pairs_is_bounded(judged, monkeypatch):
    monkeypatch.setattr(statistics, "MAX_PAIRS", 2)
    (agreement,) = findings_of(judged, resamples=20).agreement
    assert len(agreement.pairs) == 2
