from __future__ import annotations

import math

import pytest
import torch

from rlhf.config.reward_model import RewardModelConfig
from rlhf.data.pack import Group, pack
from rlhf.errors import DataError
from rlhf.models.reward import RewardModel
from rlhf.training.algorithm import Totals
from rlhf.training.log import RunLog
from rlhf.training.metrics import Metrics
from rlhf.training.reward import RewardModelTrainer
from tests.fixtures import toy


def trained(**settings):
    changed = {"head_dropout": 0.0, "epochs": 8, "held_out": True, **settings}
    trainer = toy.build_trainer("reward", **changed)
    return trainer, trainer.train()


def test_it_learns_to_tell_good_completions_from_bad_ones():
    config = RewardModelConfig(learning_rate=3e-3, epochs=3, rows_per_step=16)
    model = RewardModel.from_policy(toy.build_policy(), seed=1)
    trainer = RewardModelTrainer(model, config, toy.pairs(200), toy.pairs(60, seed=3))
    before = trainer.evaluate()
    result = trainer.train()
    after = trainer.evaluate()
    assert 0.25 < before["eval/accuracy"] < 0.75
    assert after["eval/accuracy"] > 0.9
    assert after["eval/margin"] > before["eval/margin"] + 1
    assert result.evaluation == after


def test_the_loss_is_worked_out_pair_by_pair():
    trainer = toy.build_trainer("reward", use_margin=True, label_smoothing=0.1, center_coef=0.5, head_dropout=0.0)
    groups = toy.pairs(3)
    batches = trainer.batches(groups)
    with torch.no_grad():
        found = float(sum(trainer.loss(b, Totals.of(batches), Metrics()) for b in batches))
        expected = 0.0
        for group in groups:
            chosen, rejected = trainer.model.raw_scores(pack([group]))[0].tolist()
            gap, margin = chosen - rejected, group.columns["margin"]
            right, wrong = math.log1p(math.exp(margin - gap)), math.log1p(math.exp(margin + gap))
            expected += 0.9 * right + 0.1 * wrong + 0.5 * (chosen + rejected) ** 2
    assert found == pytest.approx(expected / 3, rel=1e-5)


def test_scores_are_brought_to_mean_0_and_deviation_1_over_the_training_completions():
    trainer, _ = trained()
    with torch.no_grad():
        scores = trainer.model.scores(pack(toy.pairs(10)))
    assert float(scores.mean()) == pytest.approx(0, abs=1e-5)
    assert float(scores.std(correction=0)) == pytest.approx(1, abs=1e-5)


def test_scores_keep_their_own_scale_where_that_is_asked_for():
    trainer, _ = trained(normalize=False)
    assert torch.equal(trainer.model.mean, torch.zeros(1))
    assert torch.equal(trainer.model.std, torch.ones(1))


def test_an_ensemble_learns_as_its_members_would_alone():
    both, _ = trained(num_models=2, normalize=False)
    alone = toy.build_trainer("reward", head_dropout=0.0, epochs=8, num_models=2, normalize=False)
    single = RewardModel([alone.model.members[1]], toy.TOKENIZER)
    RewardModelTrainer(single, alone.config, toy.pairs(10)).train()
    mine, theirs = dict(both.model.members[1].named_parameters()), dict(single.members[0].named_parameters())
    assert all(torch.allclose(mine[name], theirs[name], rtol=0, atol=1e-6) for name in mine)
    first, second = (m.score.weight if hasattr(m.score, "weight") else m.score.out.weight for m in both.model.members)
    assert not torch.allclose(first, second), "each has its own head"


def test_each_member_reports_its_own_gradient():
    log = RunLog()
    toy.build_trainer("reward", num_models=2, log=log).train()
    metrics = log.read("metrics")[0]["metrics"]
    assert math.hypot(metrics["grad_norm/member-0"], metrics["grad_norm/member-1"]) == pytest.approx(
        metrics["grad_norm"]
    )


def test_a_margin_asks_for_more():
    with_margin, without = trained(use_margin=True), trained(use_margin=False)
    assert with_margin[1].evaluation["eval/margin"] > without[1].evaluation["eval/margin"]


@pytest.mark.parametrize("margin", [None, "large"])
def test_a_margin_that_is_no_number_is_named_by_its_row(margin):
    pair = toy.pairs(1)[0]
    broken = Group(pair.prefix, pair.branches, {"id": "pairs.jsonl:7", "margin": margin})
    trainer = toy.build_trainer("reward", use_margin=True)
    with pytest.raises(DataError, match=r"Row pairs\.jsonl:7: use_margin needs a number in the column `margin`; got"):
        trainer.batches([broken])


def test_equal_scores_are_half_right():
    trainer = toy.build_trainer("reward", held_out=True)
    with torch.no_grad():
        for member in trainer.model.members:
            for p in member.score.parameters():
                p.zero_()
    assert trainer.evaluate()["eval/accuracy"] == 0.5
    assert trainer.evaluate()["eval/loss"] == pytest.approx(math.log(2))


def test_smoothed_labels_hold_back_the_margin():
    settings = {"epochs": 40, "learning_rate": 1e-2}
    sure, unsure = trained(**settings)[1], trained(label_smoothing=0.3, **settings)[1]
    # the minimum of the smoothed loss is at a margin of log(0.7 / 0.3) = 0.85
    assert unsure.metrics["reward/margin"] == pytest.approx(math.log(0.7 / 0.3), abs=0.3)
    assert sure.metrics["reward/margin"] > 3


def test_centring_keeps_scores_around_nothing():
    trainer, _ = trained(center_coef=1.0, normalize=False, epochs=20)
    with torch.no_grad():
        scores = trainer.model.raw_scores(pack(toy.pairs(10)))[0].view(-1, 2)
    assert float(scores.sum(1).abs().mean()) < 0.3
    assert isinstance(trainer.config, RewardModelConfig)
