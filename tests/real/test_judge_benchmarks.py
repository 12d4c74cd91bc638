"""Judges on published data: what section 7 of the research page says that a correct implementation prints."""

from __future__ import annotations

import gzip
import json

import pytest

from rlhf.evaluation.benchmarks.run_benchmark import run_benchmark
from rlhf.evaluation.comparison import compare_completions
from rlhf.rewards.pairwise.votes import Vote


@pytest.fixture(autouse=True)
def folder(assets, monkeypatch):
    monkeypatch.setenv("RLHF_BENCHMARKS", str(assets))


@pytest.mark.parametrize(
    ("part", "accuracy"),
    [("natural", 0.5650), ("neighbor", 0.1194), ("gptinst", 0.1304), ("gptout", 0.4468), ("manual", 0.1848)],
)
def test_the_longer_one_is_the_better_one_as_often_as_counted(part, accuracy):
    benchmark = run_benchmark("longer", f"llmbar-{part}")[f"llmbar-{part}"]
    assert benchmark.scores["accuracy"].value == pytest.approx(accuracy, abs=5e-5)


@pytest.mark.parametrize(
    ("part", "longer", "first"),
    [("FairEval", 0.5909, 0.6212), ("LLMEval^2", 0.6125, 0.4600), ("MT-Bench", 0.6925, 0.5050)],
)
def test_processed_sets(assets, part, longer, first):
    rows = json.loads((assets / "llmbar" / "Processed" / part / "dataset.json").read_text())
    path = assets / "llmbar" / "Processed" / part / "dataset.json"
    benchmark = run_benchmark("longer", "llmbar-natural", questions={"llmbar-natural": path})["llmbar-natural"]
    assert benchmark.scores["accuracy"].value == pytest.approx(longer, abs=5e-5)
    assert sum(row["label"] == 1 for row in rows) / len(rows) == pytest.approx(first, abs=5e-5)


class Published:
    """A judge whose verdicts are a published file; garbage is its own word for nothing that can be read."""

    symmetric = True
    name = "published"

    def __init__(self, rows, results, garbage):
        self.identity = {"type": "published"}
        self.said = {}
        for row, result in zip(rows, results, strict=True):
            outcome = {"1": 1.0, "2": 0.0, "Tie": 0.5}.get(str(result), garbage)
            self.said.setdefault((str(row["response1"]), str(row["response2"])), []).append(outcome)

    def votes(self, pairs, on_vote=None):
        told = {key: iter(outcomes) for key, outcomes in self.said.items()}
        return [Vote(first=next(told[pair.first, pair.second]), reason="garbage") for pair in pairs]


FILES = {"gpt-3.5-turbo": "gpt_result", "pandalm-7b": "pandalm_result"}


def published(assets, *, garbage, judge="gpt-3.5-turbo"):
    def read(name):
        with gzip.open(assets / "pandalm" / f"{name}.json.gz", "rt") as file:
            return json.load(file)

    rows = read("testset-v1")
    results = {row["idx"]: row[FILES[judge]] for row in read(f"{judge}-testset-v1")}
    return Published(rows, [results[row["idx"]] for row in rows], garbage)


@pytest.mark.parametrize(
    ("judge", "accuracy", "decided"), [("gpt-3.5-turbo", 0.710711, 0.774049), ("pandalm-7b", 0.667668, 0.710291)]
)
def test_judges_agree_with_people_on_pandalm_as_published(assets, judge, accuracy, decided):
    benchmark = run_benchmark(published(assets, garbage=0.5, judge=judge), "pandalm")["pandalm"]
    assert benchmark.scores["accuracy"].value == pytest.approx(accuracy, abs=5e-7), "garbage as a tie, as published"
    assert benchmark.scores["accuracy_where_people_prefer_one"].value == pytest.approx(decided, abs=5e-7)
    assert benchmark.scores["agreement_of_two_people"].value > benchmark.scores["accuracy"].value


def test_trap_06_garbage_is_counted_and_no_tie(assets):
    benchmark = run_benchmark(published(assets, garbage=None), "pandalm")["pandalm"]
    assert benchmark.settings["unparsed"] == 25
    assert benchmark.scores["accuracy"].n == 999 - 25
    assert benchmark.scores["accuracy"].value != pytest.approx(0.710711, abs=5e-4)


def test_a_judge_that_always_prefers_the_first_place_is_exposed_on_llmbar(assets):
    rows = json.loads((assets / "llmbar" / "LLMBar" / "Natural" / "dataset.json").read_text())

    def first_place(prompts, first, second):
        return [1.0 for _ in prompts]

    comparison = compare_completions(
        [row["input"] for row in rows],
        [row["output_1"] for row in rows],
        [row["output_2"] for row in rows],
        first_place,
        length_control=False,
    )
    assert comparison.position.is_biased
    assert comparison.win_rate.value == 0.5
