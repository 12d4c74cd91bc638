"""What a stage that learns from preferences says of its accuracy: whose it is, and nothing where it was not measured."""

from __future__ import annotations

import pytest

from rlhf.pipeline.stages.offline import _measured

KTO = {"kto/accuracy": 0.0, "kto/num_desirable": 1.0, "kto/num_undesirable": 1.0}


@pytest.mark.parametrize(
    ("kind", "metrics", "said"),
    [
        ("kto", KTO, "accuracy 0.000 in the last step (2 rows)"),
        ("kto", {**KTO, "eval/accuracy": 0.75}, "held-out accuracy 0.750"),
        ("dpo", {"dpo/accuracy": 0.5, "dpo/reward_margin": 1.0}, "accuracy 0.500 in the last step, margin 1.00"),
        (
            "dpo",
            {"dpo/accuracy": 0.5, "dpo/reward_margin": 1.0, "eval/accuracy": 0.25, "eval/reward_margin": -1.0},
            "held-out accuracy 0.250, margin -1.00",
        ),
        ("dpo", {}, "accuracy not measured"),
    ],
)
def test_an_accuracy_says_whose_it_is(kind, metrics, said):
    assert _measured(kind, metrics) == said
