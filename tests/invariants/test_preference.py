"""Every loss and option of preference learning: the gradient of a step knows neither its cuts nor its order.

The policy stands away from its reference: there, and only there, do the losses differ.
"""

from __future__ import annotations

import inspect
import random
from typing import Any, get_args

import pytest
import torch

from rlhf.config.preference import PairLoss
from rlhf.losses import PAIR_LOSSES
from rlhf.models.paths import PathChoice
from rlhf.training.algorithm import Totals
from rlhf.training.metrics import Metrics
from tests.fixtures import toy

pytestmark = pytest.mark.numeric

SMOOTHED = [name for name, loss in PAIR_LOSSES.items() if "label_smoothing" in inspect.signature(loss).parameters]
CASES: dict[str, dict[str, Any]] = {
    **{f"dpo {loss}": {"loss": loss} for loss in get_args(PairLoss)},
    **{f"dpo {loss}, smoothed": {"loss": loss, "label_smoothing": 0.2} for loss in SMOOTHED},
    "dpo per token": {"length_normalized": True, "beta": 2.0},
    "dpo ipo per token": {"loss": "ipo", "ipo_per_token": True},
    "dpo forward KL": {"divergence": "forward_kl"},
    "dpo Jensen-Shannon": {"divergence": "js"},
    "dpo alpha": {"divergence": "alpha", "divergence_alpha": 0.4},
    "dpo without excess length": {"length_alpha": 0.3},
    "dpo aot without excess length": {"loss": "aot", "length_alpha": 0.3},
    "dpo weighted": {"weight_by_policy": True},
    "dpo without reference": {"reference_free": True},
    "dpo with likelihood": {"sft_coef": 0.5},
    "simpo": {"label_smoothing": 0.1},
    "simpo with likelihood": {"sft_coef": 0.5},
    "cpo": {"label_smoothing": 0.1},
    "orpo": {"odds_coef": 0.7},
    "kto": {"desirable_weight": 1.3},
    "kto running": {"reference_point": "running"},
    "kto zero": {"reference_point": "zero"},
    "kto bco": {"loss": "bco"},
}
del CASES["dpo exo"]  # has no loss without smoothing


def gradient(case: str, *, shuffled: bool = False, path: Any = "packed", **settings: Any) -> dict[str, torch.Tensor]:
    """Of a step at weights that are not the reference's; loss, gradient and metrics."""
    name = case.replace(",", " ").split()[0]
    trainer = toy.build_trainer(name, dtype=torch.float64, **CASES[case], **{"batch_size": 6, **settings})
    trainer.policy.choice = PathChoice(path, 0.0, "forced by a test")
    trainer.collect(0, Metrics())  # asks the reference, while the policy is it
    taken = trainer.rows.take(0)
    if shuffled:
        in_order = [group.columns["id"] for group in taken]
        random.Random(3).shuffle(taken)
        assert in_order != [group.columns["id"] for group in taken]
    trainer.rows.take = lambda step: taken
    toy.change_weights(trainer.policy.model, by=0.1, seed=6)  # towards the rows: KTO's z0 is not cut at 0
    if name == "kto" and trainer.running is not None:
        trainer.running.load_state_dict(RUNNING[type(trainer.running).__name__])
    metrics = Metrics()
    batches = next(trainer.steps(0, trainer.collect(0, metrics)))
    assert (len(batches) > 1) == (settings.get("microbatch_tokens") == 1)
    with torch.no_grad():
        trainer.before_step(batches, metrics)
    total = torch.zeros((), dtype=torch.float64)
    for batch in batches:
        loss = trainer.loss(batch, Totals.of(batches), metrics)
        loss.backward()
        total += loss.detach()
    grads = {key: p.grad for key, p in trainer.policy.model.named_parameters()}
    assert max(float(grad.abs().max()) for grad in grads.values()) > 1e-4
    assert name != "kto" or CASES[case].get("reference_point") == "zero" or trainer.point > 0.05
    numbers = {key: torch.tensor(value, dtype=torch.float64) for key, value in metrics.result().items()}
    return {**grads, **numbers, "loss": total}


RUNNING = {
    "RunningReferencePoint": {"mean": 0.7},
    "RunningRewardShift": {"desirable": {"mean": 0.3}, "undesirable": {"mean": -0.1}},
}


def assert_same(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float) -> None:
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(
            actual[key], value, rtol=tolerance, atol=tolerance * 1e-2, msg=lambda text, key=key: f"{key}: {text}"
        )


@pytest.mark.parametrize("case", CASES)
def test_loss_gradient_and_metrics_do_not_depend_on_micro_batches_or_on_the_order_of_rows(case):
    whole = gradient(case)
    assert_same(gradient(case, microbatch_tokens=1), whole, 1e-9)
    assert_same(gradient(case, shuffled=True), whole, 1e-9)
    assert_same(gradient(case, shuffled=True, microbatch_tokens=1), whole, 1e-9)


@pytest.mark.parametrize("case", ["dpo sigmoid", "dpo aot_unpaired", "dpo weighted", "simpo", "cpo", "orpo", "kto"])
def test_padded_rows_and_the_families_own_logits_give_the_same(case):
    packed = gradient(case)
    assert_same(gradient(case, path="padded"), packed, 1e-8)
    assert_same(gradient(case, path="logits"), packed, 1e-6)


def test_a_reference_point_of_each_micro_batch_would_be_seen():
    """The trap: z0 of the rows that happen to share a forward. The invariance above holds because ours is another number."""
    points = set()
    for rows in (6, 3):
        trainer = toy.build_trainer("kto", dtype=torch.float64, batch_size=6)
        trainer.collect(0, Metrics())
        toy.change_weights(trainer.policy.model, by=0.1, seed=6)
        part = trainer.rows.take(0)[:rows]
        points.add(round(trainer._measured_point(part, "step", 0), 9))
    assert len(points) == 2
    assert all(point > 0.1 for point in points), "at zero, nothing would have been compared"
