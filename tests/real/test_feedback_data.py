"""Published human judgments, counted by our functions: the figures of research/evaluation.md, section 7."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter, defaultdict
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from typer.testing import CliRunner

from rlhf.cli import app
from rlhf.evaluation.intervals import mean_interval, unit_means, wilson_interval
from rlhf.evaluation.winrate import win_rate
from rlhf.feedback.agreement import (
    Labels,
    agreement_estimate,
    cohen_kappa,
    coincidences,
    contingencies,
    fleiss_kappa,
    krippendorff_alpha,
    observed_agreement,
)
from rlhf.feedback.label_aggregation import dawid_skene, majority_vote
from rlhf.feedback.readings import length_of
from rlhf.feedback.strengths import Comparison, crowd_bradley_terry
from rlhf.losses.tie_losses import davidson_loss, rao_kupper_loss
from tools import tempering_table

GRADES = {"a-is-better": 2, "a-is-slightly-better": 1, "tie": 0, "b-is-slightly-better": -1, "b-is-better": -2}

# ---------------------------------------------------------------------------------------------------------- PandaLM


def read_json(path):
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        return json.load(file)


@pytest.fixture(scope="module")
def pandalm(assets):
    return read_json(assets / "pandalm" / "testset-v1.json.gz")


@pytest.fixture(scope="module")
def annotators(pandalm):
    """Three people on 999 pairs: 0 tie, 1 or 2 the better one."""
    return Labels.of([(row["idx"], n, row[f"annotator{n}"]) for row in pandalm for n in (1, 2, 3)], scale=(0, 1, 2))


@pytest.fixture(scope="module")
def majority(annotators):
    consensus = majority_vote(annotators)
    return dict(zip(consensus.items, consensus.values, strict=True))


@pytest.fixture(scope="module")
def games(pandalm, majority):
    """(first model, second model, 1, 1/2 or 0) of each pair."""
    outcome = {1: 1.0, 0: 0.5, 2: 0.0}
    return [
        (*(name.split("-")[0] for name in row["cmp_key"].split("_")), outcome[majority[row["idx"]]]) for row in pandalm
    ]


def strengths_by(games, loss, models):
    """Strengths of mean 0 and a positive parameter of ties, at the maximum of a likelihood from ``losses/tie_losses.py``."""
    first = torch.tensor([models.index(a if y >= 0.5 else b) for a, b, y in games])
    second = torch.tensor([models.index(b if y >= 0.5 else a) for a, b, y in games])
    tied = torch.tensor([y == 0.5 for *_, y in games])

    def value(numbers):
        parameters = torch.tensor(numbers, dtype=torch.float64, requires_grad=True)
        total = loss(parameters[first], parameters[second], tied, parameters[-1].exp()).sum()
        total.backward()
        return total.item(), parameters.grad.numpy()

    best = minimize(
        value, np.zeros(len(models) + 1), jac=True, method="L-BFGS-B", options={"ftol": 1e-15, "gtol": 1e-8}
    )
    strengths = best.x[:-1] - best.x[:-1].mean()
    return dict(zip(models, strengths, strict=True)), float(np.exp(best.x[-1])), float(best.fun)


def bradley_terry(games):
    """Without a prior and without doubt about annotators, which is Bradley and Terry's own model."""
    comparisons = [Comparison("all", *((a, b) if y >= 0.5 else (b, a)), is_tie=y == 0.5) for a, b, y in games]
    return crowd_bradley_terry(comparisons, prior=1e-12, reliability_prior=(1e9, 1 + 1e-9))


def test_pandalm_annotators_agree_as_published(annotators, majority):
    assert np.bincount(annotators.values).tolist() == [326, 1255, 1416]
    assert Counter(majority.values()) == {0: 105, 1: 422, 2: 472}
    kappas = [float(cohen_kappa(contingencies(annotators, *pair).sum(0))) for pair in combinations((1, 2, 3), 2)]
    assert kappas == pytest.approx([0.852023, 0.878944, 0.861661], abs=5e-7)
    table = coincidences(annotators).sum(0)
    assert float(fleiss_kappa(table)) == pytest.approx(0.864175, abs=5e-7)
    assert float(krippendorff_alpha(table)) == pytest.approx(0.864221, abs=5e-7)
    interval = agreement_estimate(coincidences(annotators), krippendorff_alpha)
    assert interval.low < 0.864221 < interval.high
    assert interval.high - interval.low < 0.06


@pytest.mark.parametrize(
    ("file", "column", "accuracy", "kappa", "without_ties"),
    [
        ("gpt-3.5-turbo-testset-v1.json.gz", "gpt_result", 0.710711, 0.495784, 0.774049),
        ("pandalm-7b-testset-v1.json.gz", "pandalm_result", 0.667668, 0.435355, 0.710291),
    ],
)
def test_pandalm_judges_agree_with_the_majority_as_published(
    assets, majority, file, column, accuracy, kappa, without_ties
):
    said = {row["idx"]: row[column] for row in read_json(assets / "pandalm" / file)}
    verdicts = {item: int(v) if str(v) in ("1", "2") else 0 for item, v in said.items()}  # "Tie" and garbage are ties

    def against_majority(items):
        pairs = [(i, "judge", verdicts[i]) for i in items] + [(i, "people", majority[i]) for i in items]
        return contingencies(Labels.of(pairs, scale=(0, 1, 2)), "judge", "people").sum(0)

    table = against_majority(majority)
    assert float(observed_agreement(table)) == pytest.approx(accuracy, abs=5e-7)
    assert float(cohen_kappa(table)) == pytest.approx(kappa, abs=5e-7)
    decided = against_majority([item for item, value in majority.items() if value != 0])
    assert decided.sum() == 894
    assert float(observed_agreement(decided)) == pytest.approx(without_ties, abs=5e-7)


def test_pandalm_win_rates_are_those_of_the_readme_but_for_its_misprint(games):
    table = defaultdict(list)
    for a, b, y in games:
        table[tuple(sorted((a, b)))].append(y if a < b else 1 - y)
    rates = {pair: win_rate(y, 1 - np.array(y)) for pair, y in table.items()}
    counts = {pair: (rate.wins, rate.losses, rate.ties) for pair, rate in rates.items()}
    assert counts["bloom", "llama"] == (28, 72, 11)
    assert counts["cerebras", "llama"] == (24, 80, 6)
    assert counts["llama", "pythia"] == (58, 27, 9)
    assert counts["bloom", "opt"] == (43, 35, 11)
    assert counts["bloom", "pythia"] == (47, 49, 11), "printed the other way round"
    rate = rates["llama", "opt"]
    assert (rate.wins, rate.losses, rate.ties, round(rate.rate, 4)) == (71, 24, 11, 0.7217)
    plain = wilson_interval(71 + 11 / 2, 106)
    assert (plain.low, plain.high) == pytest.approx((0.6298, 0.7981), abs=5e-5)
    assert plain.low < rate.low < rate.high < plain.high, "ties carry less noise than a coin"


def test_pandalm_bradley_terry_is_that_of_choix_and_evalica(games):
    half = bradley_terry(games)
    wanted = {"llama": 0.7243, "pythia": 0.0736, "bloom": -0.0182, "opt": -0.2430, "cerebras": -0.5368}
    assert half.strengths == pytest.approx(wanted, abs=5e-5)
    assert half.loss * 999 == pytest.approx(641.1366, abs=5e-4)
    decisive = bradley_terry([game for game in games if game[2] != 0.5])
    wanted = {"llama": 0.8046, "pythia": 0.0899, "bloom": -0.0184, "opt": -0.2808, "cerebras": -0.5953}
    assert decisive.strengths == pytest.approx(wanted, abs=5e-5)
    assert decisive.loss * 894 == pytest.approx(563.0156, abs=5e-4)


def test_pandalm_strengths_with_ties_are_davidsons_and_rao_and_kuppers(games):
    models = ["llama", "pythia", "bloom", "opt", "cerebras"]
    strengths, weight, loss = strengths_by(
        games, lambda a, b, tied, nu: davidson_loss(a, b, tied, tie_weight=nu), models
    )
    assert [strengths[m] for m in models] == pytest.approx([0.8190, 0.0828, -0.0207, -0.2745, -0.6066], abs=6e-5)
    assert (weight, loss) == pytest.approx((0.25143, 897.8292), rel=2e-5)
    # Rao and Kupper's eta is exp(threshold)
    strengths, threshold, loss = strengths_by(
        games, lambda a, b, tied, t: rao_kupper_loss(a, b, tied, threshold=t), models
    )
    assert [strengths[m] for m in models] == pytest.approx([0.7404, 0.0703, -0.0194, -0.2409, -0.5504], abs=6e-5)
    assert (np.exp(threshold), loss) == pytest.approx((1.26487, 897.2791), rel=2e-5)


def test_pandalm_without_ties_says_the_same_by_majority_and_by_dawid_and_skene(annotators, majority):
    # People this good need no model of their errors: what it changes is little, and only where they differ.
    consensus = dawid_skene(annotators)
    changed = [item for item, value in zip(consensus.items, consensus.values, strict=True) if majority[item] != value]
    unanimous = {item for item, row in enumerate(annotators.counts()) if row.max() == 3}
    assert len(changed) < 0.03 * 999
    assert not set(changed) & {annotators.item_names[item] for item in unanimous}
    assert min(consensus.reliability.values()) > 0.85


# ------------------------------------------------------------------------------------------ labels of several classes


def reported(tmp_path, monkeypatch, rows):
    """What `rlhf feedback report --json` says of the agreement on rows of (item, annotator, label), once imported."""
    monkeypatch.chdir(tmp_path)
    Path("labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for words in (("import", "labels.jsonl"), ("report", "--json")):
        result = CliRunner().invoke(app, ["feedback", *words], catch_exceptions=False)
    (agreement,) = json.loads(result.stdout)["agreement"]
    return agreement


def test_pandalm_labels_by_the_command_line_agree_as_published(pandalm, tmp_path, monkeypatch):
    reports = reported(
        tmp_path,
        monkeypatch,
        [
            {"item": f"p{row['idx']}", "annotator": f"annotator{n}", "label": row[f"annotator{n}"]}
            for row in pandalm
            for n in (1, 2, 3)
        ],
    )
    assert reports["scale"] == ["0", "1", "2"]
    assert reports["krippendorff_alpha"]["value"] == pytest.approx(0.864221, abs=5e-7)
    assert reports["fleiss_kappa"]["value"] == pytest.approx(0.864175, abs=5e-7)
    kappas = {tuple(pair["annotators"]): pair["value"] for pair in reports["cohen_kappa"]}
    assert kappas == pytest.approx(
        {
            ("annotator1", "annotator2"): 0.852023,
            ("annotator1", "annotator3"): 0.878944,
            ("annotator2", "annotator3"): 0.861661,
        },
        abs=5e-7,
    )


def test_tulu_grades_as_classes_agree_as_measured(grades, tmp_path, monkeypatch):
    named = zip(grades.items, grades.annotators, grades.values, strict=True)
    reports = reported(
        tmp_path,
        monkeypatch,
        [
            {"item": str(grades.item_names[i]), "annotator": str(grades.annotator_names[a]), "label": grades.scale[v]}
            for i, a, v in named
        ],
    )
    assert (reports["num_items"], reports["num_compared"]) == (996, 121)
    assert reports["krippendorff_alpha"]["value"] == pytest.approx(0.2845, abs=5e-5)
    assert reports["fleiss_kappa"]["value"] is None, "items have one to three judgments"


def test_vader_raters_err_together_and_tempering_makes_dawid_skene_better_than_the_majority(assets):
    ratings = tempering_table.ratings_of(assets / "vader" / "hutto_ICWSM_2014.tar.gz", "amazonReviewSnippets")
    assert {len(given) for given in ratings} == {20}
    measurement = tempering_table.measured(ratings)
    assert (measurement.num_snippets, measurement.num_ratings) == (3708, 74160)
    assert measurement.share == pytest.approx(0.256, abs=0.005)
    assert measurement.plain > 0.38, "as sure as if raters erred independently"
    assert measurement.tempered < 0.16
    assert measurement.tempering.correlation == pytest.approx(0.39, abs=0.03)
    assert measurement.tempering.after < measurement.tempering.before


# ------------------------------------------------------------------------------------------------- LLMBar and HH-RLHF


@pytest.mark.parametrize(
    ("part", "longer", "first"),
    [
        ("LLMBar/Natural", 0.5650, None),
        ("LLMBar/Adversarial/Neighbor", 0.1194, None),
        ("LLMBar/Adversarial/GPTInst", 0.1304, None),
        ("LLMBar/Adversarial/GPTOut", 0.4468, None),
        ("LLMBar/Adversarial/Manual", 0.1848, None),
        ("Processed/FairEval", 0.5909, 0.6212),
        ("Processed/LLMEval^2", 0.6125, 0.4600),
        ("Processed/MT-Bench", 0.6925, 0.5050),
    ],
)
def test_llmbar_is_won_by_the_longer_and_by_the_first_as_often_as_measured(assets, part, longer, first):
    rows = read_json(assets / "llmbar" / part / "dataset.json")
    lengths = np.array([[length_of(row[f"output_{side}"]) for side in (1, 2)] for row in rows])
    right = np.array([row["label"] - 1 for row in rows])
    chosen, rejected = (lengths[np.arange(len(rows)), side] for side in (right, 1 - right))
    assert win_rate(chosen, rejected).rate == pytest.approx(longer, abs=5e-5)
    if first is not None:
        assert wilson_interval(int((right == 0).sum()), len(rows)).value == pytest.approx(first, abs=5e-5)


@pytest.mark.parametrize(
    ("part", "longer"),
    [
        ("harmless-base", 0.4457),
        ("helpful-base", 0.5979),
        ("helpful-online", 0.4288),
        ("helpful-rejection-sampled", 0.5671),
    ],
)
def test_hh_rlhf_is_won_by_the_longer_as_often_as_measured(assets, part, longer):
    with gzip.open(assets / "hh_rlhf" / part / "test.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    chosen, rejected = (np.array([length_of(row[side]) for row in rows]) for side in ("chosen", "rejected"))
    assert win_rate(chosen, rejected).rate == pytest.approx(longer, abs=5e-5), "equal lengths half"


# ------------------------------------------------------------------------------------------------------------- Tulu 1


@pytest.fixture(scope="module")
def tulu(assets):
    """Labeled rows, oldest first; the last of a person's judgments of an item counts."""
    path = assets / "tulu1_human_eval" / "eval_annotations_tulu_1.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row["preference"]]


@pytest.fixture(scope="module")
def grades(tulu):
    kept = {}
    for row in tulu:
        # raters saw the models on different sides: what they say is compared in the order of the models' names
        sign = 1 if row["model_a"] < row["model_b"] else -1
        kept[row["instance_index"], row["evaluator"]] = sign * GRADES[row["preference"]]
    return Labels.of([(item, who, grade) for (item, who), grade in kept.items()], scale=(-2, -1, 0, 1, 2))


def test_tulu_has_as_many_rows_and_raters_as_counted(tulu, grades):
    counts = Counter(GRADES[row["preference"]] for row in tulu)
    assert [counts[grade] for grade in (2, 1, 0, -1, -2)] == [188, 235, 376, 191, 160]
    assert len(grades.values) == 1141
    raters = grades.counts().sum(1)
    assert (len(raters), int((raters >= 2).sum())) == (996, 121)


def test_tulu_raters_agree_as_measured(grades):
    table = coincidences(grades).sum(0)
    alphas = [
        float(krippendorff_alpha(table, metric=metric, scale=grades.scale))
        for metric in ("nominal", "ordinal", "interval")
    ]
    assert alphas == pytest.approx([0.2845, 0.3687, 0.3644], abs=5e-5)
    sides = Labels.of(
        [
            (grades.item_names[i], grades.annotator_names[a], int(np.sign(grades.scale[v])))
            for i, a, v in zip(grades.items, grades.annotators, grades.values, strict=True)
        ],
        scale=(-1, 0, 1),
    )
    assert float(krippendorff_alpha(coincidences(sides).sum(0))) == pytest.approx(0.3346, abs=5e-5)
    interval = agreement_estimate(coincidences(grades), partial(krippendorff_alpha, metric="ordinal"))
    assert interval.n == 121
    assert interval.low < 0.3687 < interval.high


def test_tulu_win_rates_are_those_of_item_means(tulu):
    wanted = {
        ("chatgpt", "tulu_65B"): 0.5612,
        ("tulu_65B", "tulu_7B"): 0.6102,
        ("tulu_65B", "tulu_human_only_65B"): 0.6483,
    }
    errors = {
        ("chatgpt", "tulu_65B"): 0.0212,
        ("tulu_65B", "tulu_7B"): 0.0208,
        ("tulu_65B", "tulu_human_only_65B"): 0.0215,
    }
    outcomes = defaultdict(list)
    for row in tulu:
        y = (np.sign(GRADES[row["preference"]]) + 1) / 2
        first, second = row["model_a"], row["model_b"]
        pair = min(first, second), max(first, second)
        outcomes[pair].append((row["instance_index"], y if first == pair[0] else 1 - y))
    assert outcomes.keys() == wanted.keys()
    for pair, given in outcomes.items():
        items, y = [item for item, _ in given], np.array([value for _, value in given])
        rate = win_rate(y, 1 - y, clusters=items)
        assert rate.num_prompts == 332
        assert rate.rate == pytest.approx(wanted[pair], abs=5e-5)
        spread = mean_interval(unit_means(y, items))
        assert (spread.high - spread.low) / 2 / 1.9671 == pytest.approx(errors[pair], abs=6e-5)
