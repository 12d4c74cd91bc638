from __future__ import annotations

import math
import random

import pytest
import torch

from rlhf.errors import ConfigError, DataError, UnknownNameError
from rlhf.feedback import consensus
from rlhf.feedback.consensus import METHODS
from rlhf.feedback.simulate import crowd
from rlhf.losses.reward import bradley_terry_loss, label_noise
from rlhf.store.items import Item, ItemJudgment
from rlhf.store.values import Response, Task, TaskKind


def item(name, answers, kind=TaskKind.PAIRWISE, texts=("x", "y"), **how):
    task = Task(
        id=name, kind=kind, prompt=f"{name}?", responses=[Response(text=t, model=f"m{t}") for t in texts], **how
    )
    return Item(task=task, judgments=[ItemJudgment(annotator=who, value=value) for who, value in answers.items()])


def consensus_rows(items, **how):
    return consensus.consensus_rows(items, **how).rows


def sides(letters):
    return {f"p{n}": {"preference": {"a": "a", "b": "b", "t": "tie"}[letter]} for n, letter in enumerate(letters)}


def test_the_majority_wins_with_its_share():
    (row,) = consensus_rows([item("t", sides("abb"))], aggregate="majority")
    # two of three say b: p = 2/3
    assert row == {
        "prompt": "t?", "chosen": "y", "rejected": "x", "id": "t", "task_id": "t", "num_judgments": 3,
        "aggregate": "majority", "label_probability": 0.666667, "chosen_model": "my", "rejected_model": "mx",
        "votes": {"chosen": 2, "tie": 0, "rejected": 1},
    }  # fmt: skip


def test_ties_are_half_a_win_in_the_probability_that_the_reward_stage_reads():
    (row,) = consensus_rows([item("t", sides("aaabt"))], aggregate="majority")
    # (3 + 1/2) / 5
    assert row["label_probability"] == pytest.approx(0.7)
    noise = label_noise(torch.tensor([row["label_probability"]]))
    assert bradley_terry_loss(torch.tensor([1.0]), torch.tensor([0.0]), label_smoothing=noise).item() == pytest.approx(
        -0.7 * math.log(1 / (1 + math.exp(-1))) - 0.3 * math.log(1 / (1 + math.exp(1)))
    )


def test_what_nobody_wins_is_dropped_or_kept_as_a_tie():
    items = [item("even", sides("ab")), item("tied", sides("tta")), item("won", sides("aab"))]
    assert [row["id"] for row in consensus_rows(items, aggregate="majority")] == ["won"]
    kept = consensus_rows(items, aggregate="majority", ties="keep")
    assert [(row["id"], row["preference"]) for row in kept] == [("even", "tie"), ("tied", "tie"), ("won", "a")]
    assert [row["label_probability"] for row in kept] == pytest.approx([0, 2 / 3, 2 / 3], abs=1e-6), (
        "of a tie: that it is one"
    )
    assert kept[1]["votes"] == {"a": 1, "tie": 2, "b": 0}


@pytest.mark.parametrize("aggregate", METHODS)
def test_one_judgment_is_believed_and_never_turned_round(aggregate):
    items = [item(f"t{n}", {f"p{n % 3}": {"preference": "b" if n % 4 else "a"}}) for n in range(12)]
    rows = consensus_rows(items, aggregate=aggregate)
    assert [row["chosen"] for row in rows] == ["y" if n % 4 else "x" for n in range(12)]


@pytest.mark.parametrize("aggregate", METHODS)
def test_a_file_that_always_names_the_chosen_one_first_gives_the_first_no_advantage(aggregate):
    """Swapping the two completions of every task, and the answers with them, swaps the rows and nothing else."""
    rng = random.Random(0)
    letters = ["".join(rng.choices("ab", [0.8, 0.2], k=3)) for _ in range(40)]
    items = [item(f"t{n}", sides(said)) for n, said in enumerate(letters)]
    actual = consensus_rows(items, aggregate=aggregate)
    share = sum(row["label_probability"] for row in actual if row["chosen"] == "x") / sum(
        row["chosen"] == "x" for row in actual
    )
    other = [row["label_probability"] for row in actual if row["chosen"] == "y" and row["votes"]["chosen"] == 2]
    same = [row["label_probability"] for row in actual if row["chosen"] == "x" and row["votes"]["chosen"] == 2]
    assert share > 0.5
    # 2 to 1 for the first is as good as 2 to 1 for the second, though the first wins four times as often
    assert abs(sum(other) / len(other) - sum(same) / len(same)) < 0.075


def test_weighing_annotators_beats_counting_them_on_a_mixed_crowd():
    people = crowd(3, 1, 2)
    rng = random.Random(1)
    items, truth = [], {}
    for n in range(150):
        better = rng.choice([1, -1])
        truth[f"t{n}"] = "x" if better > 0 else "y"
        said = {p.name: {"preference": p.judge(n, better, seed=1)[0]} for p in rng.sample(people, 3)}
        items.append(item(f"t{n}", said))
    right = {}
    for aggregate in ("majority", "dawid-skene"):
        rows = consensus_rows(items, aggregate=aggregate)
        right[aggregate] = sum(row["chosen"] == truth[row["id"]] for row in rows) / len(items)
    assert right["dawid-skene"] > right["majority"] + 0.02


def test_grades_rankings_and_ratings_are_taken_apart_into_pairs():
    graded = item("g", {"p0": {"grade": 3}, "p1": {"grade": -1}, "p2": {"grade": 1}}, TaskKind.GRADED7)
    (row,) = consensus_rows([graded], aggregate="majority")
    assert (row["chosen"], row["mean_grade"]) == ("x", 1.0)
    ranked = item("r", {"p0": {"ranks": [2, 1, 2]}}, TaskKind.RANKING, texts="xyz")
    rows = consensus_rows([ranked], aggregate="majority")
    assert [(row["id"], row["chosen"], row["rejected"]) for row in rows] == [("r#0-1", "y", "x"), ("r#1-2", "y", "z")]
    rated = item("q", {"p0": {"ratings": {"accuracy": [2, 5], "tone": [5, 3]}}}, TaskKind.RATING)
    (row,) = consensus_rows([rated], aggregate="majority")  # plain means 3.5 and 4: `tone` has no weight
    assert row["chosen"] == "y"


def test_ratings_that_weigh_the_same_are_a_tie_and_no_row():
    names = ("helpfulness", "accuracy", "harmlessness", "coherence")
    # 5 + 1.2 + 1.5 * 2 + .8 * 3 = 3 + 1.2 * 4 + 1.5 * 2 + .8 = 11.6
    ratings = {
        name: list(given) for name, given in zip(names, zip((5, 1, 2, 3), (3, 4, 2, 1), strict=True), strict=True)
    }
    rated = item("q", {"p0": {"ratings": ratings}}, TaskKind.RATING)
    (row,) = consensus_rows([rated], aggregate="majority", ties="keep")
    assert row["preference"] == "tie"
    assert consensus_rows([rated], aggregate="majority") == []


def test_single_completions_keep_their_kind():
    good = item("b", {"p0": {"label": True}, "p1": {"label": False}, "p2": {"label": True}}, TaskKind.BINARY, texts="x")
    (row,) = consensus_rows([good], aggregate="majority")
    assert (row["completion"], row["label"], row["label_probability"]) == ("x", True, 0.666667)
    rated = item(
        "r", {"p0": {"ratings": {"overall": [4]}}, "p1": {"ratings": {"overall": [3]}}}, TaskKind.RATING, texts="x"
    )
    (row,) = consensus_rows([rated])
    assert (row["rating"], row["num_judgments"], row["aggregate"]) == (3.5, 2, "mean")


def test_gold_items_and_those_that_too_few_judged_stay_behind():
    items = [item("g", sides("aaa"), gold={"preference": "a"}), item("few", sides("a")), item("enough", sides("ab"))]
    assert [row["id"] for row in consensus_rows([*items, item("won", sides("aa"))], min_judgments=2, ties="keep")] == [
        "enough",
        "won",
    ]
    with pytest.raises(DataError, match=r"gold.*3 judgment"):
        consensus_rows(items, min_judgments=3)


def test_a_wrong_option_is_named():
    with pytest.raises(UnknownNameError, match="'dawid-skene'"):
        consensus_rows([item("t", sides("a"))], aggregate="dawid_skene")
    with pytest.raises(UnknownNameError, match="way to treat ties"):
        consensus_rows([item("t", sides("a"))], ties="half")
    with pytest.raises(ConfigError, match="at least 1"):
        consensus_rows([item("t", sides("a"))], min_judgments=0)
