from __future__ import annotations

import math
import shutil

import pytest
import torch

from rlhf.config.reward_model import RewardModelConfig
from rlhf.data.pack import Branch, Group, pack
from rlhf.errors import ConfigError, DataError
from rlhf.models.reward import RewardModel
from rlhf.training.algorithm import Totals
from rlhf.training.log import TrainingLogger
from rlhf.training.metrics import Metrics
from rlhf.training.reward_model import RewardModelTrainer
from tests.fixtures import toy


def trained(**settings):
    changed = {"head_dropout": 0.0, "epochs": 8, "held_out": True, **settings}
    trainer = toy.build_trainer("reward", **changed)
    return trainer, trainer.train()


def test_it_learns_to_tell_good_completions_from_bad_ones():
    config = RewardModelConfig(learning_rate=3e-3, epochs=3, batch_size=16)
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
    trainer = toy.build_trainer("reward", margin="column", label_smoothing=0.1, center_coef=0.5, head_dropout=0.0)
    groups = toy.pairs(3)
    batches = trainer.batches(groups)
    with torch.no_grad():
        actual = float(sum(trainer.loss(b, Totals.of(batches), Metrics()) for b in batches))
        expected = 0.0
        for group in groups:
            chosen, rejected = trainer.model.raw_scores(pack([group]))[0].tolist()
            gap, margin = chosen - rejected, group.columns["margin"]
            right, wrong = math.log1p(math.exp(margin - gap)), math.log1p(math.exp(margin + gap))
            expected += 0.9 * right + 0.1 * wrong + 0.5 * (chosen + rejected) ** 2
    assert actual == pytest.approx(expected / 3, rel=1e-5)


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
    log = TrainingLogger()
    toy.build_trainer("reward", num_models=2, log=log).train()
    metrics = log.read("metrics")[0]["metrics"]
    assert math.hypot(metrics["grad_norm/member-0"], metrics["grad_norm/member-1"]) == pytest.approx(
        metrics["grad_norm"]
    )


def test_a_margin_asks_for_more():
    with_margin, without = trained(margin="column"), trained()
    assert with_margin[1].evaluation["eval/margin"] > without[1].evaluation["eval/margin"]


@pytest.mark.parametrize("margin", [None, "large"])
def test_a_margin_that_is_no_number_is_named_by_its_row(margin):
    pair = toy.pairs(1)[0]
    broken = Group(pair.prefix, pair.branches, {"id": "pairs.jsonl:7", "margin": margin})
    trainer = toy.build_trainer("reward", margin="column")
    with pytest.raises(DataError, match=r"pairs\.jsonl:7: .*`margin`"):
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


def test_centering_keeps_scores_around_nothing():
    trainer, _ = trained(center_coef=1.0, normalize=False, epochs=20)
    with torch.no_grad():
        scores = trainer.model.raw_scores(pack(toy.pairs(10)))[0].view(-1, 2)
    assert float(scores.sum(1).abs().mean()) < 0.3
    assert isinstance(trainer.config, RewardModelConfig)


# Other losses: hand numbers, ties, learned scalars ---------------------------------------------------


def loss_of(groups, scores, **settings):
    """Of a model that gives these scores, one for each completion in order."""
    trainer = toy.build_trainer("reward", head_dropout=0.0, **settings)
    trainer.model.raw_scores = lambda batch: torch.tensor([scores], requires_grad=True)
    batches = trainer.batches(groups)
    metrics = Metrics()
    return sum(trainer.loss(b, Totals.of(batches), metrics).item() for b in batches), metrics.result()


def pair(**columns):
    return Group([5], [Branch([6]), Branch([7])], {"id": "a", **columns})


LOG3 = math.log(3)


def test_an_unsure_annotator_is_a_soft_label():
    sure, tossed = pair(label_probability=1.0), pair(label_probability=0.5)
    loss, _ = loss_of([sure, tossed], [LOG3, 0.0, LOG3, 0.0], use_label_probability=True)
    # sure: -log 3/4; a coin: half of -log 3/4 and half of -log 1/4
    assert loss == pytest.approx((math.log(4 / 3) + 0.5 * math.log(4 / 3) + 0.5 * math.log(4)) / 2)
    # before, a row said confidence 2p - 1 = 0.4, and its label was wrong with (1 - 0.4) / 2 = 0.3
    loss, _ = loss_of([pair(label_probability=0.7)], [LOG3, 0.0], use_label_probability=True)
    assert loss == pytest.approx(0.7 * math.log(4 / 3) + 0.3 * math.log(4))


def test_an_unsure_label_may_be_wrong_by_smoothing_too():
    # wrong with .3 by the annotator and .1 in any case: .3 x .9 + .7 x .1 = .34
    settings = {"use_label_probability": True, "label_smoothing": 0.1}
    loss, _ = loss_of([pair(label_probability=0.7)], [LOG3, 0.0], **settings)
    assert loss == pytest.approx(0.66 * math.log(4 / 3) + 0.34 * math.log(4))
    # hinge, lead 1/2, margin 2: 1.5 as labeled and 2.5 the other way round
    loss, _ = loss_of([pair(label_probability=0.7)], [0.5, 0.0], loss="hinge", margin=2.0, **settings)
    assert loss == pytest.approx(0.66 * 1.5 + 0.34 * 2.5)
    loss, _ = loss_of([pair(margin=3.0)], [0.5, 0.0], loss="hinge", margin="column", label_smoothing=0.25)
    assert loss == pytest.approx(0.75 * 2.5 + 0.25 * 3.5)
    # one completion called good, log-odds log 3 of being so
    good = Group([5], [Branch([6])], {"id": "a", "label": True, "label_probability": 0.7})
    model = RewardModel.from_policy(toy.build_policy())
    trainer = RewardModelTrainer(model, RewardModelConfig(loss="binary", **settings), [good])
    model.raw_scores = lambda batch: torch.tensor([[LOG3]])
    batches = trainer.batches([good])
    loss = trainer.loss(batches[0], Totals.of(batches), Metrics()).item()
    assert loss == pytest.approx(0.66 * math.log(4 / 3) + 0.34 * math.log(4))


def test_of_a_tie_and_a_win_smoothing_swaps_the_win_only():
    rows, scores = [pair(tied=True), pair()], [0.5, 0.0, 0.5, 0.0]
    sure, _ = loss_of(rows, scores, loss="rao_kupper")
    smoothed, _ = loss_of(rows, scores, loss="rao_kupper", label_smoothing=0.25)
    # threshold 1/2: a win by 1/2 has sigmoid(0), one by -1/2 has sigmoid(-1)
    assert smoothed - sure == pytest.approx(0.25 * (math.log(1 + math.e) - math.log(2)) / 2, rel=1e-5)


def test_one_margin_for_all_pairs_shifts_the_lead():
    loss, _ = loss_of([pair()], [2 * LOG3, 0.0], margin=LOG3)
    assert loss == pytest.approx(math.log(4 / 3))


def test_a_learned_margin_is_for_losses_that_bound_it():
    for loss in ("graded", "rao_kupper"):
        assert RewardModelConfig(loss=loss, margin="learned").margin == "learned"
    for loss in ("bradley_terry", "hinge", "davidson"):
        with pytest.raises(ConfigError, match=r"margin 'learned' belongs .*`graded` or `rao_kupper`.*without end"):
            RewardModelConfig(loss=loss, margin="learned")


def test_an_evaluation_counts_labels_as_they_are():
    trainer = toy.build_trainer("reward", head_dropout=0.0, loss="hinge", label_smoothing=0.3)
    trainer.model.raw_scores = lambda batch: torch.tensor([[0.25, 0.0]])
    metrics = Metrics()
    trainer.measure(trainer.batches([pair()])[0], metrics)
    assert metrics.result()["eval/loss"] == pytest.approx(0.75)


def test_hinge_asks_for_a_lead():
    assert loss_of([pair(), pair()], [3.0, 0.0, 0.0, 0.5], loss="hinge", margin=2.0)[0] == pytest.approx(1.25)
    assert loss_of([pair(margin=4.0)], [3.0, 0.0], loss="hinge", margin="column")[0] == pytest.approx(1.0)


def test_a_tie_is_learned_from_by_rao_and_kupper():
    loss, actual = loss_of([pair(tied=True), pair()], [0.0, 0.0, 0.5, 0.0], loss="rao_kupper")
    # threshold 1/2: a tie of equals has sigmoid(1/2) - sigmoid(-1/2), a win by 1/2 has sigmoid(0)
    tie = 1 / (1 + math.exp(-0.5)) - 1 / (1 + math.exp(0.5))
    assert loss == pytest.approx((-math.log(tie) + math.log(2)) / 2, rel=1e-5)
    assert actual["reward/accuracy"] == 1.0, "of the pair that has a winner"
    assert actual["reward/outcome_accuracy"] == 0.5, "of three outcomes, that equals tie is not the likeliest at 1/2"


def test_a_tie_weighs_the_mean_of_the_strengths_in_davidsons_model():
    loss, _ = loss_of([pair(tied=True), pair()], [0.0, 0.0, 2 * LOG3, 0.0], loss="davidson")
    # weight 1: equals tie in one case of 1 + 1 + 1; by 2 log 3, win : tie : loss = 3 : 1 : 1/3
    assert loss == pytest.approx((LOG3 + math.log((3 + 1 + 1 / 3) / 3)) / 2, rel=1e-5)


def test_a_clear_preference_passes_the_second_margin():
    loss, _ = loss_of([pair(strength="significantly"), pair(strength="slightly")], [1.5, 0.0, 1.5, 0.0], loss="graded")
    # margins 1/2 and 3/2: clear has sigmoid(0), slight has sigmoid(1) - sigmoid(0)
    assert loss == pytest.approx((math.log(2) - math.log(1 / (1 + math.exp(-1)) - 0.5)) / 2, rel=1e-5)


def ranking(*ranks):
    return Group([5], [Branch([6 + place]) for place in range(len(ranks))], {"id": "r", "ranks": list(ranks)})


def test_a_ranking_is_a_row_of_choices():
    scores = [math.log(2), math.log(3), 0.0]
    # ranks 2, 1, 3: 3 of 2 + 3 + 1, then 2 of 2 + 1
    loss, actual = loss_of([ranking(2, 1, 3)], scores, loss="plackett_luce")
    assert loss == pytest.approx(math.log(6 / 3) + math.log(3 / 2))
    assert actual["reward/accuracy"] == 1.0
    # only the first place: the order of the others is not learned
    assert loss_of([ranking(2, 1, 3)], scores, loss="plackett_luce", top_ranks=1)[0] == pytest.approx(math.log(2))
    # equal ranks are not compared: both of them only with the third
    tied, _ = loss_of([ranking(1, 1, 2)], scores, loss="plackett_luce")
    assert tied == pytest.approx(math.log(3 / 2) + math.log(4 / 3))


def test_a_ranking_of_two_is_bradley_and_terrys_pair():
    both = [
        loss_of([group], [0.3, -0.4], loss=loss)[0]
        for group, loss in ((ranking(1, 2), "plackett_luce"), (pair(), "bradley_terry"))
    ]
    assert both[0] == pytest.approx(both[1], rel=1e-6)


def single(**columns):
    return Group([5], [Branch([6])], {"id": "s", **columns})


def test_ratings_and_verdicts_are_met_one_by_one():
    loss, actual = loss_of([single(rating=5.0), single(rating=2.0)], [1.0, 0.0], loss="rating")
    assert loss == pytest.approx(((1 + 3 - 5) ** 2 + (3 - 2) ** 2) / 2), "scores begin around the middle of the scale"
    assert actual["reward/error"] == pytest.approx(1.0)
    loss, actual = loss_of([single(label=True), single(label=False)], [LOG3, LOG3], loss="binary")
    assert loss == pytest.approx((math.log(4 / 3) + math.log(4)) / 2)
    assert actual["reward/accuracy"] == 0.5


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        ("graded", "margins"),
        ("rao_kupper", "threshold"),
        ("davidson", "tie_weight"),
        ("rating", "offset"),
        ("binary", "offset"),
    ],
)
def test_what_a_loss_learns_beside_the_scores_is_trained_saved_and_named(loss, kind, tmp_path):
    trainer = toy.build_trainer("reward", loss=loss, num_models=2, epochs=4, held_out=True)
    before = [trainer.model.learned.value(k).tolist() for k in range(2)]
    trainer.train()
    learned = trainer.model.learned
    assert learned.kind == kind
    assert all(learned.value(k).tolist() != before[k] for k in range(2))
    folder = trainer.model.save_pretrained(tmp_path / "reward")
    loaded = RewardModel.from_pretrained(str(folder))
    assert [raw.tolist() for raw in loaded.learned.raw] == [raw.tolist() for raw in learned.raw]
    assert loaded.fingerprint() == trainer.model.fingerprint()
    assert f"{kind} {learned.value(0)[0]:.4g}" in (folder / "README.md").read_text()
    with torch.no_grad():
        batch = pack(toy.pairs(3))
        assert torch.equal(loaded.scores(batch), trainer.model.scores(batch))


def test_a_resumed_run_keeps_the_learned_margins(tmp_path):
    settings = {"loss": "graded", "head_dropout": 0.0, "save_every": 2}
    whole = toy.build_trainer("reward", checkpoint_dir=tmp_path / "a", **settings)
    whole.train()
    toy.build_trainer("reward", checkpoint_dir=tmp_path / "b", **settings).train()
    for folder in sorted((tmp_path / "b").glob("checkpoint-*"))[1:]:
        shutil.rmtree(folder)
    again = toy.build_trainer("reward", checkpoint_dir=tmp_path / "b", **settings)
    again.train()
    assert again.model.learned.value(0).tolist() == whole.model.learned.value(0).tolist() != [0.5, 1.5]


def test_scores_of_ratings_keep_the_raters_scale_where_nothing_is_normalized():
    trainer = toy.build_trainer("reward", loss="rating", normalize=False, head_dropout=0.0, epochs=30)
    trainer.train()
    groups = toy.judged("rating", 10)
    with torch.no_grad():
        scores = trainer.model.scores(pack(groups))
    ratings = torch.tensor([group.columns["rating"] for group in groups])
    assert float((scores - ratings).abs().mean()) < 0.7


@pytest.mark.parametrize("loss", ["hinge", "graded", "rao_kupper", "davidson", "plackett_luce", "rating", "binary"])
def test_every_loss_tells_good_completions_from_bad_ones(loss):
    model = RewardModel.from_policy(toy.build_policy(), seed=1)
    config = RewardModelConfig(loss=loss, learning_rate=3e-3, epochs=3, batch_size=16)
    fresh = pack(toy.pairs(60, seed=9))

    def accuracy() -> float:
        with torch.no_grad():
            chosen, rejected = model.scores(fresh).view(-1, 2).T
        return float((chosen > rejected).double().mean())

    before = accuracy()
    RewardModelTrainer(model, config, toy.judged(loss, 200)).train()
    assert before < 0.7
    assert accuracy() > 0.8


@pytest.mark.parametrize(
    ("settings", "group", "message"),
    [
        ({"loss": "bradley_terry"}, pair(tied=True), "it is a tie, which bradley_terry can't learn from"),
        (
            {"loss": "graded"},
            pair(),
            "needs slightly or significantly in the column `strength` of a preference; got None",
        ),
        ({"use_label_probability": True}, pair(label_probability=1.5), "numbers from 0.5"),
        ({"use_label_probability": True}, pair(label_probability=0.4), "numbers from 0.5"),
        ({"use_label_probability": True}, pair(confidence=0.4), "`confidence` is now `label_probability`"),
        (
            {"use_label_probability": True},
            pair(),
            "use_label_probability needs a number in the column `label_probability`; got None",
        ),
        ({"loss": "hinge", "margin": "column"}, pair(margin=0.0), "needs margins above 0"),
        ({"loss": "plackett_luce"}, pair(), "needs a rank for each completion"),
        ({"loss": "plackett_luce"}, single(), "learns from rankings; this row has 1 completion"),
        ({"loss": "rating"}, pair(), "learns from rated completions; this row has 2 completions"),
        ({"loss": "binary"}, single(), "needs true or false in the column `label`"),
    ],
)
def test_a_row_that_the_loss_can_not_learn_from_is_refused_at_the_door(settings, group, message):
    model = RewardModel.from_policy(toy.build_policy())
    with pytest.raises(DataError, match=message):
        RewardModelTrainer(model, RewardModelConfig.of(settings), [group])


@pytest.mark.parametrize(
    "settings",
    [
        {"loss": "plackett_luce", "label_smoothing": 0.1},
        {"loss": "rating", "label_smoothing": 0.1},
        {"loss": "graded", "use_label_probability": True},
        {"loss": "davidson", "margin": 0.5},
        {"loss": "rating", "center_coef": 0.1},
        {"top_ranks": 2},
        {"scalar_learning_rate": 0.1},
        {"margin": -1.0},
    ],
)
def test_a_setting_that_would_do_nothing_is_refused(settings):
    with pytest.raises(ConfigError):
        RewardModelConfig.of(settings)
