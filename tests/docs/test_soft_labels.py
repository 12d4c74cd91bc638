"""tools/soft_labels.py: each arm's rows say what they claim, and the page says no more than was measured."""

from __future__ import annotations

import math

import pytest

from rlhf.losses.reward import label_noise
from tools import soft_labels
from tools.soft_labels import Crowd, judgments, labeled, page, verdict

torch = pytest.importorskip("torch")

WHO = Crowd(good=3, careless=4, spammers=3, overlap=3)


def pairs(num):
    return [
        {
            "id": f"row-{n}", "prompt": "?", "chosen": f"good {n}", "rejected": f"bad {n}", "chosen_ids": [n, 1],
            "rejected_ids": [n, 0], "gold_margin": 1.0, "flipped": False,
        }
        for n in range(num)
    ]  # fmt: skip


ROWS = pairs(400)
JUDGED = judgments(ROWS, WHO, seed=3)


def right(arm):
    rows_of_arm = labeled(ROWS, JUDGED, arm)
    return sum(not row["flipped"] for row in rows_of_arm) / len(rows_of_arm)


def test_a_row_that_is_flipped_is_flipped_in_text_and_ids_and_no_other_is():
    for arm in ("majority", "hard", "soft"):
        for row in labeled(ROWS, JUDGED, arm):
            assert row["chosen"].startswith("bad" if row["flipped"] else "good")
            assert row["chosen_ids"][1] == (0 if row["flipped"] else 1)
            assert row["rejected_ids"][1] == (1 if row["flipped"] else 0)


def test_each_pair_is_judged_as_often_as_wanted_and_neither_side_is_right_more_often():
    assert (JUDGED.counts().sum(1) == 3).all()
    a = sum(chosen_is_a for _, chosen_is_a in JUDGED.item_names)
    assert 160 < a < 240


def test_knowing_whom_to_trust_makes_better_labels_than_counting_and_truth_is_true():
    assert right("hard") > right("majority") + 0.03
    assert right("truth") == 1


def test_soft_rows_are_hard_rows_with_their_probability():
    hard, soft = (labeled(ROWS, JUDGED, arm) for arm in ("hard", "soft"))
    assert [row["chosen"] for row in hard] == [row["chosen"] for row in soft]
    assert "label_probability" not in hard[0]
    probabilities = torch.tensor([row["label_probability"] for row in soft], dtype=torch.float64)
    believed = 1 - label_noise(probabilities)
    assert believed.min() >= 0.5
    assert believed.max() < 1
    sure = [row for row, p in zip(soft, believed.tolist(), strict=True) if p > 0.95]
    unsure = [row for row, p in zip(soft, believed.tolist(), strict=True) if p < 0.8]
    wrong = [sum(row["flipped"] for row in rows) / len(rows) for rows in (sure, unsure)]
    assert wrong[0] < 0.12 < 0.2 < wrong[1], "who is less sure is wrong more often"


def test_a_difference_is_called_one_only_where_the_interval_says_so():
    # differences 0.1, 0.11, 0.09: mean 0.1, deviation 0.01, t(2) = 4.303: 0.1 +- 0.025
    assert verdict([0.09, 0.10, 0.11], "soft", "majority").startswith("soft is better than majority: +0.100 ± 0.025")
    assert "worse" in verdict([-0.09, -0.10, -0.11], "soft", "majority")
    assert "can't be told apart" in verdict([-0.1, 0.1, 0.05], "soft", "majority")
    assert "too few seeds" in verdict([0.3], "soft", "majority")


def test_the_page_shows_every_arm_that_all_seeds_have():
    arm = {
        "accuracy": {"value": 0.9, "low": 0.87, "high": 0.93}, "log_loss": 0.3, "right_labels": 0.8, "num_labels": 10,
        "seconds": 1.0,
    }  # fmt: skip
    rows = [{"seed": n, "num_pairs": 10, "alpha": 0.2, "arms": {"majority": arm, "soft": arm}} for n in (1, 2, 3)]
    rows[0]["arms"]["hard"] = arm
    text = page(rows, WHO, "python tools/soft_labels.py")
    assert "| soft | 0.800 ± 0.000 | 0.900 [0.870, 0.930] | " in text
    assert "| hard |" not in text
    assert "soft and majority can't be told apart" in text
    assert math.isclose(soft_labels.half_width([1.0, 1.0, 1.0]), 0.0)
