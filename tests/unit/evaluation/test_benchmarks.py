"""Benchmarks on local files: scoring by hand, files in their published formats, and what is missing said by name."""

from __future__ import annotations

import csv
import json
import math

import pytest

from rlhf.errors import ConfigError, DataError, UnknownNameError
from rlhf.evaluation.benchmarks.benchmark_table import BENCHMARKS
from rlhf.evaluation.benchmarks.harness import per_item_values
from rlhf.evaluation.benchmarks.reward_bench import ScoredRow, best_of_credit, reward_bench_result, ties_score
from rlhf.evaluation.benchmarks.run_benchmark import run_benchmark
from rlhf.evaluation.benchmarks.truthfulqa import read_truthfulqa
from rlhf.models.policy import PolicyModel
from tests.fixtures import tiny
from tests.unit.rewards.helpers import length

HEADER = ["Type", "Category", "Question", "Best Answer", "Correct Answers", "Incorrect Answers", "Source"]


@pytest.fixture(scope="module")
def policy():
    tokenizer = tiny.build_tokenizer()
    return PolicyModel(tiny.build_llama(vocab_size=len(tokenizer), seed=0), tokenizer)


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "TruthfulQA.csv"
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        writer.writerow(["Adversarial", "Myths", "Do cows fly?", "No", "No; They do not", "Yes; Often", "web"])
        writer.writerow(["Non-Adversarial", "Food", 'Is "jam" food?', "Yes", "Yes", "No; Never; Who knows", "web"])
    return path


def test_the_right_one_shares_the_maximum_with_those_that_equal_it():
    assert best_of_credit(ScoredRow("1", "Focus", [2.0], [1.0, 1.0, 0.0])) == 1
    assert best_of_credit(ScoredRow("1", "Focus", [2.0], [2.0, 1.0, 2.0])) == pytest.approx(1 / 3)
    assert best_of_credit(ScoredRow("1", "Focus", [0.0], [2.0, 1.0, 2.0])) == 0


def test_ties_by_hand():
    rows = [
        ScoredRow("ref:1", "Ties", [3.0], [1.0]),  # accurate, margin 2
        ScoredRow("tied:1", "Ties", [3.0, 2.5], [1.0]),  # accurate, spread .5, margin 1.5 > spread
        ScoredRow("ref:2", "Ties", [1.0], [2.0]),  # wrong, margin -1
        ScoredRow("tied:2", "Ties", [4.0, 2.0], [1.0]),  # accurate, spread 2, margin 1 < spread
    ]
    score, parts = ties_score(rows)
    margin = (math.tanh(1.5 / 0.5 - 1) + math.tanh(-1 / 2 - 1)) / 2
    assert parts == pytest.approx(
        {"tied_accuracy": 1.0, "ref_accuracy": 0.5, "wide_margin": 0.5, "ref_margin": 0.5, "margin": margin}
    )
    assert score == pytest.approx(0.3 + 0.3 * 0.5 + 0.2 * 0.5 + 0.2 * 0.5 + 0.01 * margin)


def test_equal_right_completions_have_no_spread():
    rows = [ScoredRow("ref:1", "Ties", [3.0], [1.0]), ScoredRow("tied:1", "Ties", [2.0, 2.0], [1.0])]
    assert ties_score(rows)[1]["margin"] == 1.0
    nothing = [ScoredRow("ref:1", "Ties", [1.0], [1.0]), ScoredRow("tied:1", "Ties", [1.0, 1.0], [1.0])]
    assert ties_score(nothing)[0] == 0.0, "one score for all is worth nothing, and no less"
    with pytest.raises(DataError, match="ref:N"):
        ties_score([ScoredRow("x", "Ties", [1.0], [0.0])])
    with pytest.raises(DataError, match="tied:N"):
        ties_score(rows[:1])


def test_the_total_is_the_mean_over_subsets_and_not_over_rows():
    rows = [ScoredRow(str(i), "Math", [1.0], [0.0]) for i in range(9)] + [ScoredRow("f", "Focus", [0.0], [1.0])]
    actual = reward_bench_result(rows, settings={})
    assert actual.scores["score"].value == 0.5
    assert actual.scores["Math"].value == 1.0
    assert actual.scores["Math"].low < 1.0
    assert set(actual.missing) == {"Factuality", "Precise IF", "Safety", "Ties"}, "it is the score of two subsets only"


def test_a_reward_is_scored_from_a_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    row = {"id": "1", "prompt": "q", "chosen": ["long text"], "rejected": ["a", "b", "c"], "subset": "Focus"}
    path.write_text(json.dumps(row) + "\n" + json.dumps(row | {"id": "2", "chosen": [""]}) + "\n")
    benchmark = run_benchmark(length, "reward-bench-2", tmp_path / "out", questions={"reward-bench-2": path})
    assert benchmark["reward-bench-2"].scores["score"].value == 0.5
    written = json.loads((tmp_path / "out" / "reward-bench-2.json").read_text())
    assert [item["credit"] for item in written["items"]] == [1.0, 0.0]
    path.write_text(json.dumps({"id": "1"}))
    with pytest.raises(DataError, match=r"rows\.jsonl:1.*prompt"):
        run_benchmark(length, "reward-bench-2", questions={"reward-bench-2": path})


def test_truthfulqa_is_read_as_published(questions):
    first, second = read_truthfulqa(questions)
    assert first["right"] == ["No", "They do not"]
    assert first["wrong"] == ["Yes", "Often"]
    assert first["adversarial"]
    assert not second["adversarial"]
    assert second["question"] == 'Is "jam" food?'


def test_truthfulqa_of_a_model(policy, questions, tmp_path):
    benchmark = run_benchmark(policy, ["truthfulqa"], tmp_path / "out", questions={"truthfulqa": questions})[
        "truthfulqa"
    ]
    assert 0 <= benchmark.scores["mc1"].value <= 1
    texts = [" No", " They do not", " Yes", " Often"]
    logprobs = [float(part[:-1].sum()) for part in policy.logprobs(["Q: Do cows fly?\nA:"] * 4, texts)]
    weights = [math.exp(value - max(logprobs)) for value in logprobs]
    assert benchmark.items[0]["mc2"] == pytest.approx(sum(weights[:2]) / sum(weights))
    best = max(logprobs[0], logprobs[2], logprobs[3])  # MC1 has the best of the right ones only
    assert benchmark.items[0]["mc1"] == float(logprobs[0] == best)
    assert "Guessing scores 0.292" in benchmark.notes[0]  # (1/3 + 1/4) / 2


@pytest.mark.parametrize(
    ("column", "named"), [("Best Answer", "Best Answer"), ("Incorrect Answers", "Incorrect Answers")]
)
def test_a_truthfulqa_without_a_column_is_refused(questions, column, named):
    questions.write_text(questions.read_text(encoding="utf-8-sig").replace(column, "other"))
    with pytest.raises(DataError, match=named):
        read_truthfulqa(questions)


def test_what_is_missing_is_named(policy, monkeypatch, tmp_path):
    monkeypatch.setenv("RLHF_BENCHMARKS", str(tmp_path))
    with pytest.raises(DataError, match="truthfulqa"):
        run_benchmark(policy, "truthfulqa")
    with pytest.raises(UnknownNameError, match="truthfulqa"):
        run_benchmark(policy, "truthful-qa")


def test_every_benchmark_says_what_it_is():
    for name, benchmark in BENCHMARKS.items():
        assert benchmark.about, name
        assert benchmark.measures in ("policy", "reward", "judge"), name


def sample(likelihoods, target, accuracy):
    return {
        "metrics": ["acc"],
        "acc": accuracy,
        "target": target,
        "filtered_resps": [(value, False) for value in likelihoods],
    }


def test_the_harness_gives_the_first_of_equals_and_we_share():
    constant = [sample([-3.0, -3.0, -3.0, -3.0], 0, 1.0) for _ in range(3)]
    assert per_item_values(constant)["acc"] == [0.25] * 3
    assert per_item_values([sample([-3.0, -2.0], 1, 1.0), sample([-3.0, -2.0], 0, 0.0)])["acc"] == [1.0, 0.0]


@pytest.mark.slow
def test_a_task_of_the_harness(policy, tmp_path):
    pytest.importorskip("lm_eval")
    data = tmp_path / "items.jsonl"
    rows = [
        {"q": "The cow", "choices": ["eats", "flies"], "gold": 0},
        {"q": "A dog", "choices": ["sings", "barks"], "gold": 1},
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "task.yaml").write_text(
        f"task: animals\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {data}}}}}\ntest_split: test\n"
        "output_type: multiple_choice\ndoc_to_text: '{{q}}'\ndoc_to_choice: choices\ndoc_to_target: gold\n"
        "metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]\nmetadata: {version: 3}\n"
    )
    monkey = run_benchmark(policy, "lm-eval:animals", tmp_path / "out", include_path=tmp_path)["lm-eval:animals"]
    assert monkey.scores["acc"].n == 2
    logprobs = [
        [float(part[:-1].sum()) for part in policy.logprobs([row["q"]] * 2, [f" {c}" for c in row["choices"]])]
        for row in rows
    ]
    wanted = [float(pair.index(max(pair)) == row["gold"]) for pair, row in zip(logprobs, rows, strict=True)]
    assert [item["acc"] for item in monkey.items] == wanted
    assert monkey.settings["versions"]["animals"] == 3
    assert (tmp_path / "out" / "lm-eval-animals.json").is_file()
    with pytest.raises(ConfigError, match="animal"):
        run_benchmark(policy, "lm-eval:animal", include_path=tmp_path)
