"""MT-Bench's single-answer grading, by judges whose grades are known."""

from __future__ import annotations

import json
import math
import re

import pytest

from rlhf.config.policy import SamplingConfig
from rlhf.errors import ConfigError, RewardError
from rlhf.evaluation.benchmarks.mt_bench import mean_grade
from rlhf.evaluation.benchmarks.run_benchmark import run_benchmark
from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from rlhf.rewards.pairwise.building import build_judge
from rlhf.rewards.pairwise.grades import grades_of, grading_judge
from rlhf.rewards.pairwise.jury import Jury
from tests.fixtures import tiny
from tests.unit.rewards.pairwise.endpoint import chat
from tests.unit.rewards.servers import says, serving

SHORT = SamplingConfig(max_new_tokens=4)
GRADES = {"Say 0.": (10, 8), "Say 1.": (6, 2), "Say 2.": (4, 3)}
"""First turn of a question -> grades of both its turns."""


@pytest.fixture(scope="module")
def policy():
    tokenizer = tiny.build_tokenizer()
    return PolicyModel(tiny.build_llama(vocab_size=len(tokenizer)), tokenizer)


@pytest.fixture
def questions(tmp_path):
    rows = [
        {"question_id": 81 + n, "category": "writing" if n else "math", "turns": [f"Say {n}.", "Say it again."]}
        for n in range(3)
    ]
    path = tmp_path / "question.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def grade_in(request, grades=GRADES):
    """The known grade of what a judge reads."""
    (grade,) = [both["Second question" in request] for first, both in grades.items() if first in request]
    return grade


def scripted(grades):
    def judge(prompts, completions):
        return [float(grade_in(prompt, grades)) for prompt in prompts]

    return judge


def graded(policy, questions, judge, folder=None, **settings):
    given = {"sampling": SHORT} | settings
    return run_benchmark(policy, ["mt-bench"], folder, questions={"mt-bench": questions}, judge=judge, **given)[
        "mt-bench"
    ]


def test_by_hand(policy, questions, tmp_path):
    grades = graded(policy, questions, scripted(GRADES), tmp_path / "out")
    # Means of both turns: 9, 4 and 3.5
    assert grades.scores["grade"].value == pytest.approx((9 + 4 + 3.5) / 3)
    assert grades.scores["grade"].n == 3, "questions, not answers"
    assert grades.scores["grade/turn_1"].value == pytest.approx((10 + 6 + 4) / 3)
    assert grades.scores["grade/turn_2"].value == pytest.approx((8 + 2 + 3) / 3)
    assert grades.scores["grade/math"].value == 9
    assert grades.scores["grade/writing"].value == pytest.approx(3.75)
    assert [item["grades"] for item in grades.items] == [[10, 8], [6, 2], [4, 3]]
    assert next(iter(grades.scores)) == "grade"
    assert not grades.undecided
    kept = json.loads((tmp_path / "out" / "mt-bench.json").read_text())
    assert kept["scores"]["grade"]["value"] == grades.scores["grade"].value


def test_the_interval_is_clustered_and_stays_on_the_scale():
    # Wilson with an effective number: y = 1/3, 2/3 and 1 of the scale, m = 3/5, v = (14/9 + 1)/5 - 9/25
    grade = mean_grade([4.0, 7.0, 10.0])
    n = 3 * 0.6 * 0.4 / ((14 / 9 + 1) / 5 - 0.36)
    share, z = 2 / 3, 1.959964
    center = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    assert (grade.value, grade.low, grade.high) == pytest.approx(
        (7.0, 1 + 9 * (center - half), 1 + 9 * (center + half))
    )
    best = mean_grade([10.0] * 10)
    assert best.value == best.high == 10.0
    assert best.low < 9, "ten equal grades are no proof"
    assert mean_grade([None, 4.0]).n == 1
    assert not mean_grade([None]).measured


def test_what_can_t_be_read_is_missing_and_counted(policy, questions):
    grades = graded(policy, questions, scripted(GRADES | {"Say 1.": (11, 2)}))
    assert grades.items[1]["grades"] == [None, 2.0]
    assert grades.items[1]["score"] is None
    assert grades.scores["grade"].value == pytest.approx((9 + 3.5) / 2)
    assert grades.scores["grade/turn_1"].value == pytest.approx(7.0)
    assert (grades.settings["asked"], grades.settings["unparsed"]) == (6, 1)
    assert set(grades.missing) == {"82"}
    assert any("1 of 6" in note for note in grades.notes)
    # 5 of 6 are too few
    assert "1 of 6" in grades.scores["grade"].reason
    assert math.isnan(grades.scores["grade"].low)
    assert "not decided" in str(grades)


# --- an endpoint ---


def grading(handler, body, mark="[[{}]]"):
    request = body["messages"][0]["content"]
    handler.send(chat("It does what was asked.\n" + mark.format(grade_in(request))))


def endpoint(url, **settings):
    return {"type": "endpoint", "url": url, "model": "m", "concurrency": 2, "retries": 0} | settings


def test_an_endpoint_grades_both_turns_once(policy, questions, tmp_path):
    references = tmp_path / "reference.jsonl"
    references.write_text(json.dumps({"question_id": 81, "choices": [{"turns": ["It is 0.", "Still 0."]}]}))
    with serving(grading, path="/v1") as service:
        for _ in range(2):
            grades = graded(policy, questions, endpoint(service.url), tmp_path / "out", references=references)
            assert grades.scores["grade"].value == pytest.approx((9 + 4 + 3.5) / 3)
    assert len(service.asked) == 6, "the second start asked for nothing"
    asked = [body["messages"][0]["content"] for body in service.asked]
    assert sum("Reference answer: It is 0." in text for text in asked) == 1
    assert sum("Reference answer: Still 0." in text for text in asked) == 1
    second = [text for text in asked if "Second question" in text]
    assert len(second) == 3
    assert all("Answer to the first question" in text for text in second), "the conversation is shown"
    assert "[[5]]" in asked[0]


def test_after_a_failure_only_the_rest_is_asked(policy, questions, tmp_path):
    with serving(grading, grading, says({"error": "bad key"}, 401), grading, path="/v1") as service:
        judge = endpoint(service.url, concurrency=1)
        with pytest.raises(RewardError):
            graded(policy, questions, judge, tmp_path / "out")
        assert len((tmp_path / "out" / "verdicts.jsonl").read_text().splitlines()) == 2
        grades = graded(policy, questions, judge, tmp_path / "out")
    assert grades.scores["grade"].value == pytest.approx((9 + 4 + 3.5) / 3)
    assert len(service.asked) == 3 + 4


@pytest.mark.parametrize("mark", ["{}", "[[{}/10]]", "[{}]", "[[{}]] or [[1.5]]", "[[{}]]\nI hope this helps."])
def test_grades_in_any_other_form_are_unparsed_and_decide_nothing(policy, questions, mark):
    with serving(lambda handler, body: grading(handler, body, mark), path="/v1") as service:
        grades = graded(policy, questions, endpoint(service.url))
    assert grades.settings["unparsed"] == 6
    assert not grades.scores["grade"].measured
    assert "6 of 6" in grades.undecided


def test_a_template_of_ones_own_is_another_judge(policy, questions, tmp_path):
    template = tmp_path / "mine.txt"
    template.write_text("Mark {answer} to {prompt}")
    with serving(grading, path="/v1") as service:
        graded(policy, questions, endpoint(service.url), tmp_path / "out")
        grades = graded(policy, questions, endpoint(service.url, grade_template=str(template)), tmp_path / "out")
    assert len(service.asked) == 12
    assert service.asked[-1]["messages"][0]["content"].startswith("Mark ")
    assert grades.settings["judge"]["identity"]["template"]["name"] == "mine.txt"
    template.write_text("Compare {first} and {second} of {prompt}")
    with pytest.raises(ConfigError, match=r"grade_template.*\{answer\}"):
        graded(policy, questions, endpoint(service.url, grade_template=str(template)))


def test_a_local_model_is_asked_for_grades(policy, questions, tmp_path):
    folder = tmp_path / "judge"
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    judge = {"type": "local", "path": str(folder), "max_tokens": 4}
    grades = graded(policy, questions, judge, tmp_path / "out")
    assert grades.settings["unparsed"] == 6, "it can't"
    assert not grades.scores["grade"].measured
    assert len((tmp_path / "out" / "verdicts.jsonl").read_text().splitlines()) == 6


# --- who can grade ---


def test_a_jury_gives_the_mean_of_its_members_grades():
    judges = [build_judge(scripted({"Say 0.": (grade, 1)})) for grade in (4, 9, 11)]
    jury = grading_judge(Jury(judges, combine="majority"))
    (vote,) = grades_of(jury, ["Say 0."], ["0"])
    assert vote.first == 6.5, "the third gave no grade from 1 to 10"
    (alone,) = grades_of(grading_judge(Jury(judges[1:])), ["Say 0."], ["0"])
    assert alone.first is None, "one of two is not more than half"


def test_who_compares_can_t_grade(policy, questions):
    def comparing(prompts, first, second):
        return [0.5] * len(prompts)

    for judge in (comparing, Jury([build_judge(comparing), build_judge("longer")])):
        with pytest.raises(ConfigError, match="can't grade"):
            graded(policy, questions, judge)


def test_scores_of_a_reward_model_are_no_grades(policy, questions, tmp_path):
    folder = tmp_path / "reward"
    RewardModel.from_policy(policy).save_pretrained(folder)
    judge = build_judge({"type": "reward_model", "path": str(folder)})
    with pytest.raises(ConfigError, match="no scale"):
        graded(policy, questions, judge)


def test_a_baseline_belongs_to_the_pairs(policy, questions):
    with pytest.raises(ConfigError, match=r"baseline.*mt-bench-pairs"):
        graded(policy, questions, "longer", baseline=policy)


# --- the published questions ---


def test_the_published_questions_with_known_grades(assets):
    tokenizer = tiny.build_tokenizer()
    policy = PolicyModel(tiny.build_llama(vocab_size=len(tokenizer), max_position_embeddings=4096), tokenizer)
    folder = assets / "mt_bench"
    rows = [json.loads(line) for line in (folder / "question.jsonl").read_text().splitlines()]
    known = {row["turns"][0]: (1 + row["question_id"] % 10, 1 + row["question_id"] % 7) for row in rows}
    referred = 0

    def judge(prompts, completions):
        nonlocal referred
        referred += sum("Reference answer:" in prompt for prompt in prompts)
        actual = []
        for prompt in prompts:
            second = re.fullmatch(r"First question: (.*?)\n\nSecond question: .*", prompt, re.DOTALL)
            first = second[1] if second else prompt.partition("\n\nReference answer:")[0]
            actual.append(float(known[first][second is not None]))
        return actual

    grades = graded(
        policy, folder / "question.jsonl", judge, references=folder / "reference_gpt-4.jsonl",
        sampling=SamplingConfig(max_new_tokens=1),
    )  # fmt: skip
    turns = [[known[row["turns"][0]][turn] for row in rows] for turn in range(2)]
    assert grades.scores["grade"].value == pytest.approx(sum(map(sum, turns)) / 160)
    assert grades.scores["grade"].n == 80
    assert [grades.scores[f"grade/turn_{n + 1}"].value for n in range(2)] == pytest.approx([sum(t) / 80 for t in turns])
    categories = {row["category"] for row in rows}
    assert len(categories) == 8
    for category in categories:
        own = [sum(known[row["turns"][0]]) / 2 for row in rows if row["category"] == category]
        assert grades.scores[f"grade/{category}"].value == pytest.approx(sum(own) / 10)
        assert grades.scores[f"grade/{category}"].n == 10
    assert referred == 60, "30 questions, both turns"
