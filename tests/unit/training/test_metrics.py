from __future__ import annotations

import math

import torch

from rlhf.training.metrics import Metrics, describe, share_above


def test_a_mean_over_parts_is_the_mean_over_everything():
    metrics = Metrics()
    metrics.mean("loss", torch.tensor([1.0, 2.0, 3.0]))
    metrics.mean("loss", torch.tensor([10.0]))
    assert metrics.result() == {"loss": 4.0}


def test_a_mean_of_means_is_weighted_by_what_each_stands_for():
    metrics = Metrics()
    metrics.mean("ratio", torch.tensor(1.0), 30.0)
    metrics.mean("ratio", torch.tensor(2.0), 10.0)
    assert metrics.result() == {"ratio": 1.25}


def test_totals_are_added():
    metrics = Metrics()
    for part in (0.25, 0.5):
        metrics.total("loss/train", torch.tensor(part))
    assert metrics.result() == {"loss/train": 0.75}


def test_what_was_not_measured_is_not_there():
    metrics = Metrics()
    metrics.mean("nothing", torch.tensor([]))
    assert metrics.result() == {}


def test_yes_and_no_count_as_one_and_zero_and_nothing_keeps_a_graph():
    metrics = Metrics()
    metrics.mean("share", torch.tensor([True, False, True, True]))
    metrics.mean("loss", torch.ones(2, requires_grad=True) * 3)
    assert metrics.result() == {"share": 0.75, "loss": 3.0}
    assert not metrics.sums["loss"].requires_grad


def test_sums_are_kept_in_float64():
    metrics = Metrics()
    for _ in range(1000):
        metrics.mean("x", torch.full((1000,), 0.1))
    assert math.isclose(metrics.result()["x"], 0.1, rel_tol=1e-6)  # float32 sums would be off by 1e-4


def test_a_tie_counts_half():
    assert share_above(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 2.0, 2.0])).tolist() == [0.0, 0.5, 1.0]


def test_headlines_name_what_is_there():
    assert describe({"loss/train": 1.23456, "x": 1.0}, {"loss/train": "loss", "gone": "gone"}) == "loss 1.23"
