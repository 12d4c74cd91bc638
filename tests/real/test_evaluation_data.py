"""Ratings, paired tests and corrections on PandaLM, and the last lines of Tulu 1: research/evaluation.md, section 7."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter, defaultdict
from itertools import combinations

import numpy as np
import pytest

import rlhf
from rlhf.evaluation.noninferiority import better
from rlhf.evaluation.paired_tests import sign_test
from rlhf.evaluation.prediction_powered import prediction_powered_mean
from rlhf.evaluation.ratings.bradley_terry import bradley_terry_ratings
from rlhf.evaluation.ratings.fitted import Ratings
from rlhf.evaluation.sequential import VoteProcess
from rlhf.evaluation.winrate import win_rate
from rlhf.feedback.agreement import Labels, coincidences, contingencies, observed_agreement

OUTCOMES = {1: 1.0, 0: 0.5, 2: 0.0}
FILES = {
    "human": ("testset-v1.json.gz", None),
    "gpt-3.5": ("gpt-3.5-turbo-testset-v1.json.gz", "gpt_result"),
    "pandalm": ("pandalm-7b-testset-v1.json.gz", "pandalm_result"),
}
MODELS = ["llama", "pythia", "bloom", "opt", "cerebras"]


@pytest.fixture(scope="module")
def verdicts(assets):
    """Judge -> [999] 0 tie, 1 or 2; "Tie" and what can't be parsed are 0, as published."""
    by_pair = {}
    for judge, (name, column) in FILES.items():
        with gzip.open(assets / "pandalm" / name, "rt", encoding="utf-8") as file:
            rows = json.load(file)
        if column is None:
            by_pair[judge] = [Counter(row[f"annotator{n}"] for n in (1, 2, 3)).most_common(1)[0][0] for row in rows]
            by_pair["pairs"] = [tuple(name.split("-")[0] for name in row["cmp_key"].split("_")) for row in rows]
        else:
            by_pair[judge] = [int(row[column]) if str(row[column]) in ("1", "2") else 0 for row in rows]
    return by_pair


@pytest.fixture(scope="module")
def matches(verdicts):
    return [
        (*pair, OUTCOMES[value], n)
        for n, (pair, value) in enumerate(zip(verdicts["pairs"], verdicts["human"], strict=True))
    ]


def strengths(ratings: Ratings):
    return [ratings.strengths[model] for model in MODELS]


def test_bradley_terry_with_half_ties(matches):
    ratings = bradley_terry_ratings(matches)
    assert strengths(ratings) == pytest.approx([0.7243, 0.0736, -0.0182, -0.2430, -0.5368], abs=5e-5)
    assert ratings.loss == pytest.approx(641.1366, abs=5e-5)
    points = [ratings.elo()[model] for model in MODELS]
    assert points == pytest.approx([1125.83, 1012.79, 996.84, 957.79, 906.76], abs=5e-3)
    lead = ratings.versus("opt")["llama"]
    assert lead.low > 0
    assert (lead.n, lead.value) == (999, pytest.approx(0.7243 + 0.2430, abs=1e-4))


def test_bradley_terry_of_the_decisive_ones(matches):
    ratings = bradley_terry_ratings([match for match in matches if match[2] != 0.5])
    assert ratings.num_units == 894
    assert strengths(ratings) == pytest.approx([0.8046, 0.0899, -0.0184, -0.2808, -0.5953], abs=5e-5)
    assert ratings.loss == pytest.approx(563.0156, abs=5e-5)


def test_davidson_and_rao_kupper(matches):
    ratings = bradley_terry_ratings(matches, ties="davidson")
    assert strengths(ratings) == pytest.approx([0.8190, 0.0828, -0.0207, -0.2745, -0.6066], abs=5e-5)
    assert (ratings.tie_parameter, ratings.loss) == (
        pytest.approx(0.25143, abs=5e-6),
        pytest.approx(897.8292, abs=5e-5),
    )
    ratings = bradley_terry_ratings(matches, ties="rao_kupper")
    assert strengths(ratings) == pytest.approx([0.7404, 0.0703, -0.0194, -0.2409, -0.5504], abs=5e-5)
    assert (ratings.tie_parameter, ratings.loss) == (
        pytest.approx(1.26487, abs=5e-6),
        pytest.approx(897.2791, abs=5e-5),
    )


def test_trap_05_elo_is_that_of_the_file_and_another_in_every_other_order(matches):
    wanted = {"bloom": 995.52, "cerebras": 829.81, "llama": 1146.00, "opt": 1000.51, "pythia": 1028.16}
    assert rlhf.compute_elo_ratings(matches) == pytest.approx(wanted, abs=5e-3)
    rng, order = np.random.default_rng(0), sorted(MODELS, key=lambda m: -bradley_terry_ratings(matches).strengths[m])
    drawn = [rlhf.compute_elo_ratings([matches[i] for i in rng.permutation(999)]) for _ in range(300)]
    for model in MODELS:
        assert np.std([ratings[model] for ratings in drawn]) == pytest.approx(43, abs=6)
    same = np.mean([sorted(MODELS, key=lambda m: -ratings[m]) == order for ratings in drawn])
    assert same == pytest.approx(0.26, abs=0.08)


def test_llama_is_better_than_opt_by_every_test(matches):
    y = np.array([m[2] if m[0] == "llama" else 1 - m[2] for m in matches if {m[0], m[1]} == {"llama", "opt"}])
    assert (int((y == 1).sum()), int((y == 0).sum()), int((y == 0.5).sum())) == (71, 24, 11)
    assert sign_test(71, 24) == pytest.approx(1.46e-6, abs=5e-9)
    assert better(2 * y - 1).decision == "pass"
    votes = VoteProcess()
    assert votes.update(y).max() > np.log(20)
    assert votes.interval().low > 0.5


@pytest.mark.parametrize(
    ("judge", "precision", "recall", "f1"),
    [("gpt-3.5", 0.587919, 0.573623, 0.575538), ("pandalm", 0.573831, 0.574969, 0.574305)],
)
def test_judges_have_the_published_precision_and_recall(verdicts, judge, precision, recall, f1):
    said = [(n, who, value) for who in (judge, "human") for n, value in enumerate(verdicts[who])]
    table = contingencies(Labels.of(said, scale=(0, 1, 2)), judge, "human").sum(0)
    p, r = np.diag(table) / table.sum(1), np.diag(table) / table.sum(0)
    assert (p.mean(), r.mean(), (2 * p * r / (p + r)).mean()) == pytest.approx((precision, recall, f1), abs=5e-7)


PUBLISHED = {
    "human": "llama-bloom 72 28 11, llama-cerebras 80 24 6, llama-opt 71 24 11, llama-pythia 58 27 9, bloom-cerebras 59 30 11, "
    "bloom-opt 43 35 11, bloom-pythia 49 47 11, cerebras-opt 33 49 9, cerebras-pythia 27 53 11, opt-pythia 32 53 15",
    "gpt-3.5": "llama-bloom 69 32 10, llama-cerebras 80 24 6, llama-opt 70 29 7, llama-pythia 60 28 6, bloom-cerebras 67 29 4, "
    "bloom-opt 46 38 5, bloom-pythia 52 48 7, cerebras-opt 38 45 8, cerebras-pythia 28 57 6, opt-pythia 43 53 4",
    "pandalm": "llama-bloom 57 37 17, llama-cerebras 75 26 9, llama-opt 60 33 13, llama-pythia 46 41 7, bloom-cerebras 57 31 12, "
    "bloom-opt 46 36 7, bloom-pythia 51 41 15, cerebras-opt 37 45 9, cerebras-pythia 33 52 6, opt-pythia 40 48 12",
}
"""Win, lose, tie of each pair, from the README of WeOpenML/PandaLM before its commit e3d143c."""


def test_29_of_the_30_published_counts_are_ours_and_the_other_is_printed_the_wrong_way_round(verdicts):
    different = {}
    for judge, text in PUBLISHED.items():
        for line in text.split(", "):
            pair, *counts = line.split()
            first, second = pair.split("-")
            y = [
                OUTCOMES[value] if who[0] == first else 1 - OUTCOMES[value]
                for who, value in zip(verdicts["pairs"], verdicts[judge], strict=True)
                if set(who) == {first, second}
            ]
            rate = win_rate(y, 1 - np.array(y))
            if (rate.wins, rate.losses, rate.ties) != tuple(map(int, counts)):
                different[judge, pair] = rate.wins, rate.losses, rate.ties
    assert different == {("human", "bloom-pythia"): (47, 49, 11)}


def test_few_labels_correct_a_judge_of_llama(verdicts):
    y, f = (
        np.array(
            [
                OUTCOMES[value] if pair[0] == "llama" else 1 - OUTCOMES[value]
                for pair, value in zip(verdicts["pairs"], verdicts[judge], strict=True)
                if "llama" in pair
            ]
        )
        for judge in ("human", "gpt-3.5")
    )
    assert (y.mean(), f.mean()) == (pytest.approx(0.7114, abs=5e-5), pytest.approx(0.6971, abs=5e-5))
    assert np.corrcoef(y, f)[0, 1] == pytest.approx(0.50, abs=0.005)
    rng, widths, held = np.random.default_rng(0), [], 0
    for _ in range(400):
        labeled, more = rng.integers(0, len(y), 100), rng.integers(0, len(y), 2000)
        corrected = prediction_powered_mean(y[labeled], f[labeled], f[more])
        widths.append([e.high - e.low for e in (corrected.estimate, corrected.labels_only)])
        held += corrected.estimate.low <= y.mean() <= corrected.estimate.high
    assert np.mean(widths, axis=0) == pytest.approx([0.147, 0.170], abs=0.003), "measured with z: .145 and .168"
    assert held / 400 > 0.92


def test_tulu_raters_agree_on_the_direction_in_as_many_pairs_as_counted(assets):
    grades = {"a-is-better": 2, "a-is-slightly-better": 1, "tie": 0, "b-is-slightly-better": -1, "b-is-better": -2}
    path = assets / "tulu1_human_eval" / "eval_annotations_tulu_1.csv.gz"
    given = defaultdict(dict)
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["preference"]:
                sign = 1 if row["model_a"] < row["model_b"] else -1
                given[row["instance_index"]][row["evaluator"]] = sign * grades[row["preference"]]

    def agreement(pairs, value):
        judged = [(n, side, value(grade)) for n, pair in enumerate(pairs) for side, grade in enumerate(pair)]
        return float(observed_agreement(coincidences(Labels.of(judged)).sum(0)))

    pairs = [pair for of in given.values() for pair in combinations(of.values(), 2)]
    assert len(pairs) == 169
    assert agreement(pairs, np.sign) == pytest.approx(0.5740, abs=5e-5)
    assert agreement(pairs, int) == pytest.approx(0.4675, abs=5e-5)
    assert np.mean([a * b < 0 for a, b in pairs]) == pytest.approx(0.1479, abs=5e-5)
    first_two = [tuple(of.values())[:2] for of in given.values() if len(of) >= 2]
    assert agreement(first_two, np.sign) == pytest.approx(0.5785, abs=5e-5)


def test_truthfulqa_holds_what_the_page_says(assets):
    from rlhf.evaluation.benchmarks.truthfulqa import read_truthfulqa

    rows = read_truthfulqa(assets / "truthfulqa" / "TruthfulQA.csv")
    assert (len(rows), len({row["category"] for row in rows}), sum(row["adversarial"] for row in rows)) == (
        817,
        38,
        437,
    )
    right, wrong = (np.mean([len(row[side]) for row in rows]) for side in ("right", "wrong"))
    assert (right, wrong) == (pytest.approx(3.475, abs=2e-3), pytest.approx(4.125, abs=5e-4)), (
        "one best answer is listed twice"
    )
