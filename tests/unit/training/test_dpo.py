from __future__ import annotations

import math

import pytest
import torch

from rlhf.config.preference import DPOConfig
from rlhf.data.pack import pack
from rlhf.losses import segment_sum
from rlhf.models.reference import ReferenceModel
from rlhf.training.algorithm import Totals
from rlhf.training.dpo import DPOTrainer
from rlhf.training.log import RunLog
from rlhf.training.metrics import Metrics
from tests.fixtures import toy


def summed(policy, groups) -> torch.Tensor:
    """[rows, 2]."""
    batch = pack(groups)
    with torch.no_grad():
        return segment_sum(policy.score(batch).logprobs, batch.score_seq, batch.num_sequences).view(-1, 2)


def first_step(trainer) -> tuple[float, dict[str, float]]:
    """Loss and metrics of the first step's rows, without changing anything."""
    metrics = Metrics()
    batches = next(trainer.steps(0, trainer.collect(0, metrics)))
    with torch.no_grad():
        loss = sum(trainer.loss(batch, Totals.of(batches), metrics) for batch in batches)
    return float(loss), metrics.result()


def test_the_first_loss_is_that_of_no_preference():
    loss, metrics = first_step(toy.build_trainer("dpo"))
    assert loss == pytest.approx(math.log(2), abs=1e-6)
    assert metrics["dpo/reward_margin"] == pytest.approx(0, abs=1e-6)


def test_margins_grow_and_held_out_pairs_are_ranked_right():
    log = RunLog()
    config = DPOConfig(learning_rate=3e-3, epochs=3, rows_per_step=16)
    result = DPOTrainer(toy.build_policy(), config, toy.pairs(200), toy.pairs(40, seed=3), log=log).train()
    margins = [event["metrics"]["dpo/reward_margin"] for event in log.read("metrics")]
    assert margins[-1] > margins[0] + 0.5
    assert result.evaluation["eval/accuracy"] > 0.9
    assert result.evaluation["eval/reward_margin"] > 0.3
    assert result.evaluation["eval/chosen_reward"] > result.evaluation["eval/rejected_reward"]
    assert result.evaluation["eval/loss"] < math.log(2) - 0.1


@pytest.mark.parametrize(
    ("settings", "loss_of"),
    [
        ({}, lambda c, r, lc, lr: math.log1p(math.exp(-0.5 * (c - r)))),
        (
            {"label_smoothing": 0.2},
            lambda c, r, lc, lr: 0.8 * math.log1p(math.exp(-0.5 * (c - r))) + 0.2 * math.log1p(math.exp(0.5 * (c - r))),
        ),
        ({"loss": "hinge"}, lambda c, r, lc, lr: max(0.0, 1 - 0.5 * (c - r))),
        ({"loss": "ipo"}, lambda c, r, lc, lr: (c - r - 1) ** 2),
        ({"loss": "ipo", "ipo_per_token": True}, lambda c, r, lc, lr: (c / lc - r / lr - 1) ** 2),
    ],
    ids=["sigmoid", "smoothed", "hinge", "ipo", "ipo_per_token"],
)
def test_the_loss_that_is_asked_for_is_the_one_that_is_minimised(settings, loss_of):
    trainer = toy.build_trainer("dpo", beta=0.5, **settings)
    groups = trainer.rows.take(0)
    reference = summed(trainer.policy, groups)
    trainer.collect(0, Metrics())
    toy.change_weights(trainer.policy.model, by=0.1)
    ratios = (summed(trainer.policy, groups) - reference).tolist()
    lengths = [[len(b.tokens) for b in g.branches] for g in groups]
    expected = [loss_of(c, r, lc, lr) for (c, r), (lc, lr) in zip(ratios, lengths, strict=True)]
    assert first_step(trainer)[0] == pytest.approx(sum(expected) / len(expected), rel=1e-4)


def test_a_share_of_the_chosen_completions_likelihood_is_added():
    trainer = toy.build_trainer("dpo", sft_coef=0.5)
    groups = trainer.rows.take(0)
    nll = [
        -float(s) / len(g.branches[0].tokens) for g, s in zip(groups, summed(trainer.policy, groups)[:, 0], strict=True)
    ]
    loss, metrics = first_step(trainer)
    assert metrics["loss/sft"] == pytest.approx(sum(nll) / len(nll), rel=1e-5)
    assert loss == pytest.approx(math.log(2) + 0.5 * sum(nll) / len(nll), rel=1e-5)


def test_the_reference_is_asked_once_for_each_row_and_stays_what_it_was():
    policy = toy.build_policy()
    other = toy.build_policy(seed=4)
    calls = []

    class Counting(ReferenceModel):
        def logprobs(self, batch, *, temperature=1.0):
            calls.append(batch.num_groups)
            return super().logprobs(batch, temperature=temperature)

    config = DPOConfig.of(toy.SHORT["dpo"])
    trainer = DPOTrainer(policy, config, toy.pairs(10), toy.pairs(6, seed=1), reference=Counting(other))
    trainer.train()
    assert sum(calls) == 16
    for index, group in enumerate(toy.pairs(10)):
        row = trainer.pairs["train"][index].columns["ref_logprobs"]
        torch.testing.assert_close(row, summed(other, [group])[0])
    for index, group in enumerate(toy.pairs(6, seed=1)):
        row = trainer.pairs["eval"][index].columns["ref_logprobs"]
        torch.testing.assert_close(row, summed(other, [group])[0])


def test_the_policy_is_measured_against_itself_as_it_was_given():
    trainer = toy.build_trainer("dpo")
    before = [summed(trainer.policy, [group])[0] for group in toy.pairs(10)]
    trainer.train()
    kept = [trainer.pairs["train"][index].columns["ref_logprobs"] for index in range(10)]
    torch.testing.assert_close(torch.stack(kept), torch.stack(before))
    assert not torch.allclose(torch.stack(before), summed(trainer.policy, toy.pairs(10)), atol=1e-3)
