from __future__ import annotations

import math

import pytest
import torch

from rlhf.data.pack import pack
from rlhf.errors import DataError
from rlhf.training.algorithm import Totals
from rlhf.training.metrics import Metrics
from tests.fixtures import toy


def nats(policy, groups) -> list[tuple[float, float, int, int]]:
    """Of each pair: summed log-probabilities and lengths, each completion scored by itself."""
    losses = []
    for group in groups:
        with torch.no_grad():
            sums = [float(policy.score(pack([toy.Group(group.prefix, [b])])).logprobs.sum()) for b in group.branches]
        losses.append((*sums, *(len(branch.tokens) for branch in group.branches)))
    return losses


def first_step(trainer) -> tuple[float, dict[str, float]]:
    metrics = Metrics()
    batches = next(trainer.steps(0, trainer.collect(0, metrics)))
    with torch.no_grad():
        loss = sum(trainer.loss(batch, Totals.of(batches), metrics) for batch in batches)
    return float(loss), metrics.result()


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def log_odds(mean: float) -> float:
    return mean - math.log(1 - math.exp(mean))


@pytest.mark.parametrize(
    ("name", "settings", "loss_of"),
    [
        ("simpo", {"beta": 2.5, "target_margin": 0.5}, lambda c, r, n, m: softplus(-(2.5 * (c / n - r / m) - 0.5))),
        (
            "simpo",
            {"beta": 2.5, "target_margin": 0.5, "label_smoothing": 0.2},
            lambda c, r, n, m: (
                0.8 * softplus(-(2.5 * (c / n - r / m) - 0.5)) + 0.2 * softplus(2.5 * (c / n - r / m) - 0.5)
            ),
        ),
        ("simpo", {"sft_coef": 0.3}, lambda c, r, n, m: softplus(-(2 * (c / n - r / m) - 1)) - 0.3 * c / n),
        ("cpo", {"beta": 0.2}, lambda c, r, n, m: softplus(-0.2 * (c - r)) - c / n),
        (
            "cpo",
            {"beta": 0.2, "label_smoothing": 0.2, "sft_coef": 0},
            lambda c, r, n, m: 0.8 * softplus(-0.2 * (c - r)) + 0.2 * softplus(0.2 * (c - r)),
        ),
        (
            "orpo",
            {"odds_coef": 0.7},
            lambda c, r, n, m: 0.7 * softplus(-(log_odds(c / n) - log_odds(r / m))) - c / n,
        ),
        (
            "orpo",
            {"odds_coef": 0.7, "sft_coef": 0.5},
            lambda c, r, n, m: 0.7 * softplus(-(log_odds(c / n) - log_odds(r / m))) - 0.5 * c / n,
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict | str) else "",
)
def test_the_loss_is_the_papers(name, settings, loss_of):
    trainer = toy.build_trainer(name, **settings)
    toy.change_weights(trainer.policy.model, by=0.1)
    pairs = nats(trainer.policy, trainer.rows.take(0))
    loss, metrics = first_step(trainer)
    assert loss == pytest.approx(sum(loss_of(*pair) for pair in pairs) / len(pairs), rel=1e-4)
    assert metrics["loss/train"] == pytest.approx(loss, rel=1e-6)


def test_simpos_rewards_are_beta_times_mean_log_probabilities():
    trainer = toy.build_trainer("simpo", beta=2.5)
    pairs = nats(trainer.policy, trainer.rows.take(0))
    margin = sum(2.5 * (c / n - r / m) for c, r, n, m in pairs) / len(pairs)
    assert first_step(trainer)[1]["simpo/reward_margin"] == pytest.approx(margin, rel=1e-4)


def test_simpo_adds_no_likelihood_term_by_itself():
    """The trap: a policy whose pairs are all won by far has nothing to learn; a silent term would go on."""
    trainer = toy.build_trainer("simpo", beta=1e4, target_margin=0.0, batch_size=10)
    pairs = toy.pairs(10)
    for group, (c, r, n, m) in zip(pairs, nats(trainer.policy, pairs), strict=True):
        if c / n < r / m:
            group.branches.reverse()
    trainer.rows.take = lambda step: pairs
    batches = next(trainer.steps(0, trainer.collect(0, Metrics())))
    metrics = Metrics()
    loss = trainer.loss(batches[0], Totals.of(batches), metrics)
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-6)
    assert max(float(p.grad.abs().max()) for p in trainer.policy.model.parameters()) < 1e-3
    assert "loss/sft" not in metrics.result()
    asked = toy.build_trainer("simpo", beta=1e4, target_margin=0.0, batch_size=10, sft_coef=0.1)
    asked.rows.take = lambda step: pairs
    asked.loss(batches[0], Totals.of(batches), metrics).backward()
    assert max(float(p.grad.abs().max()) for p in asked.policy.model.parameters()) > 1e-2
    assert "loss/sft" in metrics.result()


@pytest.mark.parametrize(
    ("name", "settings", "accuracy"),
    [("simpo", {}, 0.85), ("cpo", {"beta": 1.0}, 0.55), ("orpo", {"odds_coef": 1.0}, 0.85)],
)
def test_held_out_pairs_come_to_be_ranked_right(name, settings, accuracy):
    """CPO compares sums, and among completions of one to eight tokens the short ones win for a long time."""
    trainer_of, settings_of = toy.ON_PAIRS[name]
    config = settings_of(learning_rate=3e-3, epochs=3, batch_size=16, **settings)
    trainer = trainer_of(toy.build_policy(), config, toy.pairs(200), toy.pairs(40, seed=3))
    with torch.no_grad():
        before = trainer.evaluate()
    after = trainer.train().evaluation
    assert after["eval/accuracy"] > max(accuracy, before["eval/accuracy"] + 0.1)
    assert after["eval/reward_margin"] > before["eval/reward_margin"] + 0.5
    assert after["eval/loss"] < before["eval/loss"]
    assert ("eval/sft_loss" in after) == (name != "simpo")
    assert name == "simpo" or after["eval/sft_loss"] < before["eval/sft_loss"]


@pytest.mark.parametrize("name", ["simpo", "cpo", "orpo"])
def test_no_second_model_is_there(name):
    trainer = toy.build_trainer(name)
    assert not hasattr(trainer, "reference")
    assert not trainer.collecting_takes_long(0)
    assert "ref_logprobs" not in trainer.state_dict()


@pytest.mark.parametrize("name", ["dpo", "simpo", "cpo", "orpo"])
def test_single_completions_are_not_compared_across_prompts(name):
    trainer_of, settings_of = toy.ON_PAIRS[name]
    trainer = trainer_of(toy.build_policy(), settings_of(batch_size=4), toy.verdicts(8))
    with pytest.raises(DataError, match=r"1 completion; .*two"):
        trainer.train()
