"""Benchmarks by a judge, on files with known answers."""

from __future__ import annotations

import gzip
import json
import math
import random

import pytest

from rlhf.errors import ConfigError, DataError
from rlhf.evaluation.benchmarks.alpaca_eval import annotated_win_rate
from rlhf.evaluation.benchmarks.benchmark_table import BENCHMARKS
from rlhf.evaluation.benchmarks.judge_agreement import LABELERS
from rlhf.evaluation.benchmarks.run_benchmark import OPENERS, run_benchmark
from rlhf.rewards.pairwise.function_judge import function_judge
from rlhf.rewards.pairwise.jury import Jury
from tests.unit.rewards.pairwise.endpoint import judging, longer
from tests.unit.rewards.servers import serving


def write(path, rows):
    path.write_text(json.dumps(rows))
    return path


def pair(first, second, label):
    return {"input": "Do it", "output_1": first, "output_2": second, "label": label}


def test_every_benchmark_names_what_can_be_opened():
    assert {benchmark.measures for benchmark in BENCHMARKS.values()} <= OPENERS.keys()


def test_llmbar_by_hand(tmp_path):
    path = write(tmp_path / "d.json", [pair("aa", "b", 1), pair("aa", "b", 2), pair("a", "b", 1), pair("a", "bb", 2)])
    benchmark = run_benchmark("longer", "llmbar-natural", tmp_path, questions={"llmbar-natural": path})[
        "llmbar-natural"
    ]
    assert benchmark.scores["accuracy"].value == (1 + 0 + 0.5 + 1) / 4
    assert [item["score"] for item in benchmark.items] == [1.0, 0.0, 0.5, 1.0]
    assert "first_place_won" not in benchmark.scores


def test_each_set_has_a_file_of_its_own(tmp_path):
    names = ["llmbar-natural", "llmbar-manual"]
    rows = {"llmbar-natural": [pair("aa", "b", 1)], "llmbar-manual": [pair("aa", "b", 2)]}
    questions = {name: write(tmp_path / f"{name}-questions.json", own) for name, own in rows.items()}
    run_benchmark("longer", names, tmp_path / "out", questions=questions)
    documents = {name: json.loads((tmp_path / "out" / f"{name}.json").read_text()) for name in names}
    assert [documents[name]["scores"]["accuracy"]["value"] for name in names] == [1.0, 0.0]
    assert [documents[name]["name"] for name in names] == names


def test_verdicts_are_kept_beside_the_results_and_asked_for_once(tmp_path):
    path = write(tmp_path / "d.json", [pair("aa", "b", 1), pair("a", "bb", 2)])
    with serving(judging(longer), path="/v1") as service:
        judge = {"type": "endpoint", "url": service.url, "model": "m"}
        for _ in range(2):
            benchmark = run_benchmark(judge, "llmbar-natural", tmp_path / "out", questions={"llmbar-natural": path})
            assert benchmark["llmbar-natural"].scores["accuracy"].value == 1.0
    assert len(service.asked) == 4


def test_a_setting_that_no_benchmark_takes_is_refused(tmp_path):
    path = write(tmp_path / "d.json", [pair("aa", "b", 1)])
    with pytest.raises(ConfigError, match=r"limt.*Did you mean 'limit'"):
        run_benchmark("longer", "llmbar-natural", questions={"llmbar-natural": path}, limt=1)


def test_a_judge_that_prefers_the_first_place_is_exposed(tmp_path):
    path = write(tmp_path / "d.json", [pair(f"a{n}", f"b{n}", 1 + n % 2) for n in range(20)])

    def first_place(prompts, first, second):
        return [1.0] * len(prompts)

    benchmark = run_benchmark(first_place, "llmbar-natural", questions={"llmbar-natural": path})["llmbar-natural"]
    assert benchmark.scores["accuracy"].value == 0.5, "what it says of either completion is worth a coin"
    assert benchmark.scores["first_place_won"].low > 0.5
    assert any("first place" in note for note in benchmark.notes)


def test_a_jury_says_of_each_member_whether_it_prefers_a_place(tmp_path):
    path = write(tmp_path / "d.json", [pair(f"a{'a' * n}", f"b{'b' * (n // 2)}", 1 + n % 2) for n in range(20)])

    def first_place(prompts, first, second):
        return [1.0] * len(prompts)

    def second_place(prompts, first, second):
        return [0.0] * len(prompts)

    jury = Jury([function_judge(first_place, name="one"), function_judge(second_place, name="two")])
    benchmark = run_benchmark(jury, "llmbar-natural", questions={"llmbar-natural": path})["llmbar-natural"]
    assert benchmark.scores["first_place_won"].value == 0.5, "together they show none"
    assert benchmark.scores["first_place_won/one"].low > 0.5 > benchmark.scores["first_place_won/two"].high
    assert sum("of the jury" in note for note in benchmark.notes) == 2


def partly(unread):
    """The longer one is better, and nothing is said of pairs with an ``unread`` completion."""

    def judge(prompts, first, second):
        return [
            None if {one, other} & unread else float(len(one) > len(other))
            for one, other in zip(first, second, strict=True)
        ]

    return judge


@pytest.mark.parametrize(("unread", "decided"), [(1, True), (2, False)])
def test_a_score_of_too_few_readable_verdicts_is_shown_as_not_decided_with_the_count(tmp_path, unread, decided):
    sides = [("a" * (n + 2), f"b{n}"[:1]) for n in range(20)]
    path = write(tmp_path / "d.json", [pair(*both, 1) for both in sides])
    judge = partly({first for first, _ in sides[:unread]})
    benchmark = run_benchmark(judge, "llmbar-natural", tmp_path / "out", questions={"llmbar-natural": path})[
        "llmbar-natural"
    ]
    score, kept = benchmark.scores["accuracy"], json.loads((tmp_path / "out" / "llmbar-natural.json").read_text())
    assert score.value == 1.0, "the number is there"
    assert math.isfinite(score.low) is decided
    assert bool(benchmark.undecided) is not decided
    assert (f"{2 * unread} of 40" in score.reason) is not decided
    assert ("not decided" in str(benchmark)) is not decided
    assert (kept["scores"]["accuracy"]["low"] is not None) is decided
    assert bool(kept["undecided"]) is not decided


def test_what_people_say_is_decided_without_the_judge(tmp_path):
    rows = [
        {"instruction": "i", "input": "", "response1": f"a{n}", "response2": "b"} | dict.fromkeys(LABELERS, 1)
        for n in range(10)
    ]
    path = write(tmp_path / "t.json", rows)
    benchmark = run_benchmark(partly({"b"}), "pandalm", questions={"pandalm": path})["pandalm"]
    assert benchmark.undecided
    assert not benchmark.scores["accuracy"].measured
    assert math.isfinite(benchmark.scores["agreement_of_two_people"].low)


def test_pandalm_by_hand(tmp_path):
    def row(first, second, *labels):
        return {"instruction": "i", "input": "", "response1": first, "response2": second} | {
            f"annotator{n}": label for n, label in enumerate(labels, 1)
        }

    rows = [row("aa", "b", 1, 1, 2), row("aa", "b", 2, 2, 2), row("a", "b", 0, 0, 1), row("a", "b", 1, 1, 1)]
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(json.dumps(rows).encode()))
    benchmark = run_benchmark("longer", "pandalm", questions={"pandalm": path})["pandalm"]
    assert benchmark.scores["accuracy"].value == 2 / 4  # the first, and the tie
    assert benchmark.scores["accuracy_where_people_prefer_one"].value == pytest.approx(1 / 3)
    assert benchmark.scores["agreement_of_two_people"].value == pytest.approx((1 / 3 + 1 + 1 / 3 + 1) / 4)


@pytest.mark.parametrize(
    ("rows", "match"), [([{"input": "x"}], "output_1"), ({"a": 1}, "list"), ([pair("a", "b", 3)], "label 3")]
)
def test_wrong_files_are_refused_by_row_and_column(tmp_path, rows, match):
    path = write(tmp_path / "d.json", rows)
    with pytest.raises(DataError, match=match):
        run_benchmark("longer", "llmbar-natural", questions={"llmbar-natural": path})


def test_a_policy_is_judged_against_the_reference_answers(tmp_path):
    from rlhf.config.policy import SamplingConfig
    from rlhf.models.policy import PolicyModel
    from tests.fixtures.tiny import build_llama, build_tokenizer

    tokenizer = build_tokenizer()
    build_llama(vocab_size=len(tokenizer)).save_pretrained(tmp_path / "lm")
    tokenizer.save_pretrained(tmp_path / "lm")
    policy = PolicyModel.from_pretrained(str(tmp_path / "lm"))
    path = write(
        tmp_path / "alpaca_eval.json", [{"instruction": f"Say {n}", "output": "x" * (n * 1000)} for n in range(2)]
    )
    settings = {"questions": {"alpaca-eval": path}, "sampling": SamplingConfig(max_new_tokens=8)}
    benchmark = run_benchmark(policy, "alpaca-eval", tmp_path / "out", judge="longer", **settings)["alpaca-eval"]
    assert [item["score"] for item in benchmark.items] == [1.0, 0.0]
    assert not benchmark.scores["length_controlled_win_rate"].measured
    assert (tmp_path / "out" / "alpaca-eval.json").is_file()
    with pytest.raises(ConfigError, match="judge"):
        run_benchmark(policy, "alpaca-eval", **settings)
    benchmark = run_benchmark(policy, "alpaca-eval", judge=partly({"x" * 1000}), **settings)["alpaca-eval"]
    assert benchmark.scores["win_rate"].value == 1.0
    assert "2 of 4" in benchmark.scores["win_rate"].reason


def annotations(n, *, length_effect, seed=0):
    """The model is as good as the baseline at equal length, and often longer; longer ones win more often."""
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        one, two = rng.randint(50, 150), rng.randint(80, 180)
        wins = rng.random() < 1 / (1 + math.exp(-length_effect * math.tanh((two - one) / 40)))
        rows.append(
            {"instruction": "i", "output_1": "x" * one, "output_2": "x" * two, "preference": 2.0 if wins else 1.0}
        )
    return rows


def test_annotations_with_a_known_answer(tmp_path):
    biased = annotated_win_rate(write(tmp_path / "a.json", annotations(600, length_effect=2.0)))
    assert biased.raw.low > 0.6
    assert biased.rate.low < 0.5 < biased.rate.high, "the truth at equal length"
    rows = [*annotations(600, length_effect=0.0), {"output_1": "a", "output_2": "b", "preference": None}]
    fair = annotated_win_rate(write(tmp_path / "b.json", rows))
    assert fair.raw.n == 600
    assert fair.rate.value == pytest.approx(fair.raw.value, abs=0.03)


def test_trap_22_without_overlap_in_length_there_is_no_rate(tmp_path):
    rows = [{"output_1": "x", "output_2": "x" * (10 + n), "preference": 1 + n % 2} for n in range(80)]
    actual = annotated_win_rate(write(tmp_path / "a.json", rows))
    assert actual.raw.value == 0.5
    assert not actual.rate.measured


def test_a_draw_is_1_5_or_0(tmp_path):
    rows = [{"output_1": "a", "output_2": "b", "preference": value} for value in (0, 1.5, 2, 1)]
    assert annotated_win_rate(write(tmp_path / "a.json", rows)).raw.value == 0.5
    one = annotated_win_rate(write(tmp_path / "b.json", [*rows, {**rows[0], "preference": 2}])).raw
    assert one.value == pytest.approx((0.5 + 0.5 + 1 + 0 + 1) / 5)


def test_a_preference_out_of_its_range_is_refused(tmp_path):
    with pytest.raises(DataError, match="preference 3"):
        annotated_win_rate(write(tmp_path / "a.json", [{"output_1": "a", "output_2": "b", "preference": 3}]))
